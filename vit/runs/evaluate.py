"""How good a checkpoint is: one report, or several checkpoints compared on the same images."""

import glob
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from vit.data import ImageSet, Split, load_images
from vit.data.datamodule import split_rows
from vit.data.image_set import fingerprint
from vit.evaluation import report
from vit.evaluation.corruption import CORRUPTIONS, SEVERITIES, read_corrupted
from vit.evaluation.cost import forward_flops, parameter_count
from vit.evaluation.faithfulness import STEPS
from vit.evaluation.report import CELLS, COVERED, DROPPED, EXPLAINED, FITTED, PROBED, RANKED, SWITCHED, Part, Subject
from vit.evaluation.score import Score
from vit.evaluation.timing import take_turns
from vit.inspection.fonts import drawable
from vit.inspection.pictures import printable
from vit.runs.machine import advise_on_memory, hardware, plain_console, tune_allocator
from vit.runs.report_files import print_part, to_html, to_json, to_tensorboard
from vit.settings import EvaluateSettings, TrainSettings, UserError, show
from vit.training.checkpoint import LAST, Facts, find_checkpoint, write_atomically
from vit.training.precision import choose_device
from vit.training.pretrained import load
from vit.training.progress import LINE_EVERY, duration


class PassCount:
    """Shows how many images have passed through a network: a bar on a terminal, in a log file a line a minute."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def expect(self, title: str, total: int) -> Iterator[None]:
        self.said = time.perf_counter()
        with Progress(console=self.console, transient=True, disable=not self.console.is_terminal) as self.bar:
            self.bar.add_task(title, total=total)
            (self.task,) = self.bar.tasks
            yield

    def __call__(self, images: int) -> None:
        self.bar.advance(self.task.id, images)
        if self.bar.disable and time.perf_counter() - self.said >= LINE_EVERY:
            self.said = time.perf_counter()
            self.console.print(f"{self.task.description}: {self.task.completed:,} of {self.task.total:,} passes")


@dataclass(frozen=True)
class Network:
    """A checkpoint, read."""

    path: Path
    facts: Facts
    settings: TrainSettings
    subject: Subject

    @property
    def name(self) -> str:
        return "/".join(self.path.resolve().parts[-2:])


def evaluate(settings: EvaluateSettings, claimed: Mapping[str, object]) -> dict[str, Any]:
    """Print, write and return the report of a checkpoint, or the comparison of several.

    Model and data settings come from the checkpoints alone. `claimed` are training keys that the user typed; raises
    UserError if one contradicts a checkpoint.
    """
    console = plain_console()
    tune_allocator()
    passes = PassCount(console)
    groups = [[read(path, settings, claimed, passes) for path in checkpoints(place)] for place in settings.checkpoint]
    if len({len(group) > 1 for group in groups}) > 1:
        raise UserError("compare one checkpoint with one, or several seeds with several")
    networks = [network for group in groups for network in group]
    first = networks[0]
    folder = output_folder(settings, networks)
    images = load_images(
        first.settings.data,
        root=Path(settings.data_root or "data"),
        url=settings.data_url,
        image_size=first.settings.image_size,
        say=console.print,
        train_rows=lambda total: validation_rows(first, total),
    )
    for network in networks:
        refuse_other_images(network, first, images)
    device = first.subject.device
    which = f"{images.description}: {len(images.test):,} test images, in float32 on {device}"
    console.print(f"images       {which}")
    with advise_on_memory(f"lower batch_size={settings.batch_size}"):
        if len(networks) == 1:
            title, parts = first.name, report_on(first, images, settings, passes)
        else:
            title, parts = "comparison", compare(groups, settings.checkpoint, images.test, passes)
    values = {
        "checkpoint": [network.name for network in networks] if len(networks) > 1 else first.name,
        "epoch": first.facts.epoch,
        "weights": first.facts.weights,
        "images": images.description,
        "precision": "float32",
        "hardware": hardware(device),
        "settings": first.facts.settings,
    }
    for part in parts:
        values |= part.values
    write_atomically(folder / "report.json", to_json(values))
    about = [f"{network.name}: epoch {network.facts.epoch}" for network in networks]
    write_atomically(folder / "report.html", to_html(title, [*about, which], parts))
    if len(networks) == 1 and settings.output is None:
        try:
            to_tensorboard(folder, parts, values, step=first.facts.step)
        except Exception as error:  # a viewer that is missing, or broken in whatever way
            console.print(f"no TensorBoard ({error}): the pictures are in report.html")
    console.print(f"report       {folder.resolve() / 'report.html'} and report.json")
    return values


def checkpoints(place: str) -> list[Path]:
    """One checkpoint, or those of all run folders that a pattern such as runs/*seed* matches."""
    path = Path(place).expanduser()
    if path.exists() or not glob.has_magic(place):
        return [find_checkpoint(path)]
    places = map(Path, sorted(glob.glob(str(path))))
    found = [file for file in (place / LAST if place.is_dir() else place for place in places) if file.is_file()]
    if not found:
        raise UserError(f"checkpoint={place} matches no run folder with a {LAST}, and no file")
    return found


def read(path: Path, settings: EvaluateSettings, claimed: Mapping[str, object], passes: PassCount) -> Network:
    vit, facts = load(path)
    if not facts.settings:
        raise UserError(f"{path} does not say on which images and classes to evaluate it; see docs/pretrained.md")
    own = TrainSettings.from_values({**facts.settings, "data.root": settings.data_root})
    for key, value in claimed.items():
        if key not in facts.settings:
            raise UserError(f"{key} is no key of evaluate")
        if (its := own.values()[key]) != value:
            raise UserError(f"{key}={show(value)} contradicts the checkpoint, which has {key}={show(its)}")
    passes.console.print(f"checkpoint   {path}: epoch {facts.epoch} of {own.epochs}, {facts.weights} weights")
    device = choose_device(settings.device)
    subject = Subject(vit.to(device), facts.mean, facts.std, device, settings.batch_size, passes)
    return Network(path, facts, own, subject)


def validation_rows(network: Network, total: int) -> Tensor:
    """Which of so many training images it has kept aside: none if it had another number of them."""
    kept, rest = split_rows(total, network.settings.validation)
    return kept if len(rest) == network.facts.train_images else kept[:0]


def why_no_validation(facts: Facts, kept: Split) -> str:
    """Empty if there are such images."""
    if facts.validation_accuracy is None:
        return "trained without validation images"
    if not len(kept) or facts.validation_fingerprint not in ("", fingerprint(kept.images)):
        return "these are not the images it has learned from"
    return ""


def refuse_other_images(network: Network, first: Network, images: ImageSet) -> None:
    own, theirs, trained = network.settings, first.settings, network.facts.classes
    if images.classes != trained:
        raise UserError(f"these images have other classes ({_few(images.classes)}) than trained ({_few(trained)})")
    takes, shape = network.subject.vit.patch_embedding.image_shape, tuple(images.test.images.shape[1:])
    if takes != shape:
        raise UserError(f"{network.path} takes images of (channels,height,width) {takes}; these are of {shape}")
    if (own.data, own.image_size) != (theirs.data, theirs.image_size):
        raise UserError(f"{network.path} and {first.path} were trained on other images, or in another size")


def output_folder(settings: EvaluateSettings, networks: Sequence[Network]) -> Path:
    """Raises UserError now if nothing can be written there, and not when all is computed."""
    default = networks[0].path.parent if len(networks) == 1 else Path("comparison")
    folder = Path(settings.output).expanduser() if settings.output else default
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"output={folder}: nothing can be written there ({error.strerror})") from error
    return folder


def report_on(network: Network, images: ImageSet, settings: EvaluateSettings, passes: PassCount) -> list[Part]:
    """All parts, each printed as soon as it is there."""
    subject, test, names, console = network.subject, images.test, network.facts.classes, passes.console
    kept: Split | str = why_no_validation(network.facts, images.train) or images.train
    few = kept if isinstance(kept, str) else report.some(kept, FITTED)
    given = read_corrupted(settings.corrupted, shape=tuple(test.images.shape[1:]), classes=len(names))
    parts: list[Part] = []

    def add(part: Part) -> None:
        print_part(part, console)
        parts.append(part)

    def announced(title: str, count: int) -> AbstractContextManager:
        console.print(f"{title}: {count:,} passes, about {duration(count / rate)}")
        return passes.expect(title, count)

    further = len(DROPPED) * min(COVERED, len(test)) + (0 if isinstance(few, str) else len(few))
    with passes.expect("report", (1 + settings.flip_average) * len(test) + further):
        began = time.perf_counter()
        logits = subject.logits(test.images)
        rate = len(test) / (time.perf_counter() - began)
        console.print(f"test accuracy {Score.of(logits, test.labels)}")
        add(report.accuracy(logits, test.labels))
        add(report.classes(logits, test, names, drawable(tuple(map(printable, names)), console.print)))
        fitted = few if isinstance(few, str) else (subject.logits(few.images), few.labels)
        add(report.calibration(logits, test.labels, fitted))
        add(report.patch_dropping(subject, test, logits))
        add(cost(network, rate))
        if settings.flip_average:
            both = torch.stack([logits, subject.logits(test.images.flip(3))]).log_softmax(2).logsumexp(0)
            averaged = report.accuracy(both, test.labels)
            note = "The probabilities of each image and of its mirror image, averaged."
            add(Part("with flip averaging", note, averaged.table, {"flip_average": averaged.values}))
    if settings.robustness:
        count = len(test) if settings.full else min(PROBED, len(test))
        sets = sum(map(len, given.values())) or SEVERITIES * len(CORRUPTIONS)
        with announced("robustness", (sets + len(CELLS) + 1) * count):
            add(report.patch_shuffling(subject, test, count))
            add(report.corruptions(subject, test, given, count))
    if settings.attention:
        layers, heads = subject.shape
        whole = 14 * STEPS * min(EXPLAINED, len(test)) + layers * heads * (RANKED + min(SWITCHED, len(test)))
        with announced("attention", whole):
            add(report.faithfulness(subject, test))
            add(report.heads(subject, test, kept))
            add(report.attribution(subject, test))
    return parts


def cost(network: Network, rate: float) -> Part:
    subject = network.subject
    image = torch.zeros(1, *subject.vit.patch_embedding.image_shape, dtype=torch.uint8)
    values = {
        "parameters": parameter_count(subject.vit),
        "flops": forward_flops(subject.vit),
        "images_per_second": rate,
        "latency_ms": 1000 * take_turns({"one": lambda: subject.logits(image)}, samples=20)["one"].median,
        "megabytes": 4e-6 * parameter_count(subject.vit),
    }
    note = f"In float32 on {hardware(subject.device)}; flops and latency of one image, megabytes of the weights."
    return Part("cost", note, [{"": key, "value": value} for key, value in values.items()], {"cost": values}, digits=1)


def compare(groups: Sequence[Sequence[Network]], names: Sequence[str], test: Split, passes: PassCount) -> list[Part]:
    """Each checkpoint, each group of seeds, and their differences."""
    networks = [network for group in groups for network in group]
    with passes.expect("test images", len(networks) * len(test)):
        logits = [[network.subject.logits(test.images) for network in group] for group in groups]
    parts = report.comparison(names, logits, test.labels)
    for part in parts:
        print_part(part, passes.console)
    settings = [network.settings.values() for network in networks]
    differ = [key for key in settings[0] if any(one[key] != settings[0][key] for one in settings)]
    passes.console.print(f"settings that differ: {' '.join(differ) or 'none'}")
    return parts


def _few(names: tuple[str, ...]) -> str:
    return " ".join(names[:5]) + (" …" if len(names) > 5 else "")
