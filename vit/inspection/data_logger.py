"""Shows, before the first step, what the network is about to learn from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from vit.data import Batch
from vit.inspection.log_picture import log_picture
from vit.inspection.pictures import outlined, sheet, to_picture

COLUMNS = 10  # examples of a class
CLASSES = 100  # at most; a sheet of more would be too long to look at
FIRST = 40  # images of the first batch


class DataLogger(Callback):
    """Writes two sheets at step 0: ten training images of each class, and the first batch as augmentation leaves it.

    images: uint8 (N,C,H,W), labels (N,). Works on a module whose `augment` makes a `Batch` of what the loader gives.
    """

    def __init__(self, images: Tensor, labels: Tensor, classes: Sequence[str], *, folder: Path) -> None:
        self.images, self.labels, self.classes = images, labels, classes
        self.folder = folder

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > 0 or not trainer.is_global_zero:
            return
        for name, picture in (
            ("examples", example_sheet(self.images, self.labels, self.classes)),
            ("first_batch", batch_sheet(pl_module.augment(batch), self.classes)),  # type: ignore[operator]
        ):
            log_picture(trainer, self.folder / f"data_{name}.png", tag=f"data/{name}", picture=picture, step=0)


def example_sheet(images: Tensor, labels: Tensor, classes: Sequence[str]) -> np.ndarray:
    """A row a class, of its first ten images: (N,C,H,W) uint8, (N,) → (H',W',3)."""
    rows = [images[(labels == label).nonzero().flatten()[:COLUMNS]] for label in range(len(classes[:CLASSES]))]
    blank = torch.full_like(images[0], 255)
    pictures = [[to_picture(image) for image in [*row, *[blank] * (COLUMNS - len(row))]] for row in rows]
    names = [[name] * len(row) + [""] * (COLUMNS - len(row)) for name, row in zip(classes, rows, strict=False)]
    title = "training images as they are"
    if len(classes) > CLASSES:
        title += f", the first {CLASSES} of {len(classes):,} classes"
    return sheet(pictures, names, above=[title])


def batch_sheet(batch: Batch, classes: Sequence[str]) -> np.ndarray:
    """The first images of a batch, with masks outlined and the shares of mixed ones: (H',W',3)."""
    pictures = [to_picture(image) for image in batch.images[:FIRST]]
    if batch.masks is not None:
        masks = batch.masks[:FIRST].cpu().numpy()
        pictures = [outlined(picture, mask) for picture, mask in zip(pictures, masks, strict=True)]
    names = [target_name(target, classes) for target in batch.targets[:FIRST].cpu()]
    columns = min(COLUMNS, len(pictures))
    missing = -len(pictures) % columns
    pictures += [np.full_like(pictures[0], 255)] * missing
    names += [""] * missing
    starts = range(0, len(pictures), columns)
    return sheet(
        [pictures[start : start + columns] for start in starts],
        [names[start : start + columns] for start in starts],
        above=["the first batch, augmented"],
        side=96,
    )


def target_name(target: Tensor, classes: Sequence[str]) -> str:
    """'cat' for a label (), 'cat 70% dog' for shares (K,)."""
    if target.ndim == 0 or target.max() > 0.995:
        return classes[int(target if target.ndim == 0 else target.argmax())]
    shares, order = target.topk(2)
    first, second = (classes[int(label)] for label in order)
    return f"{first[:5]} {100 * shares[0]:.0f}% {second[:5]}"
