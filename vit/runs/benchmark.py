"""This ViT beside others: the speed of a step, of inference, of the data path and of a whole training, and its memory.

Everything that is compared is timed in turns, in one process, with the same threads, the same allocator and the same
precision, which is the one that training would choose here. A training step is forward, cross-entropy, backward and
fused AdamW, on one resident batch. "As installed" leaves a library's attention as it comes; "explicit" forms the
weights, and "compiled" is `torch.compile`. A peer at its best is the fastest of its variants. Peers with a class token
that cannot be left out are compared with this ViT with one, so that tokens are always as many.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import io
import json
import logging
import multiprocessing
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.profilers import SimpleProfiler
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.data import Augmentation, ImageData, ImageSet, Split, load_images, normalize
from vit.evaluation.cost import RecordProducts, forward_flops, parameter_count
from vit.evaluation.timing import Timing, take_turns
from vit.inspection.attention_logger import AttentionLogger, picture_steps
from vit.model import ViT
from vit.runs.benchmark_report import plot, tables
from vit.runs.machine import commit, hardware, plain_console, silence_unneeded, tune_allocator
from vit.runs.peers import CLASSES, PEERS, QUICK, Architecture, this_vit, torchvision_loader
from vit.runs.train import classifier, train
from vit.settings import BenchmarkSettings, TrainSettings
from vit.training.optimizer import MuonAdamW, parameter_groups
from vit.training.precision import Device, choose
from vit.training.progress import count

Say = Callable[[str], None]
Work = Callable[[], object]

OWN = "this ViT"
INSTALLED, EXPLICIT = "as installed", "explicit"
SQUARE = {"cpu": 4096, "cuda": 8192}  # side of the product whose rate is the ceiling
MEMORY_BATCH = 256
DATA_IMAGES = 2560  # in one pass of the data path
CIFAR_IMAGES = 45_000  # that a default run trains on
PILOT = 3  # samples that decide which variant of a peer is compiled
QUICK_SAMPLES, QUICK_STEPS = 5, 6  # at most; in the epoch that is timed end to end


@dataclass(frozen=True)
class Contender:
    """A network that is measured, in one of the ways in which it can run."""

    name: str
    variant: str
    tokens: int
    build: Callable[[], nn.Module]
    compiled: bool = False
    parameters: int = 0
    problem: str | None = None  # why it could not be measured

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.variant


@dataclass(frozen=True)
class Bench:
    """What every measurement needs: the settings, the device, and where to say what is going on."""

    settings: BenchmarkSettings
    device: Device
    say: Say

    @property
    def architecture(self) -> Architecture:
        return Architecture(**self.settings.group("architecture"))

    def turns(self, what: str, works: Mapping[Any, Work], *, share: int = 1) -> dict[Any, Timing]:
        """Time these in turns, as often as the settings say, or a share of it."""
        samples = max(2, self.settings.samples // share)
        self.say(f"{what}: {count(samples, 'turn')} of {len(works)}")
        return take_turns(works, samples, finish=self.finish)

    def finish(self) -> None:
        """Wait until the device has done all that it was told."""
        if self.device.name != "cpu":
            getattr(torch, self.device.name).synchronize()


def noise(size: int, side: int, device: Device) -> tuple[Tensor, Tensor]:
    """Images float (B,3,H,W) and labels (B,)."""
    images = torch.randn(size, 3, side, side, device=device.name)
    return images, torch.randint(CLASSES, (size,), device=device.name)


def benchmark(settings: BenchmarkSettings) -> dict[str, Any]:
    """Measure, print, write what was asked for, and return all figures as plain values: seconds, bytes, shares of 1.

    Raises UserError and Stopped.
    """
    console = plain_console()
    silence_unneeded()
    tune_allocator()
    torch._logging.set_logs(all=logging.ERROR)  # compilers are talkative
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(
        True
    )  # else the plain kernel computes in float32, on CPUs too
    if settings.quick:
        samples = min(QUICK_SAMPLES, settings.samples)
        settings = dataclasses.replace(settings, samples=samples, epochs=1, compiled=False)
    device = choose(settings.device, "auto")
    bench = Bench(settings, device, console.print)
    bench.say(f"{hardware(device.name)} · {device.precision}: {device.reason}")
    images = _images(bench)
    found = {**speed(bench), "memory": memory(bench), "data": data_path(bench, images), **end_to_end(bench, images)}
    found |= {"growth": growth(bench), "versions": versions(), "settings": settings.values()}
    found["machine"] = {
        "hardware": hardware(device.name),
        "threads": torch.get_num_threads(),
        "precision": device.precision,
        "system": platform.platform(),
    }
    for table in tables(found):
        console.print(table, soft_wrap=False)
    output, picture = (Path(path).expanduser() if path else None for path in (settings.output, settings.plot))
    if output:
        output.write_text(json.dumps(found, indent=2) + "\n")
    if picture or output:
        plot(found, picture or output.with_suffix(".png"))  # type: ignore[union-attr]
    return found


def versions() -> dict[str, str | None]:
    """Of what is measured and what it runs on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "commit": commit()}
    for package in ("torch", "lightning", *(peer.package for peer in PEERS.values())):
        found[package] = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


# Training step and inference


def contenders(architecture: Architecture, *, quick: bool) -> list[Contender]:
    """This ViT, also with a class token if a peer must have one; each peer as installed and with explicit attention."""
    peers = {name: peer for name, peer in PEERS.items() if name in QUICK or not quick}
    rows = []
    for pool, variant, class_token in (("mean", "default", False), ("cls", "class token", True)):
        if any(peer.class_token == class_token for peer in peers.values()):
            own = functools.partial(this_vit, architecture, pool=pool)
            rows.append(Contender(OWN, variant, architecture.patches + class_token, own))
    for name, peer in peers.items():
        for variant in [INSTALLED] if peer.always_explicit else [INSTALLED, EXPLICIT]:
            build = functools.partial(peer.build, architecture, variant == EXPLICIT)
            rows.append(Contender(name, variant, architecture.patches + peer.class_token, build))
    return rows


def to_compile(rows: list[Contender], timings: Mapping[tuple[str, str], Timing]) -> list[Contender]:
    """Of each peer the faster variant, and this ViT: once more, compiled."""
    fastest: dict[tuple[str, int], Contender] = {}
    for row in sorted((row for row in rows if row.key in timings), key=lambda row: timings[row.key].median):
        fastest.setdefault((row.name, row.tokens), row)
    kept = [row for row in rows if row in fastest.values()]
    return [dataclasses.replace(row, variant=f"{row.variant}, compiled", compiled=True) for row in kept]


def training_step(network: nn.Module, images: Tensor, labels: Tensor, device: Device) -> Work:
    """Forward, loss, backward and optimiser on images float (B,C,H,W) and labels (B,): as a function."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    return bare_step(network.train(), images, labels, optimizer, device)


def bare_step(
    network: nn.Module, images: Tensor, labels: Tensor, optimizer: Optimizer, device: Device, smoothing: float = 0.0
) -> Work:
    """The same with an optimiser at hand."""

    def step() -> None:
        with autocast(device):
            loss = F.cross_entropy(network(images).float(), labels, label_smoothing=smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def autocast(device: Device) -> torch.autocast:
    """The precision that training chooses on this device."""
    return torch.autocast(device.name, device.dtype, enabled=device.dtype != torch.float32)


def inference(network: nn.Module, images: Tensor, device: Device) -> Work:
    """Logits of images float (B,C,H,W), without gradients: as a function."""

    @torch.inference_mode()
    def infer() -> None:
        with autocast(device):
            network(images)

    return infer


def prepare(contender: Contender, images: Tensor, labels: Tensor, device: Device) -> tuple[Contender, nn.Module]:
    """The contender with what is now known of it, and its network, which took a step and inferred once.

    A peer that is missing or fails becomes a contender with a problem, and a network that is none.
    """
    try:
        network = contender.build().to(device.name)
        if contender.compiled:
            network.compile()
        training_step(network, images, labels, device)()
        inference(network.eval(), images, device)()
    except Exception as error:  # whatever it is, the others are measured all the same
        if contender.name == OWN and not contender.compiled:
            raise
        missing = isinstance(error, ImportError)
        told = "not installed: pip install -e '.[bench]'" if missing else f"{type(error).__name__}: {error}"
        return dataclasses.replace(contender, problem=" ".join(told.split())[:200]), nn.Identity()
    return dataclasses.replace(contender, parameters=parameter_count(network)), network


def speed(bench: Bench) -> dict[str, Any]:
    """Training and inference of all contenders, and how near the training step comes to what the machine can do."""
    settings, device = bench.settings, bench.device
    images, labels = noise(settings.batch_size, settings.image_size, device)
    rows: list[Contender] = []
    networks: dict[tuple[str, str], nn.Module] = {}

    def steps_with(more: list[Contender]) -> dict[Any, Work]:
        for row in more:
            bench.say(f"preparing {', '.join(row.key)}")
            known, network = prepare(row, images, labels, device)
            rows.append(known)
            networks.update({row.key: network} if known.problem is None else {})
        return {key: training_step(network, images, labels, device) for key, network in networks.items()}

    works = steps_with(contenders(bench.architecture, quick=settings.quick))
    if settings.compiled:
        works = steps_with(to_compile(rows, take_turns(works, PILOT, finish=bench.finish)))
    side = SQUARE.get(device.name, 4096) // (2 if settings.quick else 1)
    left, right = (torch.randn(side, side, device=device.name).to(device.dtype) for _ in range(2))
    steps = bench.turns(f"training, and a product of {side}×{side}", works | {"square": lambda: left @ right})
    works = {key: inference(network.eval(), images, device) for key, network in networks.items()}
    inferences = bench.turns("inference", works)

    own = networks[rows[0].key]
    products = products_alone(bench, training_step(own, images, labels, device))
    training = compare(rows, steps, settings.batch_size)
    training |= ceiling(
        step_seconds=settings.batch_size / training["images_per_second"],
        step_flops=3 * settings.batch_size * forward_flops(own),  # type: ignore[arg-type]
        rate=2 * side**3 / steps["square"].median,
        products_seconds=sum(product["times"] * product["median"] for product in products),
    )
    return {"training": training, "inference": compare(rows, inferences, settings.batch_size), "products": products}


def products_alone(bench: Bench, step: Work) -> list[dict[str, Any]]:
    """Every distinct matrix product of a step: its shapes, its operations, how many times it occurs, its time alone."""
    with RecordProducts() as recorded:
        step()
    works = {product: product.alone(bench.device.name) for product in recorded.counts}
    timings = bench.turns("each matrix product of a training step alone", works)
    shapes = [{"left": product.left.shape, "right": product.right.shape, "flops": product.flops} for product in works]
    times = recorded.counts.values()
    return [
        {**shape, "times": n, **timing._asdict()}
        for shape, n, timing in zip(shapes, times, timings.values(), strict=True)
    ]


def ceiling(*, step_seconds: float, step_flops: float, rate: float, products_seconds: float) -> dict[str, float]:
    """How near a step comes to the rate of one large product, in FLOP/s, and to its own products each timed alone.

    A step counts three times the forward pass's operations.
    """
    return {
        "flops": step_flops,
        "square_flops_per_second": rate,
        "fraction_of_ceiling": step_flops / step_seconds / rate,
        "floor_seconds": products_seconds,
        "floor_share_of_step": products_seconds / step_seconds,
        "fraction_of_ceiling_at_floor": step_flops / products_seconds / rate,
    }


def compare(rows: list[Contender], timings: Mapping[Any, Timing], batch_size: int) -> dict[str, Any]:
    """Images a second by medians, and how many times as fast this ViT is as each peer with as many tokens.

    ratio_to_best_peer is the smallest of these. Ratios are None where no peer could be measured.
    """
    own = {row.tokens: timings[row.key].median for row in rows if row.name == OWN and not row.compiled}
    ratios = {row.key: timings[row.key].median / own[row.tokens] for row in rows if row.key in timings}
    table: list[dict[str, Any]] = []
    for row in rows:
        known = {"name": row.name, "variant": row.variant, "tokens": row.tokens, "parameters": row.parameters}
        if row.key in timings:
            table.append({**known, "ratio": ratios[row.key], **timings[row.key].facts(batch_size)})
        else:
            table.append({**known, "problem": row.problem})
    best = min((key for key in ratios if key[0] != OWN), key=lambda key: ratios[key], default=None)
    return {
        "images_per_second": table[0]["images_per_second"],
        "ratio_to_best_peer": ratios[best] if best else None,
        "best_peer": ", ".join(best) if best else None,
        "ratio_to_timm_as_installed": ratios.get(("timm", INSTALLED)),
        "contenders": table,
    }


# Memory and growth


def peak_memory(name: str, architecture: Architecture, batch_size: int, device: Device) -> int:
    """By how many bytes two training steps of a network as installed raise the memory of this process at its peak."""
    tune_allocator()
    before = _peak_so_far(device)
    network = this_vit(architecture) if name == OWN else PEERS[name].build(architecture, False)
    step = training_step(network.to(device.name), *noise(batch_size, architecture.image_size, device), device)
    step()
    step()
    return _peak_so_far(device) - before


def _peak_so_far(device: Device) -> int:
    if device.name == "cuda":
        return torch.cuda.max_memory_allocated()
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_fresh_process(name: str, architecture: Architecture, batch_size: int, device: Device) -> int | None:
    """`peak_memory`, or None if the process did not survive or the peer is missing."""
    # Not "spawn": after exec, ru_maxrss begins with the peak of the process that it came from.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(peak_memory, name, architecture, batch_size, device).result()
        except (BrokenProcessPool, ImportError, RuntimeError):
            return None


def memory(bench: Bench) -> dict[str, Any]:
    """Peak memory of training at batch 256, in bytes, of this ViT and of every peer as installed."""
    size = bench.settings.batch_size if bench.settings.quick else MEMORY_BATCH
    peaks = {}
    for name in [OWN, *(QUICK if bench.settings.quick else PEERS)]:
        bench.say(f"memory: {name} at batch {size}, in a process of its own")
        peaks[name] = in_fresh_process(name, bench.architecture, size, bench.device)
    own, timm = peaks[OWN], peaks["timm"]
    return {"batch_size": size, "bytes": peaks, "ratio_to_timm": own / timm if own and timm else None}


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
        peak = in_fresh_process(OWN, architecture, size, bench.device)
        rows.append({"name": name, **architecture._asdict(), "batch_size": size, "bytes": peak})
        if peak is not None:  # else it would end this process too
            network = this_vit(architecture).to(bench.device.name)
            works[name] = training_step(network, *noise(size, architecture.image_size, bench.device), bench.device)
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
    timings = bench.turns(f"data path, {len(few.train):,} images", works)
    ratio = min(timings[name].median for name in works if name != OWN) / timings[OWN].median
    return {
        "images": len(few.train),
        "ratio_to_torchvision": ratio,
        "pipelines": {name: timing.facts(len(few.train)) for name, timing in timings.items()},
    }


class Stopwatch(SimpleProfiler):
    """Seconds of `Trainer.fit`, and by Lightning's own bookkeeping those of each callback in it."""

    seconds = 0.0

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        self.began = time.perf_counter()

    def describe(self) -> None:  # the last that fit does
        self.seconds = time.perf_counter() - self.began

    def spent_in(self, callback: type) -> float:
        return sum(sum(took) for name, took in self.recorded_durations.items() if f"]{callback.__name__}." in name)


def end_to_end(bench: Bench, images: ImageSet) -> dict[str, Any]:
    """Whole epochs of a training, and what as many bare steps and bare validation passes take in the same process.

    Bare means one resident batch, and the optimiser of the training. The share of attention logging is that of a
    default CIFAR-10 run: of its pictures, at the speed that this network had here.
    """
    settings, stopwatch = bench.settings, Stopwatch()
    bench.say(f"end to end: {count(settings.epochs, 'epoch')} of {len(images.train):,} images ({images.description})")
    values = settings.group("architecture") | {"image_size": 2 * [settings.image_size], "data": "shapes"}
    values |= {"batch_size": settings.batch_size, "epochs": settings.epochs, "device": bench.device.name}
    with tempfile.TemporaryDirectory() as runs, contextlib.redirect_stdout(io.StringIO()):
        chosen = TrainSettings.from_values(values | {"runs": runs})
        train(chosen, {}, typed={}, began=time.time(), images=images, profiler=stopwatch)
    data = ImageData(images, validation=None, batch_size=settings.batch_size, seed=0)
    timings = bench.turns(
        "a bare step and a bare validation batch", _bare(chosen, data, len(images.classes), bench.device)
    )
    batches = {"step": len(data.train), "validation": len(data.validation)}
    resident, steps = min(settings.batch_size, len(data.train)), settings.epochs * len(data.train_dataloader())
    bare = sum(settings.epochs * batches[name] / resident * timing.median for name, timing in timings.items())

    logging, times = stopwatch.spent_in(AttentionLogger), len(picture_steps(steps))
    rest, usual = stopwatch.seconds - logging, TrainSettings()
    usual_rest = rest / (settings.epochs * len(data.train)) * usual.epochs * CIFAR_IMAGES
    usual_logging = len(picture_steps(usual.epochs * CIFAR_IMAGES // usual.batch_size)) * logging / times
    found = {"fraction_of_bare_step": bare / stopwatch.seconds, "fraction_without_pictures": bare / rest}
    found |= {"fit_seconds": stopwatch.seconds, "bare_seconds": bare, "steps": steps}
    logged = {"share": usual_logging / (usual_logging + usual_rest), "share_of_this_run": logging / stopwatch.seconds}
    return {
        "end_to_end": found | {name: timing.facts(resident) for name, timing in timings.items()},
        "attention_logging": logged | {"seconds_each": logging / times, "times": times},
    }


def _bare(settings: TrainSettings, data: ImageData, classes: int, device: Device) -> dict[str, Work]:
    """A step and a validation batch of this training, and nothing around them."""
    vit = ViT(image_size=settings.image_size, classes=classes, **settings.group("model")).to(device.name)
    module = classifier(vit, settings, data, device)
    groups = parameter_groups(vit, lr=module.lr, muon_lr=module.muon_lr, weight_decay=module.weight_decay)
    images, labels = (part[: settings.batch_size].to(device.name) for part in data.train.tensors)
    images, optimizer = normalize(images, data.mean, data.std), MuonAdamW(groups, dtype=module.muon_dtype)
    step = bare_step(vit, images, labels, optimizer, device, module.label_smoothing)
    infer = inference(vit, images, device)
    return {"step": lambda: (vit.train(), step()), "validation": lambda: (vit.eval(), infer())}
