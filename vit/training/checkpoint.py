"""Checkpoints: tensors and plain facts, written so that a kill at any moment leaves a whole file."""

import contextlib
import dataclasses
import io
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from safetensors import safe_open
from safetensors.torch import load_file

from vit.model import ViT
from vit.settings import UserError
from vit.training.untrusted import checked_facts, of_the_network, refuse_damage, refuse_misfit

LAST, BEST = "last.ckpt", "best.ckpt"
SAVED = "model.safetensors"  # by save_pretrained of transformers
WEIGHTS_ONLY = ".safetensors"


@dataclass(frozen=True)
class Facts:
    """What a checkpoint says of itself beside its tensors. Plain values only; no place on a disk or net."""

    model: dict[str, Any]  # the arguments of ViT
    settings: dict[str, Any]  # as typed names, without places
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel over the training images, scaled to 0–1
    std: tuple[float, ...]
    images: str  # which ones, in words
    train_images: int  # in an epoch
    precision: str
    weights: str  # "raw": as the optimiser left them; "averaged" over the steps
    epoch: int = 0  # finished
    step: int = 0
    minutes: float = 0.0  # of all processes that trained it
    validation_accuracy: float | None = None
    validation_fingerprint: str = ""  # of the images that were kept aside
    begun_from: str = ""  # the network whose weights it began with, in words; "": none


def load_own(run: str | Path) -> tuple[ViT, Facts]:
    """The network of a run folder (its last checkpoint) or of a checkpoint file, in eval mode, and its facts.

    Also of a .safetensors file that scripts/export.py wrote.

    Raises UserError if the file is missing, broken or something else.
    """
    content, facts = read_checkpoint(find_checkpoint(run))
    network = ViT(**facts.model)
    network.load_state_dict(of_the_network(content["state_dict"]))
    return network.eval(), facts


def find_checkpoint(run: str | Path) -> Path:
    """The checkpoint that is meant: the file itself, a folder's `last.ckpt`, or else what transformers saves in one."""
    path = Path(run).expanduser()
    if path.is_dir():
        path = path / (LAST if (path / LAST).exists() or not (path / SAVED).is_file() else SAVED)
        if not path.is_file():
            raise UserError(f"{path} is not there: no epoch of this run was finished, or this is no run folder")
    elif not path.is_file():
        raise UserError(f"{path} is not there; a run folder or a file of weights is wanted")
    return path


def read_checkpoint(path: Path) -> tuple[dict[str, Any], Facts]:
    """A checkpoint's content and facts, of which its weights are sure to fit the network that the facts describe.

    Code in it is never run, and it takes no more memory than its file has bytes. Raises UserError if it cannot be read,
    does not hold what it should, or holds weights that are no numbers.
    """
    best = path.with_name(BEST)
    other = f"; {best} may be whole" if path.name == LAST and best.is_file() else ""
    try:
        if path.suffix == WEIGHTS_ONLY:
            content: dict[str, Any] = {"state_dict": load_file(path), "facts": exported_facts(path)}
        else:
            refuse_damage(path)
            content = torch.load(path, map_location="cpu", weights_only=True)
        facts = checked_facts(Facts(**content["facts"]))
        parts = [content["state_dict"], *([content["current_model_state"]] if "current_model_state" in content else [])]
        for weights in parts:
            refuse_misfit(facts.model, weights, largest=path.stat().st_size)
    except Exception as error:  # a damaged file fails in any layer of zip, pickle and torch
        raise UserError(f"{path} is broken or no checkpoint of this program ({in_short(error)}){other}") from error
    if odd := [name for weights in parts for name, value in weights.items() if not value.isfinite().all()]:
        raise UserError(f"{path} holds weights that are not finite ({odd[0]}): its training has diverged{other}")
    return content, facts


def exported_facts(path: Path) -> dict[str, Any] | None:
    """The facts in a .safetensors file that scripts/export.py wrote; None in any other."""
    with safe_open(path, "pt") as file:
        described = json.loads((file.metadata() or {}).get("facts", "null"))
    if described is None:
        return None
    if not all(isinstance(described[name], list) for name in ("classes", "mean", "std")):
        raise ValueError("its classes, mean or std are no list")
    described |= {name: tuple(described[name]) for name in ("classes", "mean", "std")}
    described["model"]["image_size"] = tuple(described["model"]["image_size"])
    return described


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside, flushes to the disk, then renames: the old file is whole until the new one is."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        path = Path(path)
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_atomically(path, content.getbuffer())


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Replace a file as a whole or not at all. Raises UserError if the disk does not take it."""
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)  # left by a kill; or a link, through which another file would be written
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise UserError(f"{path} could not be written: {error.strerror}; the file before it is untouched") from error
    if os.name == "posix":  # the rename itself, too, must survive a power cut
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class SaveCheckpoints(Checkpoint):
    """After each epoch: `best.ckpt` if validation accuracy rose, then `last.ckpt`.

    In this order, since `last.ckpt` also holds the best score: killed between the two, the resumed epoch writes the
    same best again.
    """

    def __init__(self, folder: Path, facts: Facts, *, began: float) -> None:
        self.folder = folder
        self.facts = facts
        self.began = began
        self.best_accuracy: float | None = None
        self.best_epoch: int | None = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        accuracy = trainer.callback_metrics.get("validation/accuracy")
        value = None if accuracy is None else float(accuracy)
        self.facts = dataclasses.replace(
            self.facts,
            epoch=trainer.current_epoch + 1,
            step=trainer.global_step,
            minutes=(time.time() - self.began) / 60,
            validation_accuracy=value,
        )
        if value is not None and (self.best_accuracy is None or value > self.best_accuracy):
            self.best_accuracy, self.best_epoch = value, trainer.current_epoch + 1
            trainer.save_checkpoint(self.folder / BEST)
        trainer.save_checkpoint(self.folder / LAST)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["facts"] = dataclasses.asdict(self.facts)

    def state_dict(self) -> dict[str, Any]:
        return {"best_accuracy": self.best_accuracy, "best_epoch": self.best_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_accuracy, self.best_epoch = state_dict["best_accuracy"], state_dict["best_epoch"]


def in_short(error: BaseException) -> str:
    """An error of torch or Lightning in one line."""
    return " ".join(str(error).split())[:120] or type(error).__name__
