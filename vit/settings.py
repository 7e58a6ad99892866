"""The one table of keys: what a user may set, its type, range, default and meaning, and which values go together.

Torch is not imported here, so that a mistake is answered in well under a second.
"""

import dataclasses
import difflib
import math
import signal
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self


class UserError(Exception):
    """A mistake that the user can mend. Its message, one line, is all that is shown."""


class Stopped(BaseException):
    """The process was told to stop: an order, and no error for anybody to handle on the way.

    `status` is what a shell expects: 143 for SIGTERM, 130 for SIGINT.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.status = 128 + signum


@dataclass(frozen=True)
class Key:
    """What the table knows of one key beside its type and default."""

    meaning: str
    group: str
    at_least: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    name: str | None = None  # as it is typed, where that is no Python name: data.root
    resumable: bool = False  # may differ when a run is resumed


def _key(default: Any, meaning: str, group: str, **facts: Any) -> Any:
    return dataclasses.field(default=default, metadata={"key": Key(meaning, group, **facts)})


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Values that passed the checks of the table."""

    program: ClassVar[str]
    purpose: ClassVar[str]

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> Self:
        """Check values, keyed by the names that users type, one by one and jointly. Missing ones take their default.

        Raises UserError with what would be valid.
        """
        for name in values:
            refuse_unknown(name, cls.names())
        hints = typing.get_type_hints(cls)
        checked = {
            field.name: _checked(name, field.metadata["key"], hints[field.name], values[name])
            for name, field in cls.fields().items()
            if name in values
        }
        settings = cls(**checked)
        settings.check_jointly()
        return settings

    @classmethod
    def check_one(cls, name: str, value: object) -> Any:
        """One value, checked by type and range, as `values` would show it. Raises UserError."""
        field = cls.fields()[name]
        checked = _checked(name, field.metadata["key"], typing.get_type_hints(cls)[field.name], value)
        return list(checked) if isinstance(checked, tuple) else checked

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field]:
        """The table's rows, keyed by the names that users type."""
        return {field.metadata["key"].name or field.name: field for field in dataclasses.fields(cls)}

    @classmethod
    def names(cls) -> list[str]:
        return list(cls.fields())

    @classmethod
    def resumable(cls) -> set[str]:
        """The keys that may differ when a run is resumed."""
        return {name for name, field in cls.fields().items() if field.metadata["key"].resumable}

    def values(self) -> dict[str, Any]:
        """Plain values, keyed by the names that users type."""
        plain = {name: getattr(self, field.name) for name, field in self.fields().items()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    def group(self, name: str) -> dict[str, Any]:
        """The values of one group. Those of "model" are arguments of `ViT`."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata["key"].group == name}

    def check_jointly(self) -> None:
        """Raise UserError if values that are right one by one do not go together."""


_TEXTS = tuple[str, ...]
LARGEST_SIDE = 4096  # pixels of an image
PLACES = ("data.root", "data.url", "runs", "resume", "init_from")  # are never in a checkpoint


def refuse_unknown(name: str, known: Iterable[str]) -> None:
    """Raise UserError naming the nearest real key if name is none of the known ones."""
    known = list(known)
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]}?" if near else "--help lists them all"
    raise UserError(f"{name} is not a key here; {advice}")


def _checked(name: str, key: Key, hint: Any, value: Any) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    optional = type(None) in kinds
    kind = kinds[0]
    if value is None and optional:
        return None
    wanted = describe(key, hint)
    if value is None or value == "None":
        raise UserError(f"{name}={value}: " + ("for none write null" if optional else f"{name} is {wanted}"))
    if kind == _TEXTS:
        texts = value if isinstance(value, (list, tuple)) else (value,)
        checked: Any = tuple(_checked(name, key, str, text) for text in texts)
    elif isinstance(value, (list, tuple)) and typing.get_origin(kind) is tuple:
        right = len(value) == 2 and all(type(side) is int and 1 <= side <= LARGEST_SIDE for side in value)
        checked = tuple(value) if right else None
    elif typing.get_origin(kind) is tuple:
        checked = (value, value) if type(value) is int and 1 <= value <= LARGEST_SIDE else None
    elif kind is float:
        checked = float(value) if type(value) in (int, float) and math.isfinite(value) else None
    elif kind is str and not key.choices:
        checked = str(value) if type(value) in (int, float, str) and value != "" else None
        if checked is not None:
            _refuse_unusable_path(name, checked)
    else:
        checked = value if type(value) is kind else None
    if checked is None or not _in_range(key, checked):
        if key.choices and set(str(value).split(",")) <= set(key.choices):
            raise UserError(f"{name}={value} names several values; add --multirun to train each")
        near = difflib.get_close_matches(str(value), key.choices, n=1)
        raise UserError(f"{name}={value}: {name} is {wanted}" + (f"; did you mean {near[0]}?" if near else ""))
    return checked


def _refuse_unusable_path(name: str, value: str) -> None:
    try:
        path = Path(value).expanduser()
        if any(len(part.encode()) > 255 for part in path.parts):
            raise UserError(f"{name} has a part of more than 255 bytes, which is no file name")
    except UnicodeEncodeError:
        raise UserError(f"{name} has bytes that are not UTF-8") from None
    except RuntimeError as error:  # ~nobody
        raise UserError(f"{name}={value}: {error}") from None


def _in_range(key: Key, value: Any) -> bool:
    if key.choices:
        return value in key.choices
    return (
        (key.at_least is None or value >= key.at_least)
        and (key.at_most is None or value <= key.at_most)
        and (key.below is None or value < key.below)
    )


def describe(key: Key, hint: Any) -> str:
    """Type and range in words, e.g. 'a whole number, at least 1'."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if key.choices:
        words = "one of " + " ".join(key.choices)
    else:
        words = {
            int: "a whole number",
            float: "a number",
            bool: "true or false",
            str: "text",
            _TEXTS: "text or a list",
        }.get(kinds[0], "a whole number or [height,width]")
    bounds = {"at least": key.at_least, "at most": key.at_most, "below": key.below}
    ranges = [
        f"{word} {f'{bound:,}' if isinstance(bound, int) else show(bound)}"
        for word, bound in bounds.items()
        if bound is not None
    ]
    return ", ".join([words, *ranges]) + (", or null" if type(None) in kinds else "")


def divisors(number: int) -> str:
    """The divisors of a number in words, the first eight."""
    found = [str(i) for i in range(1, number + 1) if number % i == 0]
    return " ".join(found[:8]) + (" …" if len(found) > 8 else "")


def _refuse_sizes(dim: int, heads: int, patch_size: int, image_size: tuple[int, int]) -> None:
    if dim % heads:
        raise UserError(f"heads={heads} does not divide dim={dim}; heads can be {divisors(dim)}")
    if any(side % patch_size for side in image_size):
        size, fitting = show(list(image_size)), divisors(math.gcd(*image_size))
        raise UserError(f"patch_size={patch_size} does not divide image_size={size}; patch_size can be {fitting}")


_POSITIVE = {"at_least": 1}
_FRACTION = {"at_least": 0, "below": 1}


@dataclass(frozen=True, kw_only=True)
class TrainSettings(_Settings):
    """The keys of scripts/train.py."""

    program: ClassVar[str] = "train"
    purpose: ClassVar[str] = "Train a Vision Transformer, e.g. python scripts/train.py heads=8 data=shapes"

    heads: int = _key(8, "attention heads of each layer; divides dim", "model", **_POSITIVE)
    dim: int = _key(192, "width of a token", "model", at_least=1, at_most=65_536)
    depth: int = _key(6, "encoder layers", "model", at_least=1, at_most=1_000)
    patch_size: int = _key(4, "side of a patch in pixels; divides image_size", "model", **_POSITIVE)
    mlp_ratio: float = _key(4.0, "hidden width of the MLP over dim", "model", at_least=0.01, at_most=64)
    pool: str = _key(
        "mean",
        "tokens to one vector: class token, mean, learned weights",
        "model",
        choices=("mean", "cls", "sequence"),
    )
    position: str = _key(
        "sincos",
        "where patches lie: learned or fixed vectors are added, or q and k are turned (rope), or none",
        "model",
        choices=("learned", "sincos", "rope", "none"),
    )
    registers: int = _key(0, "learned tokens beside the patches, which are not read", "model", at_least=0, at_most=1024)
    similarity: str = _key(
        "dot", "of q and k: scaled dot product, or cosine with a learned scale", "model", choices=("dot", "cosine")
    )
    qkv_bias: bool = _key(True, "a bias in the q, k, v projection", "model")
    dropout: float = _key(0.0, "dropout after attention and in the MLP", "model", **_FRACTION)
    attention_dropout: float = _key(0.0, "dropout on attention weights", "model", **_FRACTION)
    drop_path: float = _key(
        0.0, "share of images for which the last layer's halves are skipped; fewer before it", "model", **_FRACTION
    )
    norm_eps: float = _key(
        1e-6, "what LayerNorm adds to the variance before it divides", "model", at_least=1e-12, at_most=0.01
    )
    init: str = _key(
        "xavier", "how weights begin: Xavier uniform, or attention mimetic", "model", choices=("xavier", "mimetic")
    )

    init_from: str | None = _key(
        None, "weights to begin with: a run, or a file of another library's ViT (docs/pretrained.md)", "learning"
    )
    recipe: str = _key("quick", "a file of configs/recipe: settings that belong together", "learning")
    epochs: int = _key(8, "passes over the training images", "learning", resumable=True, at_least=1, at_most=1_000_000)
    batch_size: int = _key(256, "images in a step, over all devices", "learning", at_least=1, at_most=1_000_000)
    optimizer: str = _key(
        "muon", "muon: for the encoder's matrices, AdamW for the rest", "learning", choices=("muon", "adamw")
    )
    lr: float = _key(3e-3, "peak learning rate of AdamW", "learning", at_least=0, at_most=10)
    muon_lr: float = _key(0.02, "peak learning rate of Muon", "learning", at_least=0, at_most=10)
    body_lr: float = _key(
        1.0, "learning rates of all but the head, as a share of these; 0: frozen", "learning", at_least=0, at_most=1
    )
    weight_decay: float = _key(0.05, "decoupled weight decay of matrices", "learning", at_least=0, at_most=10)
    warmup: float = _key(0.1, "share of all steps in which the rate rises", "learning", at_least=0, at_most=1)
    flat: float = _key(0.0, "share of all steps in which the rate then stays", "learning", at_least=0, at_most=1)
    label_smoothing: float = _key(0.1, "share of the target spread evenly", "learning", **_FRACTION)
    ema: float = _key(0.0, "decay of the average of weights that is tested; 0: none", "learning", **_FRACTION)
    clip: float = _key(0.0, "largest gradient norm; 0: no clipping", "learning", at_least=0)
    augment_until: float = _key(
        1.0,
        "share of all steps after which trivial_augment, erasing, mixup and cutmix are off",
        "learning",
        at_least=0,
        at_most=1,
    )
    patch_dropout: float = _key(
        0.0,
        "share of its patches that an image lacks in the first step; falls to 0 in the last",
        "learning",
        **_FRACTION,
    )

    data: str = _key("cifar10", "source of the images", "data", choices=("cifar10", "cifar100", "folder", "shapes"))
    data_root: str | None = _key(
        None,
        "where they are: a folder, or for data=folder also a zip",
        "data",
        name="data.root",
        resumable=True,
    )
    data_url: str | None = _key(
        None, "download CIFAR from here instead (https)", "data", name="data.url", resumable=True
    )
    image_size: tuple[int, int] = _key((32, 32), "height and width; a folder's images are resized to it", "data")
    validation: int | None = _key(
        None, "training images kept aside to choose by; null: a tenth, at most 5,000", "data", at_least=0
    )
    seed: int = _key(0, "seed of everything drawn at random", "data", at_least=0, at_most=2**31 - 1)

    crop: int = _key(4, "random shift in training by up to so many pixels", "augmentation", at_least=0)
    flip: bool = _key(True, "random left-right flip in training", "augmentation")
    trivial_augment: bool = _key(False, "one random operation on each image: TrivialAugmentWide", "augmentation")
    erasing: float = _key(0.0, "share of images with noise in a rectangle", "augmentation", at_least=0, at_most=1)
    mixup: float = _key(
        0.0, "fade images into others by Beta(mixup, mixup); 0: none", "augmentation", at_least=0, at_most=100
    )
    cutmix: float = _key(
        0.0, "paste parts of others by Beta(cutmix, cutmix); 0: none", "augmentation", at_least=0, at_most=100
    )

    device: str = _key("auto", "where to compute", "run", choices=("auto", "cpu", "cuda", "mps"), resumable=True)
    devices: int = _key(1, "how many of them", "run", resumable=True, **_POSITIVE)
    precision: str = _key(
        "auto",
        "auto: bf16 where the device multiplies it natively",
        "run",
        choices=("auto", "32-true", "bf16-mixed", "16-mixed"),
    )
    deterministic: bool = _key(False, "only kernels that give the same again on a GPU; a CPU's all do", "run")
    compile: bool = _key(False, "torch.compile the network", "run", resumable=True)
    workers: int = _key(0, "processes that fetch batches; memory needs none", "run", at_least=0, resumable=True)
    runs: str = _key("runs", "parent of the run folders", "run", resumable=True)
    resume: str | None = _key(None, "run folder (or its checkpoint) to go on with", "run", resumable=True)

    def check_jointly(self) -> None:
        if self.resume is not None or self.init_from is not None:
            return  # the run's or file's own values count, which vit.runs.resume and fine_tuning check
        _refuse_sizes(self.dim, self.heads, self.patch_size, self.image_size)
        if self.position == "sincos" and self.dim % 4:
            raise UserError(f"position=sincos needs a dim divisible by 4, not dim={self.dim}")
        if self.position == "rope" and self.dim // self.heads % 4:
            advice = f"heads can be {divisors(self.dim // 4)}" if self.dim % 4 == 0 else "dim must be divisible by 4"
            raise UserError(f"position=rope needs dim / heads divisible by 4, not {self.dim // self.heads}; {advice}")
        if self.position == "rope" and self.patch_dropout:
            raise UserError("patch_dropout does not go with position=rope, which turns all patches")
        if self.warmup + self.flat > 1:
            raise UserError(f"warmup={show(self.warmup)} and flat={show(self.flat)} are more than all steps together")
        if self.crop >= min(self.image_size):
            raise UserError(f"crop={self.crop} must be smaller than image_size={show(list(self.image_size))}")
        if self.data == "folder" and self.data_root is None:
            raise UserError("data=folder needs data.root=PATH: a folder or zip with train/CLASS/… and test/CLASS/…")
        if self.batch_size % self.devices:
            raise UserError(f"batch_size={self.batch_size} must be divisible by devices={self.devices}")


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(_Settings):
    """The keys of scripts/evaluate.py."""

    program: ClassVar[str] = "evaluate"
    purpose: ClassVar[str] = "Report on a checkpoint, or compare several: python scripts/evaluate.py checkpoint=RUN"

    checkpoint: tuple[str, ...] = _key(
        (), "run folder (its last.ckpt) or file; [A,B] compares, 'runs/*seed*' gathers seeds", "checkpoint"
    )
    data_root: str | None = _key(None, "where the images are, as in training", "data", name="data.root")
    data_url: str | None = _key(None, "download CIFAR from here instead (https)", "data", name="data.url")
    attention: bool = _key(False, "can the maps be trusted, which heads matter", "parts")
    robustness: bool = _key(False, "shuffled patches and corrupted images, 2,000 of them", "parts")
    full: bool = _key(False, "robustness on all test images", "parts")
    corrupted: tuple[str, ...] = _key((), "folders with the .npy files of CIFAR-10-C or CIFAR-10.1", "parts")
    flip_average: bool = _key(False, "also the mean over each image and its mirror image", "parts")
    output: str | None = _key(None, "folder of the report; null: the run's, or comparison", "run")
    batch_size: int = _key(64, "images at once; changes no digit", "run", **_POSITIVE)
    device: str = _key("auto", "where to compute", "run", choices=("auto", "cpu", "cuda", "mps"))

    def check_jointly(self) -> None:
        if not self.checkpoint:
            raise UserError("checkpoint=RUN is missing: a run folder or a checkpoint file")
        if (self.full or self.corrupted) and not self.robustness:
            raise UserError("full and corrupted are about robustness=true")
        if len(self.checkpoint) > 1 and (self.attention or self.robustness or self.flip_average):
            raise UserError("attention, robustness and flip_average are about one checkpoint")


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings(_Settings):
    """The keys of scripts/benchmark.py."""

    program: ClassVar[str] = "benchmark"
    purpose: ClassVar[str] = "Measure this ViT beside others: python scripts/benchmark.py output=FILE.json"

    dim: int = _key(192, "width of a token; divisible by 4", "architecture", at_least=4, at_most=65_536)
    depth: int = _key(9, "encoder layers", "architecture", at_least=1, at_most=1_000)
    heads: int = _key(8, "attention heads of each layer; divides dim", "architecture", **_POSITIVE)
    patch_size: int = _key(4, "side of a patch in pixels; divides image_size", "architecture", **_POSITIVE)
    mlp_ratio: float = _key(4.0, "hidden width of the MLP over dim", "architecture", at_least=0.25, at_most=64)
    image_size: int = _key(32, "height and width in pixels", "architecture", at_least=8, at_most=LARGEST_SIDE)
    batch_size: int = _key(128, "images in a step", "run", at_least=1, at_most=1_000_000)
    device: str = _key("auto", "where to compute", "run", choices=("auto", "cpu", "cuda", "mps"))
    samples: int = _key(20, "timings of each thing; a quarter for growth", "run", at_least=2, at_most=1_000)
    epochs: int = _key(2, "whole epochs that are timed end to end", "run", at_least=1, at_most=1_000)
    quick: bool = _key(False, "two minutes: few peers, samples and images, nothing compiled", "run")
    compiled: bool = _key(True, "try this network and its peers compiled too", "run")
    data_root: str | None = _key(None, "images as for data=folder; null: are drawn", "data", name="data.root")
    output: str | None = _key(None, "write all figures to this JSON file, and a plot beside it", "output")

    def check_jointly(self) -> None:
        _refuse_sizes(self.dim, self.heads, self.patch_size, (self.image_size, self.image_size))
        if self.dim % 4:
            raise UserError(f"the position embedding needs a dim divisible by 4, not dim={self.dim}")
        if self.output is not None and Path(self.output).suffix != ".json":
            raise UserError(f"output={self.output} is no FILE.json")


@dataclass(frozen=True, kw_only=True)
class PredictSettings(_Settings):
    """The keys of scripts/predict.py."""

    program: ClassVar[str] = "predict"
    purpose: ClassVar[str] = (
        "Classify images and see where it looked: python scripts/predict.py checkpoint=RUN images=PATH"
    )

    checkpoint: str | None = _key(
        None, "run folder (its last.ckpt is taken), checkpoint, or another library's file", "checkpoint"
    )
    heads: int | None = _key(None, "of another library's file; null: 64 wide each", "network", **_POSITIVE)
    normalization: str | None = _key(
        None, "of another library's file; null: as usual for it", "network", choices=("imagenet", "half")
    )
    image_size: tuple[int, int] | None = _key(
        None, "height and width, to which positions are resized; null: the network's own", "network"
    )
    images: tuple[str, ...] = _key((), "an image, a folder of images, or [PATH,PATH]", "data")
    output: str = _key("predictions", "folder for the pictures and the page", "data")
    explorer: bool = _key(False, "one HTML page, explorer.html, to move in every map of all the images", "data")
    device: str = _key("auto", "where to compute", "run", choices=("auto", "cpu", "cuda", "mps"))

    def check_jointly(self) -> None:
        if self.checkpoint is None:
            raise UserError("checkpoint=RUN is missing: a run folder or a checkpoint file")
        if not self.images:
            raise UserError("images=PATH is missing: an image, a folder of images, or several as [PATH,PATH]")


@dataclass(frozen=True, kw_only=True)
class ExportSettings(_Settings):
    """The keys of scripts/export.py."""

    program: ClassVar[str] = "export"
    purpose: ClassVar[str] = "Write a network for use elsewhere: python scripts/export.py checkpoint=RUN format=onnx"

    checkpoint: str | None = _key(None, "run folder (its last.ckpt is taken) or checkpoint", "checkpoint")
    format: str = _key("onnx", "safetensors: weights only", "output", choices=("onnx", "torch_export", "safetensors"))
    attention: bool = _key(False, "attention maps and readout as further outputs", "output")
    output: str | None = _key(None, "file to write; null: beside the checkpoint", "output")

    def check_jointly(self) -> None:
        if self.checkpoint is None:
            raise UserError("checkpoint=RUN is missing: a run folder or a checkpoint file")
        if self.attention and self.format == "safetensors":
            raise UserError("attention=true is about onnx and torch_export: safetensors holds weights only")


def show(value: object) -> str:
    """A value as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        sides = [show(side) for side in value]
        return sides[0] if len(set(sides)) == 1 else f"[{','.join(sides)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
