"""This ViT beside others: the speed of a step, of inference, of the data path and of a whole training, and its memory.

Steps, inference and data paths are timed in turns, in one process; whole epochs once, between bare steps; memory once,
each network in a process of its own.
"""

import contextlib
import dataclasses
import importlib.metadata
import io
import json
import logging
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.profilers import SimpleProfiler

from vit.data import Augmentation, ImageData, ImageSet, Split, load_images, normalize
from vit.evaluation.timing import Timing
from vit.inspection.attention_logger import ViTLogger, picture_steps
from vit.model import ViT
from vit.runs.benchmark_report import plot, tables
from vit.runs.contenders import OWN, Bench, Work, noise, reason, runner, speed
from vit.runs.machine import advise_on_memory, commit, hardware, plain_console, silence_unneeded, tune_allocator
from vit.runs.peers import PEERS, QUICK, Architecture, this_vit, torchvision_loader
from vit.runs.train import PICTURES, classifier, train
from vit.settings import BenchmarkSettings, TrainSettings, UserError
from vit.training.checkpoint import write_atomically
from vit.training.optimizer import MuonAdamW, parameter_groups
from vit.training.precision import Device, choose
from vit.training.progress import count
from vit.training.signals import StopOnSignal

MEMORY_BATCH = 256
DATA_IMAGES = 5120  # in one pass of the data path
CIFAR_IMAGES = 45_000  # that a default run trains on
QUICK_SAMPLES, QUICK_STEPS = 5, 6  # at most; in the epoch that is timed end to end


def benchmark(settings: BenchmarkSettings) -> dict[str, Any]:
    """Measure, print, write what was asked for, and return all figures as plain values: seconds, bytes, shares of 1.

    The file is written again after each part, so that what was measured stays. Raises UserError and Stopped.
    """
    console = plain_console()
    silence_unneeded()
    tune_allocator()
    torch._logging.set_logs(all=logging.ERROR)  # compilers are talkative
    if settings.quick:
        samples = min(QUICK_SAMPLES, settings.samples)
        settings = dataclasses.replace(settings, samples=samples, epochs=1, compiled=False)
    output = Path(settings.output).expanduser() if settings.output else None
    if output:
        for file in (output, output.with_suffix(".png")):
            refuse_unwritable(file)  # now, and not when all is measured
    device = choose(settings.device, "auto")
    bench = Bench(settings, device, console.print)
    bench.say(f"{hardware(device.name)} · {device.precision}: {device.reason}")
    images = _images(bench)
    found: dict[str, Any] = {"machine": machine(device), "versions": versions(), "settings": settings.values()}
    parts = (
        speed,
        memory,
        lambda bench: {"data": data_path(bench, images)},
        lambda bench: end_to_end(bench, images),
        lambda bench: {"growth": growth(bench)},
    )
    with StopOnSignal(), advise_on_memory(f"lower batch_size={settings.batch_size}"):
        for part in parts:
            found |= part(bench)
            if output:
                write_atomically(output, f"{json.dumps(found, indent=1)}\n".encode())
    for table in tables(found):
        console.print(table, soft_wrap=False)
    if output:
        plot(found, output.with_suffix(".png"))
    return found


def refuse_unwritable(file: Path) -> None:
    """Raises UserError."""
    there = file.exists()
    try:
        file.open("ab").close()
    except OSError as error:
        raise UserError(f"output: {file} cannot be written: {error.strerror}") from error
    if not there:
        file.unlink()


def machine(device: Device) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "hardware": hardware(device.name),
        "threads": torch.get_num_threads(),
        "precision": device.precision,
        "system": platform.platform(),
        "environment": {name: os.environ[name] for name in ("ONEDNN_MAX_CPU_ISA", "LD_PRELOAD") if name in os.environ},
    }


def versions() -> dict[str, str | None]:
    """Of what is measured and what it runs on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "commit": commit()}
    for package in ("torch", "lightning", *(peer.package for peer in PEERS.values())):
        found[package] = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


# Memory and growth


def peak_memory(name: str, architecture: Architecture, batch_size: int, device: Device) -> int | None:
    """By how many bytes two training steps of a network as installed raise the memory of this process at its peak.

    None if that is not above the peak of its start.
    """
    tune_allocator()

    def train(size: Architecture, images: int, steps: int) -> None:
        network = this_vit(size) if name == OWN else PEERS[name].build(size, False)
        made = runner(network.to(device.name), *noise(images, size.image_size, device), device)
        for _ in range(steps):
            made.step()

    train(architecture._replace(depth=1), 1, 1)  # imports and kernels are nobody's
    before = _peak_so_far(device)
    train(architecture, batch_size, 2)
    return _peak_so_far(device) - before or None


def _peak_so_far(device: Device) -> int:
    if device.name == "cuda":
        return torch.cuda.max_memory_allocated()
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_fresh_process(bench: Bench, name: str, architecture: Architecture, batch_size: int) -> int | None:
    """`peak_memory`, or None, said why, if it cannot be measured or the process did not survive."""
    try:
        # Not "spawn": after exec, ru_maxrss begins with the peak of the process that it came from.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(peak_memory, name, architecture, batch_size, bench.device).result()
    except Exception as error:
        bench.say(f"  not measured: {reason(error)}")
        return None


def memory(bench: Bench) -> dict[str, Any]:
    """Peak memory of training at batch 256, in bytes, of this ViT and of every peer as installed."""
    size = bench.settings.batch_size if bench.settings.quick else MEMORY_BATCH
    peaks = {}
    for name in [OWN, *(QUICK if bench.settings.quick else PEERS)]:
        bench.say(f"memory: {name} at batch {size}, in a process of its own")
        peaks[name] = in_fresh_process(bench, name, bench.architecture, size)
    own, timm = peaks[OWN], peaks["timm"]
    return {"memory": {"batch_size": size, "bytes": peaks, "ratio_to_timm": own / timm if own and timm else None}}


def growth_points(a: Architecture, batch_size: int, *, quick: bool) -> dict[str, tuple[Architecture, int]]:
    """Architectures and batches that differ from the given ones in one number, named by it; only those that can be.

    If quick, only smaller batches and less depth.
    """
    batches = [batch_size // 4, batch_size // 2, *([] if quick else [2 * batch_size])]
    changes: dict[str, tuple[int, ...]] = {"depth": (a.depth // 3, 2 * a.depth // 3)}
    if not quick:
        changes["depth"] += (2 * a.depth,)
        changes |= {"dim": (a.dim // 2, 2 * a.dim), "heads": (a.heads // 4, a.heads // 2, 2 * a.heads)}
        changes |= {"patch_size": (2 * a.patch_size, a.patch_size // 2)}
        changes |= {"image_size": (2 * a.image_size, 3 * a.image_size)}
    points = {"as above": (a, batch_size)} | {f"batch {size}": (a, size) for size in batches}
    for key, values in changes.items():
        points |= {f"{key} {value}": (a._replace(**{key: value}), batch_size) for value in values}
    return {name: (a, size) for name, (a, size) in points.items() if size and _valid(a)}


def _valid(a: Architecture) -> bool:
    return 0 not in a and a.dim % a.heads == 0 and a.dim % 4 == 0 and a.image_size % a.patch_size == 0


def growth(bench: Bench) -> list[dict[str, Any]]:
    """What a training step of this ViT costs, and its peak memory, where one number of it differs."""
    points = growth_points(bench.architecture, bench.settings.batch_size, quick=bench.settings.quick)
    rows, works = [], {}
    for name, (architecture, size) in points.items():
        bench.say(f"growth: {name}, memory in a process of its own")
        peak = in_fresh_process(bench, name=OWN, architecture=architecture, batch_size=size)
        rows.append({"name": name, **architecture._asdict(), "batch_size": size, "bytes": peak})
        if peak is not None:  # else it would end this process too
            network = this_vit(architecture).to(bench.device.name)
            works[name] = runner(network, *noise(size, architecture.image_size, bench.device), bench.device).step
    timings = bench.turns("growth", works, share=4)
    return [row | (timings[row["name"]].facts(row["batch_size"]) if row["name"] in timings else {}) for row in rows]


# Images, and a whole training


def _images(bench: Bench) -> ImageSet:
    """Without masks, which torchvision would not carry along; few test images, whose score is no part of this."""
    settings = bench.settings
    source = "shapes" if settings.data_root is None else "folder"
    side = (settings.image_size, settings.image_size)
    images = load_images(source, root=Path(settings.data_root or "data"), image_size=side, say=bench.say)
    used = 10 * QUICK_STEPS * settings.batch_size // 9 if settings.quick else len(images.train)
    return dataclasses.replace(images, train=_first(images.train, used), test=_first(images.test, 256))


def _first(split: Split, images: int) -> Split:
    return Split(split.images[:images], split.labels[:images])


def data_path(bench: Bench, images: ImageSet) -> dict[str, Any]:
    """Images a second, augmented and normalised, of this project and of torchvision in a `DataLoader` with workers."""
    few = dataclasses.replace(images, train=_first(images.train, DATA_IMAGES))
    data = ImageData(few, validation=0, batch_size=bench.settings.batch_size, seed=0)
    augmentation = Augmentation(trivial_augment=True, erasing=0.25)

    def own() -> None:
        for batch in data.train_dataloader():
            pixels, labels = (part.to(bench.device.name) for part in batch)
            normalize(augmentation(pixels, labels, classes=len(images.classes)).images, data.mean, data.std)

    works: dict[str, Work] = {OWN: own}
    for name, pillow in (("torchvision, Pillow", True), ("torchvision, tensors", False)):
        loader = torchvision_loader(few.train, augmentation, data, pillow=pillow)
        works[name] = lambda loader=loader: [batch[0].to(bench.device.name) for batch in loader]  # type: ignore[misc]
    timings = bench.turns(f"data path, {len(few.train):,} images", works, share=2)
    ratio = min(timings[name].times(timings[OWN]).median for name in works if name != OWN)
    return {
        "images": len(few.train),
        "ratio_to_torchvision": ratio,
        "pipelines": {name: timing.facts(len(few.train)) for name, timing in timings.items()},
    }


class Stopwatch(SimpleProfiler):
    """Seconds of `Trainer.fit`, and by Lightning's own bookkeeping those of each callback in it."""

    began = 0.0
    seconds = 0.0

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        self.began = time.perf_counter()

    def describe(self) -> None:  # the last that fit does
        self.seconds = time.perf_counter() - self.began

    def spent_in(self, callback: type) -> float:
        found = [took for name, took in self.recorded_durations.items() if f"]{callback.__name__}." in name]
        if not found:
            raise RuntimeError(f"{callback.__name__} left no time: is it called otherwise now?")
        return sum(map(sum, found))


def end_to_end(bench: Bench, images: ImageSet) -> dict[str, Any]:
    """Whole epochs of a training, and what as many bare steps and validation batches take before and after them.

    Bare means one resident batch, and the optimiser of the training; means count, since a whole is a sum. The share of
    attention logging is computed for a default CIFAR-10 run: its pictures and its images, each as fast as here.
    """
    settings, stopwatch = bench.settings, Stopwatch()
    values = settings.group("architecture") | {"image_size": 2 * [settings.image_size], "data": "shapes"}
    values |= {"batch_size": settings.batch_size, "epochs": settings.epochs, "device": bench.device.name}
    with tempfile.TemporaryDirectory() as runs:
        chosen = TrainSettings.from_values(values | {"runs": runs})
        data = ImageData(images, validation=None, batch_size=settings.batch_size, seed=0)
        bare = _bare(chosen, data, len(images.classes), bench.device)
        before = bench.turns("a bare step and a bare validation batch", bare)
        bench.say(f"end to end: {count(settings.epochs, 'epoch')} of {len(images.train):,} images")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            train(chosen, {}, typed={}, began=time.time(), images=images, profiler=stopwatch)
        if not any(Path(runs).glob(f"*/{PICTURES}/step_*")):
            raise RuntimeError(f"the training left no pictures of attention:\n{said.getvalue()}")
    after = bench.turns("a bare step and a bare validation batch once more", bare)
    timings = {name: Timing(before[name].seconds + after[name].seconds) for name in bare}
    batches = {"step": len(data.train), "validation": len(data.validation)}
    resident, steps = min(settings.batch_size, len(data.train)), settings.epochs * len(data.train_dataloader())
    bare_seconds = sum(settings.epochs * batches[name] / resident * timing.mean for name, timing in timings.items())

    looks, times = stopwatch.spent_in(ViTLogger), len(picture_steps(steps))
    rest = stopwatch.seconds - looks
    return {
        "end_to_end": {
            "fraction_of_bare_step": bare_seconds / stopwatch.seconds,
            "fraction_without_pictures": bare_seconds / rest,
            "fit_seconds": stopwatch.seconds,
            "bare_seconds": bare_seconds,
            "bare_step_after_over_before": after["step"].median / before["step"].median,
            "steps": steps,
            "images": images.description,
            **{name: timing.facts(resident) for name, timing in timings.items()},
        },
        "attention_logging": {
            "share": default_share(looks / times, rest / (settings.epochs * len(data.train))),
            "seconds_each": looks / times,
            "times": times,
        },
    }


def default_share(look: float, image: float) -> float:
    """Of a default CIFAR-10 run, the share of its looks at attention, by seconds a look and, all else, an image."""
    usual = TrainSettings()
    looks = look * len(picture_steps(usual.epochs * CIFAR_IMAGES // usual.batch_size))
    return looks / (looks + image * usual.epochs * CIFAR_IMAGES)


def _bare(settings: TrainSettings, data: ImageData, classes: int, device: Device) -> dict[str, Work]:
    """A step and a validation batch of this training, and nothing around them."""
    vit = ViT(image_size=settings.image_size, classes=classes, **settings.group("model")).to(device.name)
    module = classifier(vit, settings, data, device)
    groups = parameter_groups(vit, lr=module.lr, muon_lr=module.muon_lr, weight_decay=module.weight_decay)
    images, labels = (part[: settings.batch_size].to(device.name) for part in data.train.tensors)
    images, optimizer = normalize(images, data.mean, data.std), MuonAdamW(groups, dtype=module.muon_dtype)
    made = runner(vit, images, labels, device, optimizer=optimizer, smoothing=module.label_smoothing)
    return {"step": made.step, "validation": made.infer}
