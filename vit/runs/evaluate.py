"""How good a checkpoint is: one report, or several checkpoints compared on the same images."""

import glob
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track as bar
from torch import Tensor

from vit.data import ImageData, ImageSet, Split, load_images
from vit.evaluation import report
from vit.evaluation.corruption import CORRUPTIONS, SEVERITIES, read_corrupted
from vit.evaluation.cost import forward_flops, parameter_count
from vit.evaluation.faithfulness import STEPS
from vit.evaluation.report import EXPLAINED, FITTED, PROBED, RANKED, SWITCHED, Part, Subject
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
    groups = [[read(path, settings, claimed, console) for path in checkpoints(place)] for place in settings.checkpoint]
    if len({len(group) > 1 for group in groups}) > 1:
        raise UserError("compare one checkpoint with one, or several seeds with several")
    networks = [network for group in groups for network in group]
    first = networks[0]
    images = load_images(
        first.settings.data,
        root=Path(settings.data_root or "data"),
        url=settings.data_url,
        image_size=first.settings.image_size,
        say=console.print,
    )
    for network in networks:
        refuse_other_images(network, first, images)
    device = first.subject.device
    which = f"{images.description}: {len(images.test):,} test images, in float32 on {device}"
    console.print(f"images       {which}")
    folder = output_folder(settings, networks)
    with advise_on_memory(f"lower batch_size={settings.batch_size}"):
        if len(networks) == 1:
            title, parts = first.name, report_on(first, images, settings, console)
        else:
            title, parts = "comparison", compare(groups, settings.checkpoint, images.test, console)
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
    places = [Path(name) for name in sorted(glob.glob(str(path)))]
    files = [place / LAST if place.is_dir() else place for place in places]
    found = [file for file in files if file.is_file()]
    if not found:
        raise UserError(f"checkpoint={place} matches no run folder with a {LAST}, and no file")
    return found


def read(path: Path, settings: EvaluateSettings, claimed: Mapping[str, object], console: Console) -> Network:
    vit, facts = load(path)
    if not facts.settings:
        raise UserError(f"{path} does not say on which images and classes to evaluate it; see docs/pretrained.md")
    own = TrainSettings.from_values({**facts.settings, "data.root": settings.data_root})
    for key, value in claimed.items():
        if key not in facts.settings:
            raise UserError(f"{key} is no key of evaluate")
        if own.values()[key] != value:
            raise UserError(
                f"{key}={show(value)} contradicts the checkpoint, which has {key}={show(own.values()[key])}"
            )
    console.print(f"checkpoint   {path}: epoch {facts.epoch} of {own.epochs}, {facts.weights} weights")
    device = choose_device(settings.device)
    return Network(path, facts, own, Subject(vit.to(device), facts.mean, facts.std, device, settings.batch_size))


def refuse_other_images(network: Network, first: Network, images: ImageSet) -> None:
    own, theirs = network.settings, first.settings
    if images.classes != network.facts.classes:
        raise UserError(
            f"these images have other classes ({_few(images.classes)}) than trained ({_few(network.facts.classes)})"
        )
    if (own.data, own.image_size) != (theirs.data, theirs.image_size):
        raise UserError(f"{network.path} and {first.path} were trained on other images, or in another size")


def output_folder(settings: EvaluateSettings, networks: Sequence[Network]) -> Path:
    """Raises UserError now if nothing can be written there, and not when all is computed."""
    default = networks[0].path.parent if len(networks) == 1 else Path("comparison")
    folder = Path(settings.output).expanduser() if settings.output else default
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output={folder} cannot be made: {error.strerror}") from error
    return folder


def report_on(network: Network, images: ImageSet, settings: EvaluateSettings, console: Console) -> list[Part]:
    """All parts, each printed as soon as it is there."""
    subject, test, names = network.subject, images.test, network.facts.classes
    parts: list[Part] = []

    def add(part: Part) -> None:
        print_part(part, console)
        parts.append(part)

    def track(items: Sequence[Any], title: str) -> Iterator[Any]:
        return progress(items, title, console)

    def announce(title: str, passes: int) -> None:
        console.print(f"{title}: {passes:,} passes, about {duration(passes / rate)}")

    began = time.perf_counter()
    logits = torch.cat(
        [subject.logits(chunk) for chunk in track(test.images.split(max(1024, settings.batch_size)), "test images")]
    )
    rate = len(test) / (time.perf_counter() - began)
    console.print(f"test accuracy {Score.of(logits, test.labels)}")
    add(report.accuracy(logits, test.labels))
    add(report.classes(logits, test, names, drawable(tuple(map(printable, names)), console.print)))
    kept = validation_of(network, images)
    if isinstance(kept, str):
        add(report.calibration(logits, test.labels, kept))
    else:
        few = report.some(kept, FITTED)
        add(report.calibration(logits, test.labels, (subject.logits(few.images), few.labels)))
    add(report.patch_dropping(subject, test, logits))
    add(cost(network, rate))
    if settings.flip_average:
        both = torch.stack([logits, subject.logits(test.images.flip(3))]).log_softmax(2).logsumexp(0)
        averaged = report.accuracy(both, test.labels)
        note = "The probabilities of each image and of its mirror image, averaged."
        add(Part("with flip averaging", note, averaged.table, {"flip_average": averaged.values}))
    if settings.robustness:
        count = len(test) if settings.full else min(PROBED, len(test))
        given: dict[str, tuple[Tensor, Tensor]] = {}
        for place in settings.corrupted:
            given |= read_corrupted(Path(place).expanduser(), shape=tuple(test.images.shape[1:]), classes=len(names))
        announce("robustness", (SEVERITIES * len(given or CORRUPTIONS) + 6) * count)
        add(report.patch_shuffling(subject, test, count, track))
        add(report.corruptions(subject, test, given, count, track))
    if settings.attention:
        layers, heads = subject.shape
        passes = 14 * STEPS * min(EXPLAINED, len(test)) + layers * heads * (RANKED + min(SWITCHED, len(test)))
        announce("attention", passes)
        add(report.faithfulness(subject, test, track))
        add(report.heads(subject, test, kept, track))
        add(report.attribution(subject, test))
    return parts


def validation_of(network: Network, images: ImageSet) -> Split | str:
    """The images that were kept aside in training, or why there are none."""
    own, facts = network.settings, network.facts
    if own.validation == 0:
        return "trained with validation=0"
    try:
        data = ImageData(images, validation=own.validation, batch_size=own.batch_size, seed=own.seed)
    except UserError:  # fewer of them than were kept aside
        return "these are not the images it has learned from"
    if (data.mean, data.std, len(data.train)) != (facts.mean, facts.std, facts.train_images):
        return "these are not the images it has learned from"
    return Split(data.validation.images, data.validation.labels, data.validation.masks)


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


def compare(groups: Sequence[Sequence[Network]], names: Sequence[str], test: Split, console: Console) -> list[Part]:
    """Each checkpoint, each group of seeds, and their differences."""
    logits = [
        [network.subject.logits(test.images) for network in progress(group, name, console)]
        for group, name in zip(groups, names, strict=True)
    ]
    parts = report.comparison(names, logits, test.labels)
    for part in parts:
        print_part(part, console)
    settings = [network.settings.values() for group in groups for network in group]
    differ = [key for key in settings[0] if any(one[key] != settings[0][key] for one in settings)]
    console.print(f"settings that differ: {' '.join(differ) or 'none'}")
    return parts


def progress(items: Sequence[Any], title: str, console: Console) -> Iterator[Any]:
    """The items; a bar on a terminal, and in a log file a line a minute, say how many are done."""
    if console.is_terminal:
        yield from bar(items, description=title, console=console, transient=True)
        return
    said = time.perf_counter()
    for done, item in enumerate(items):
        if time.perf_counter() - said >= LINE_EVERY:
            said = time.perf_counter()
            console.print(f"{title}: {done} of {len(items)}")
        yield item


def _few(names: tuple[str, ...]) -> str:
    return " ".join(names[:5]) + (" …" if len(names) > 5 else "")
