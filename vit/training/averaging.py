"""The average of the weights over the steps, kept beside those that learn."""

import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class AverageWeights(WeightAveraging):
    """Exponential moving average, which is validated, and which is the "state_dict" of a checkpoint.

    average ← d · average + (1 - d) · weights after each step, with d = min(decay, (1 + step) / (10 + step)), so that a
    young average forgets the first, poor weights soon. A checkpoint keeps the raw weights too, and a resumed run goes
    on with both.
    """

    def __init__(self, decay: float) -> None:
        def average(averages: list[Tensor], weights: list[Tensor], steps: Tensor) -> None:
            step = int(steps)
            torch._foreach_lerp_(averages, weights, 1 - min(decay, (1 + step) / (10 + step)))

        super().__init__(use_buffers=False, multi_avg_fn=torch.no_grad()(average))
