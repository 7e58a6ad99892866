"""Checkpoints: tensors and plain facts, written so that a kill at any moment leaves a whole file."""

import contextlib
import dataclasses
import io
import math
import os
import time
import types
import typing
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from vit.model import ViT
from vit.settings import PLACES, TrainSettings, UserError

LAST, BEST = "last.ckpt", "best.ckpt"
FLOATS = torch.float32, torch.bfloat16, torch.float16
FOLDER = 0x10  # the bit of a member of a zip
LARGEST_TABLE = 1 << 28  # values that a network computes when it is built, such as those of its positions
SAVED = "model.safetensors"  # by save_pretrained of transformers


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


def load(run: str | Path) -> tuple[ViT, Facts]:
    """The network of a run folder (its last checkpoint) or of a checkpoint file, in eval mode, and its facts.

    Raises UserError if the file is missing, broken or something else.
    """
    content, facts = read_checkpoint(find_checkpoint(run))
    network = ViT(**facts.model)
    network.load_state_dict(_of_the_network(content["state_dict"]))
    return network.eval(), facts


def find_checkpoint(run: str | Path) -> Path:
    """The checkpoint that is meant: the file itself, `last.ckpt` of a run folder, or what transformers saves in one."""
    path = Path(run).expanduser()
    if path.is_dir():
        path = path / (SAVED if (path / SAVED).is_file() else LAST)
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
        _refuse_damage(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
        facts = _checked_facts(content["facts"])
        parts = [content["state_dict"], *([content["current_model_state"]] if "current_model_state" in content else [])]
        for weights in parts:
            _refuse_misfit(facts, weights, largest=path.stat().st_size)
    except Exception as error:  # a damaged file fails in any layer of zip, pickle and torch
        raise UserError(f"{path} is broken or no checkpoint of this program ({in_short(error)}){other}") from error
    if odd := [name for weights in parts for name, value in weights.items() if not value.isfinite().all()]:
        raise UserError(f"{path} holds weights that are not finite ({odd[0]}): its training has diverged{other}")
    return content, facts


def _refuse_damage(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        if any(member.external_attr & FOLDER for member in archive.infolist()):  # of which torch reads nothing, unsaid
            raise ValueError("one of its parts is a folder")
        if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
            raise ValueError("it claims to hold more bytes than it has")  # torch compresses nothing
        if (damaged := archive.testzip()) is not None:  # torch itself compares no checksum
            raise ValueError(f"the checksum of {damaged} is wrong")


def _checked_facts(values: dict[str, Any]) -> Facts:
    """Raises an error where a fact has another type or range than it should, or contradicts another one."""
    facts = Facts(**values)
    for name, hint in typing.get_type_hints(Facts).items():
        if not _is_a(hint, getattr(facts, name)):
            raise ValueError(f"{name} should not be {str(getattr(facts, name))[:60]}")
    if places := facts.settings.keys() & set(PLACES):
        raise ValueError(f"it names a place: {min(places)}")
    settings = TrainSettings.from_values({**facts.settings, "data.root": "."})  # for data=folder wants one
    model = {"image_size": settings.image_size, "channels": len(facts.mean), "classes": len(facts.classes)}
    model |= settings.group("model")
    for name, value in facts.model.items():
        if name not in model or model[name] != value:
            raise ValueError(f"{name} of its network should not be {str(value)[:60]}")
    if len(facts.std) != len(facts.mean) or min(facts.std) <= 0 or min(facts.epoch, facts.step, facts.train_images) < 0:
        raise ValueError("its numbers are impossible")
    complete = {key: value for key, value in settings.values().items() if key not in PLACES}  # it may lack a newer key
    return dataclasses.replace(facts, settings=complete)


def _is_a(hint: Any, value: object) -> bool:
    """Whether a value has the type of a field of Facts."""
    inner = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_is_a(one, value) for one in inner)
    if typing.get_origin(hint) is dict:
        return type(value) is dict and all(type(key) is str for key in value)
    if typing.get_origin(hint) is tuple:
        return type(value) is tuple and len(value) > 0 and all(_is_a(inner[0], one) for one in value)
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    return type(value) is hint


def _refuse_misfit(facts: Facts, weights: dict[str, torch.Tensor], *, largest: int) -> None:
    """Raise an error unless these are the network's weights in name, type and shape, of `largest` bytes at most."""
    if sum(value.nbytes for value in weights.values()) > largest:  # views may show one number again and again
        raise ValueError("its weights are larger than the file")
    with torch.device("meta"):
        network = ViT(**{**facts.model, "init": "xavier"})
    if sum(table.numel() for table in network.buffers()) > LARGEST_TABLE:
        raise ValueError("its network has too many tokens")
    if odd := [name for name, value in weights.items() if value.dtype not in FLOATS or value.layout != torch.strided]:
        raise ValueError(f"{odd[0]} holds no plain floating-point numbers")
    network.load_state_dict(_of_the_network(weights), assign=True)


def _of_the_network(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("vit."): value for name, value in weights.items()}


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
