"""The average of the weights over the steps, kept beside those that learn."""

from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn


class AverageWeights(WeightAveraging):
    """Exponential moving average, which is validated, and which is the "state_dict" of a checkpoint.

    average ← d · average + (1 - d) · weights after each step, with d = min(decay, (1 + step) / (10 + step)), so that a
    young average forgets the first, poor weights soon. A checkpoint keeps the raw weights too, and a resumed run goes
    on with both.
    """

    def __init__(self, decay: float, *, device: str) -> None:
        def average(averages: list[Tensor], weights: list[Tensor], steps: Tensor) -> None:
            get_ema_multi_avg_fn(min(decay, float((1 + steps) / (10 + steps))))(averages, weights, steps)

        # Lightning makes the average before it moves the network: unless told, it would stay on the CPU.
        super().__init__(device=device, use_buffers=False, multi_avg_fn=average)
