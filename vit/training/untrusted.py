"""What a checkpoint from anywhere must be before something is built from it."""

import dataclasses
import math
import types
import typing
import zipfile
from pathlib import Path
from typing import Any

import torch

from vit.model import ViT
from vit.settings import PLACES, TrainSettings

if typing.TYPE_CHECKING:
    from vit.training.checkpoint import Facts

FLOATS = torch.float32, torch.bfloat16, torch.float16
FOLDER = 0x10  # the bit of a member of a zip
LARGEST_TABLE = 1 << 26  # values that a network computes when it is built, such as those of its positions


def refuse_damage(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        if any(member.external_attr & FOLDER for member in archive.infolist()):  # of which torch reads nothing, unsaid
            raise ValueError("one of its parts is a folder")
        if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
            raise ValueError("it claims to hold more bytes than it has")  # torch compresses nothing
        if (damaged := archive.testzip()) is not None:  # torch itself compares no checksum
            raise ValueError(f"the checksum of {damaged} is wrong")


def checked_facts(facts: "Facts") -> "Facts":
    """Raises an error where a fact has another type or range than it should, or contradicts another one."""
    for name, hint in typing.get_type_hints(type(facts)).items():
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


def refuse_misfit(sizes: dict[str, Any], weights: dict[str, torch.Tensor], *, largest: int) -> None:
    """Raise an error unless these are the network's weights in name, type and shape, of `largest` bytes at most."""
    if sum(value.nbytes for value in weights.values()) > largest:  # views may show one number again and again
        raise ValueError("its weights are larger than the file")
    with torch.device("meta"):
        network = ViT(**{**sizes, "init": "xavier"})
    if sum(table.numel() for table in network.buffers()) > LARGEST_TABLE:
        raise ValueError("its network has too many tokens")
    if odd := [name for name, value in weights.items() if value.dtype not in FLOATS or value.layout != torch.strided]:
        raise ValueError(f"{odd[0]} holds no plain floating-point numbers")
    network.load_state_dict(of_the_network(weights), assign=True)


def of_the_network(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    named = {name.removeprefix("vit."): value for name, value in weights.items()}
    if len(named) < len(weights):
        raise ValueError("a weight stands in it twice")
    return named
