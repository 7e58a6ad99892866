"""Logs what every head attends to while the network learns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from vit.data import normalize
from vit.inspection.log_picture import log_picture
from vit.inspection.maps import readout_maps
from vit.inspection.pictures import attention_sheet

TIMES = 10  # TensorBoard keeps ten pictures of a tag unless told otherwise


def picture_steps(total: int) -> set[int]:
    """Up to ten steps from 0, the untrained network, to the last, each about the same factor after the one before."""
    return {0, *np.geomspace(1, max(1, total), TIMES - 1).round().astype(int).tolist()}


class AttentionLogger(Callback):
    """Writes, for each layer, a sheet of fixed images and the attention of each head, to TensorBoard and as PNG files.

    images: uint8 (B,C,H,W), one title each. Works on a module whose `vit` is a ViT and whose `mean` and `std` are those
    of its images.
    """

    def __init__(self, images: Tensor, titles: Sequence[str], *, folder: Path) -> None:
        self.images = images
        self.titles = titles
        self.folder = folder
        self.steps: set[int] = set()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.steps = picture_steps(int(trainer.estimated_stepping_batches))
        if trainer.global_step == 0:
            self._log(trainer, pl_module, 0)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step in self.steps:
            self._log(trainer, pl_module, trainer.global_step)

    def _log(self, trainer: Trainer, module: Any, step: int) -> None:
        if not trainer.is_global_zero:
            return
        vit = module.vit
        training = vit.training
        vit.eval()
        with torch.no_grad():
            seen = vit.attend(normalize(self.images.to(module.device), module.mean, module.std))
        vit.train(training)
        for layer, weights in enumerate(seen.maps, start=1):
            maps = readout_maps(weights, seen.readout, grid=vit.grid)
            log_picture(
                trainer,
                self.folder / f"step_{step:06d}_layer_{layer:02d}.png",
                tag=f"attention/layer_{layer:02d}",
                picture=attention_sheet(self.images, maps, self.titles),
                step=step,
            )
