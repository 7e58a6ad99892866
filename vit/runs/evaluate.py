"""How good a checkpoint is: one report, or several checkpoints compared on the same images."""

import glob
import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.progress import track as rich_track
from rich.table import Table
from torch import Tensor

from vit.data import ImageData, ImageSet, Split, load_images
from vit.evaluation.comparison import difference_of_means, paired_difference
from vit.evaluation.corruption import CORRUPTIONS, read_corrupted
from vit.evaluation.cost import forward_flops, parameter_count
from vit.evaluation.faithfulness import STEPS
from vit.evaluation.report import (
    EXPLAINED,
    PROBED,
    SWITCHED,
    Part,
    Subject,
    accuracy_part,
    attribution_part,
    calibration_part,
    class_part,
    faithfulness_part,
    head_part,
    patch_drop_part,
    percent,
    robustness_parts,
)
from vit.evaluation.score import Score
from vit.evaluation.timing import take_turns
from vit.runs.machine import advise_on_memory, hardware, plain_console, silence_unneeded
from vit.runs.report_files import log_report
from vit.settings import EvaluateSettings, TrainSettings, UserError, show
from vit.training.checkpoint import LAST, Facts, find_checkpoint, load, write_atomically
from vit.training.precision import choose_device
from vit.training.progress import LINE_EVERY, duration


@dataclass(frozen=True)
class Network:
    """A checkpoint, read."""

    path: Path
    facts: Facts
    settings: TrainSettings
    subject: Subject


def evaluate(settings: EvaluateSettings, claimed: Mapping[str, object]) -> dict[str, Any]:
    """Print, write and return the report of a checkpoint, or the comparison of several.

    Model and data settings come from the checkpoints alone. `claimed` are training keys that the user typed; raises
    UserError if one contradicts a checkpoint.
    """
    console = plain_console()
    silence_unneeded()
    groups = [
        [read_network(path, settings, claimed, console) for path in checkpoints(place)] for place in settings.checkpoint
    ]
    networks = [network for group in groups for network in group]
    own = networks[0].settings
    images = load_images(
        own.data,
        root=Path(settings.data_root or "data"),
        url=settings.data_url,
        image_size=own.image_size,
        say=console.print,
    )
    for network in networks:
        refuse_other_images(network, images, own)
    device = networks[0].subject.device
    console.print(f"images       {images.description}: {len(images.test):,} test images, in float32 on {device}")
    folder = claim_output(settings, networks)
    with advise_on_memory(f"lower batch_size={settings.batch_size}"):
        if len(networks) > 1:
            parts, values = compare(groups, settings.checkpoint, images, console)
        else:
            parts, values = report(networks[0], images, settings, console)
    values |= {"images": images.description, "precision": "float32", "hardware": hardware(device)}
    write_atomically(folder / "report.json", json.dumps(plain(values), indent=1, ensure_ascii=False).encode())
    if len(networks) == 1 and settings.output is None:
        log_report(folder, parts, values, step=networks[0].facts.step)
    console.print(f"report       {folder.resolve() / 'report.json'}")
    return values


def checkpoints(place: str) -> list[Path]:
    """One checkpoint, or those of all run folders that a pattern such as runs/*seed* matches."""
    path = Path(place).expanduser()
    if path.exists() or not glob.has_magic(place):
        return [find_checkpoint(path)]
    found = [Path(name) for name in sorted(glob.glob(str(path)))]
    found = [one / LAST if one.is_dir() else one for one in found]
    found = [one for one in found if one.is_file()]
    if not found:
        raise UserError(f"checkpoint={place} matches no run folder with a {LAST}, and no file")
    return found


def read_network(path: Path, settings: EvaluateSettings, claimed: Mapping[str, object], console: Console) -> Network:
    vit, facts = load(path)
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
    subject = Subject(vit.to(device), facts.classes, facts.mean, facts.std, device, settings.batch_size)
    return Network(path, facts, own, subject)


def refuse_other_images(network: Network, images: ImageSet, first: TrainSettings) -> None:
    if images.classes != network.facts.classes:
        raise UserError(
            f"these images have other classes ({_few(images.classes)}) than trained ({_few(network.facts.classes)})"
        )
    if (network.settings.data, network.settings.image_size) != (first.data, first.image_size):
        raise UserError(f"{network.path} was trained on other images, or in another size, than the first checkpoint")


def claim_output(settings: EvaluateSettings, networks: Sequence[Network]) -> Path:
    """Where the report goes. Raises UserError now if it cannot, and not when all is computed."""
    default = networks[0].path.parent if len(networks) == 1 else Path("comparison")
    folder = default if settings.output is None else Path(settings.output).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output={folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder} cannot be written; name another folder with output=PATH")
    return folder


def report(
    network: Network, images: ImageSet, settings: EvaluateSettings, console: Console
) -> tuple[list[Part], dict[str, Any]]:
    """All parts, each printed as soon as it is there."""
    subject, facts, test = network.subject, network.facts, images.test
    parts: list[Part] = []

    def add(*new: Part) -> None:
        for part in new:
            print_part(part, console)
        parts.extend(new)

    def track(items: Sequence[Any], title: str) -> Iterator[Any]:
        return progress(items, title, console)

    def announce(title: str, images: int) -> None:
        console.print(f"{title}: about {duration(images / rate)}")

    began = time.perf_counter()
    logits = torch.cat([subject.logits(chunk) for chunk in track(test.images.split(1024), "test images")])
    rate = len(test) / (time.perf_counter() - began)
    console.print(f"test accuracy {Score.of(logits, test.labels)}")
    add(accuracy_part(logits, test.labels), class_part(logits, test, facts.classes))
    validation = validation_of(network, images)
    if isinstance(validation, str):
        add(calibration_part(logits, test.labels, validation))
    else:
        add(calibration_part(logits, test.labels, (subject.logits(validation.images), validation.labels)))
    add(patch_drop_part(subject, test), cost_part(network, rate))
    if settings.flip_average:
        both = torch.stack([logits, subject.logits(test.images.flip(3))]).log_softmax(2).logsumexp(0)
        flipped = accuracy_part(both, test.labels, "with flip averaging")
        add(Part(flipped.title, flipped.note, {"flip_average": flipped.values}, flipped.columns, flipped.rows))
    if settings.robustness:
        count = len(test) if settings.full else PROBED
        given: dict[str, tuple[Tensor, Tensor]] = {}
        shape = tuple(test.images.shape[1:])
        for place in settings.corrupted:
            given |= read_corrupted(Path(place).expanduser(), shape=shape, classes=len(facts.classes))
        announce("robustness", (5 * len(given or CORRUPTIONS) + 4) * min(count, len(test)))
        add(*robustness_parts(subject, test, given, count, track))
    if settings.attention:
        heads = math.prod(subject.shape)
        announce("attention", 14 * STEPS * min(EXPLAINED, len(test)) + 2 * heads * min(SWITCHED, len(test)))
        add(faithfulness_part(subject, test, track))
        add(head_part(subject, test, None if isinstance(validation, str) else validation, track))
        add(attribution_part(subject, test))
    values = {key: value for part in parts for key, value in part.values.items()}
    about = {"checkpoint": network.path.name, "epoch": facts.epoch, "weights": facts.weights}
    return parts, {**about, **values, "settings": facts.settings}


def validation_of(network: Network, images: ImageSet) -> Split | str:
    """The validation images of the training, or why there are none."""
    own = network.settings
    data = ImageData(images, validation=own.validation, batch_size=own.batch_size, seed=own.seed)
    if len(data.validation) == 0:
        return "trained with validation=0"
    if (data.mean, data.std, len(data.train)) != (network.facts.mean, network.facts.std, network.facts.train_images):
        return "these are not the training images it has learned from"
    return Split(data.validation.images, data.validation.labels, data.validation.masks)


def cost_part(network: Network, rate: float) -> Part:
    vit, device = network.subject.vit, network.subject.device
    image = torch.zeros(1, *vit.patch_embedding.image_shape, dtype=torch.uint8)
    latency = take_turns({"one": lambda: network.subject.logits(image)}, samples=20)["one"].median
    cost = {
        "parameters": parameter_count(vit),
        "flops": forward_flops(vit),
        "images_per_second": rate,
        "latency_ms": 1000 * latency,
        "megabytes": network.path.stat().st_size / 1e6,
    }
    shown = [
        f"{cost['parameters']:,}",
        f"{cost['flops'] / 1e9:.3f} GFLOP an image (forward)",
        f"{rate:,.0f} images a second, batches of {network.subject.batch_size}",
        f"{cost['latency_ms']:.1f} ms for one image",
        f"{cost['megabytes']:.1f} MB, the checkpoint with the optimiser's state",
    ]
    rows = [[name, text] for name, text in zip(("parameters", "work", "speed", "latency", "size"), shown, strict=True)]
    return Part("cost", f"In float32 on {hardware(device)}.", {"cost": cost}, ("", ""), rows)


def compare(
    groups: Sequence[Sequence[Network]], names: Sequence[str], images: ImageSet, console: Console
) -> tuple[list[Part], dict[str, Any]]:
    """Each checkpoint's accuracy, the mean of each group over its seeds, and the differences between groups."""
    test = images.test
    every, rows = [], []
    right: list[list[Tensor]] = []
    for group, name in zip(groups, names, strict=True):
        right.append([])
        for network in progress(group, name, console):
            logits = network.subject.logits(test.images)
            found = accuracy_part(logits, test.labels).values
            right[-1].append(logits.argmax(1) == test.labels)
            every.append({"group": name, "checkpoint": network.path.parent.name, **found})
            ends = " to ".join(map(percent, found["accuracy_interval"]))
            rows.append([network.path.parent.name, percent(found["accuracy"]), ends, f"{found['nll']:.4f}"])
    settings = [network.settings.values() for group in groups for network in group]
    differ = {
        key: [one[key] for one in settings]
        for key in settings[0]
        if any(one[key] != settings[0][key] for one in settings)
    }
    note = "Settings that differ: " + (
        "; ".join(f"{key} {' '.join(map(show, of))}" for key, of in differ.items()) or "none"
    )
    parts = [Part("checkpoints", note, {"checkpoints": every}, ("run", "top-1", "95 % interval", "nll"), rows)]

    accuracies = [[float(hits.double().mean()) for hits in group] for group in right]
    seeds, rows = [], []
    for name, of in zip(names, accuracies, strict=True):
        deviation = stdev(of) if len(of) > 1 else math.nan
        seeds.append({"group": name, "mean": fmean(of), "std": deviation, "n": len(of)})
        rows.append([name, percent(fmean(of)), percent(deviation), str(len(of))])
    note = "Mean and sample standard deviation of top-1 over the checkpoints of each."
    parts.append(Part("seeds", note, {"groups": seeds}, ("", "mean", "deviation", "n"), rows))

    pairs = list(itertools.combinations(range(len(groups)), 2))
    differences, rows = [], []
    for one, other in pairs:
        title, level = f"{names[one]} - {names[other]}", 1 - 0.05 / len(pairs)
        if len(right[one]) == len(right[other]) == 1:
            between = paired_difference(right[one][0], right[other][0], level=level)
        elif min(len(right[one]), len(right[other])) > 1:
            between = difference_of_means(accuracies[one], accuracies[other], level=level)
        else:
            raise UserError(f"{title}: one checkpoint against several seeds; give several of both, or one of each")
        better = names[one if between.value > 0 else other]
        verdict = f"{better} is better" if between.shown else "no difference shown"
        differences.append({"one": names[one], "other": names[other], **between._asdict(), "verdict": verdict})
        value, low, high = (f"{100 * number:+.2f}" for number in between[:3])
        rows.append([title, value, f"{low} to {high}", f"{between.p:.3g}" if between.p is not None else "–", verdict])
    if pairs:
        note = (
            f"Points of top-1 on the same {len(test):,} images; the intervals hold with 95 % for all together; p is that "
            "of McNemar. Single checkpoints: it is about these networks, and several seeds tell of a setting."
        )
        columns = ("", "difference", "interval", "p", "verdict")
        parts.append(Part("differences", note, {"differences": differences}, columns, rows))
    for part in parts:
        print_part(part, console)
    return parts, {key: value for part in parts for key, value in part.values.items()}


def print_part(part: Part, console: Console) -> None:
    table = Table(*part.columns, title=part.title, title_justify="left", show_header=any(part.columns))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in part.rows:
        table.add_row(*row)
    console.print(table)
    console.print(part.note + "\n")


def progress(items: Sequence[Any], title: str, console: Console) -> Iterator[Any]:
    """The items; a bar on a terminal, and in a log file a line a minute, say how many are done."""
    if console.is_terminal:
        yield from rich_track(items, description=title, console=console, transient=True)
        return
    said = time.perf_counter()
    for done, item in enumerate(items):
        if time.perf_counter() - said >= LINE_EVERY:
            said = time.perf_counter()
            console.print(f"{title}: {done} of {len(items)}")
        yield item


def plain(value: Any) -> Any:
    """For JSON: six digits, so that the size of a batch changes none; null for what is no number."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def _few(names: tuple[str, ...]) -> str:
    return " ".join(names[:5]) + (" …" if len(names) > 5 else "")
