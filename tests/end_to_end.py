"""How much of a run's time is bare work: python -m tests.end_to_end data=folder data.root=ZIP epochs=2

Trains as scripts/train.py does, times whole epochs with validation, logging and pictures inside (`Trainer.fit`), and
then, in the same process, what as many bare steps (forward, loss, backward, optimiser on one resident batch, median of
50) and bare validation passes of the same images take.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer

from tests.running import REPOSITORY
from vit.command_line import train
from vit.data import normalize


def median_seconds(work: Callable[[], Any], times: int, warm_up: int = 5) -> float:
    for _ in range(warm_up):
        work()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def bare_seconds(trainer: Trainer) -> tuple[float, float]:
    """One step, and one validation batch."""
    module: Any = trainer.lightning_module
    batches = iter(trainer.datamodule.train_dataloader())  # type: ignore[attr-defined]
    images, labels = next(batches)
    images = normalize(images, module.mean, module.std)
    optimizer = module.configure_optimizers()["optimizer"]
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=trainer.precision == "bf16-mixed")

    def step() -> None:
        with autocast:
            loss = F.cross_entropy(module.vit(images).float(), labels, label_smoothing=module.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def validate() -> None:
        with autocast:
            module.vit(images)

    module.vit.train()
    in_step = median_seconds(step, 50)
    module.vit.eval()
    return in_step, median_seconds(validate, 50)


def main() -> None:
    found: dict[str, Any] = {}
    fit = Trainer.fit

    def timed(self: Trainer, *arguments: Any, **keywords: Any) -> None:
        began = time.perf_counter()
        fit(self, *arguments, **keywords)
        found.update(seconds=time.perf_counter() - began, trainer=self)

    Trainer.fit = timed  # type: ignore[method-assign]
    try:
        train(Path(REPOSITORY / "configs"))
    except SystemExit as left:
        if left.code:
            raise
    trainer = found["trainer"]
    step, validate = bare_seconds(trainer)
    data, epochs = trainer.datamodule, trainer.max_epochs
    steps = epochs * len(data.train) / data.batch_size
    passes = epochs * len(data.validation) / data.batch_size
    bare = steps * step + passes * validate
    print(f"bare: {1000 * step:.0f} ms a step, {1000 * validate:.0f} ms a batch of validation, {bare:.1f} s in all")
    print(f"fit: {found['seconds']:.1f} s, of which {100 * bare / found['seconds']:.1f} % are bare work")


if __name__ == "__main__":
    main()
