"""Mistakes made on purpose, to show that the kills would find them. None is in vit: they change one process."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.data import Batch
from vit.runs import train
from vit.training import checkpoint, logger
from vit.training.classifier import Classifier
from vit.training.optimizer import MuonAdamW


def save_without_rename() -> None:
    """The file is written in its place: a kill leaves half of it, and the one before is gone."""

    def write(path: Path, content: bytes | memoryview) -> None:
        path.unlink(missing_ok=True)
        with checkpoint.open(path, "xb") as file:  # type: ignore[attr-defined]
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    for module in (checkpoint, logger, train):
        module.write_atomically = write  # type: ignore[attr-defined]


def rate_not_relinked() -> None:
    """After a resume the optimiser keeps groups of its own: the plan's rates are logged but never reach a step."""
    load, step = MuonAdamW.load_state_dict, MuonAdamW.step

    def loading(self: MuonAdamW, state: dict[str, Any]) -> None:
        load(self, state)
        self.frozen = [group["lr"] for group in self.param_groups]  # type: ignore[attr-defined]

    def stepping(self: MuonAdamW, closure: Callable[[], float] | None = None) -> float | None:
        planned = [group["lr"] for group in self.param_groups]
        for group, rate in zip(self.param_groups, getattr(self, "frozen", planned), strict=True):
            group["lr"] = rate
        loss = step(self, closure)
        for group, rate in zip(self.param_groups, planned, strict=True):
            group["lr"] = rate
        return loss

    MuonAdamW.load_state_dict = loading  # type: ignore[method-assign, assignment]
    MuonAdamW.step = stepping  # type: ignore[method-assign]


def rng_not_restored() -> None:
    """What is drawn in a step depends on what was drawn since the process began, and not on the step alone."""

    def augment(self: Classifier, batch: tuple[Tensor, ...]) -> Batch:
        with torch.autocast(self.device.type, enabled=False):
            return self.augmentation(*batch, classes=self.vit.head.out_features, strong=True)

    Classifier.augment = augment  # type: ignore[method-assign, assignment]


PLANTS: dict[str, Callable[[], None]] = {
    "save_without_rename": save_without_rename,
    "rate_not_relinked": rate_not_relinked,
    "rng_not_restored": rng_not_restored,
}
