"""This ViT and those of other libraries: how fast each trains and infers, timed in turns.

All have the same threads, the same allocator and autocast to the same type, which is the one that training would
choose here. A training step is forward, cross-entropy, backward and fused AdamW, on one resident batch. "As installed"
leaves a library's attention as it comes; "explicit" forms the weights, and "compiled" is `torch.compile`. A peer at its
best is the fastest of its variants. Peers with a class token that cannot be left out are compared with this ViT with
one, so that tokens are always as many.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.evaluation.cost import RecordProducts, forward_flops, parameter_count
from vit.evaluation.timing import Timing, take_turns
from vit.runs.peers import CLASSES, PEERS, QUICK, Architecture, this_vit
from vit.settings import BenchmarkSettings
from vit.training.precision import Device

Say = Callable[[str], None]
Work = Callable[[], object]

OWN = "this ViT"
INSTALLED, EXPLICIT = "as installed", "explicit"
SQUARE = {"cpu": 4096, "cuda": 8192}  # side of the product whose rate is the ceiling
PILOT = 3  # samples that decide which variant of a peer is compiled
# A network compiled for training and for inference counts twice, and all networks together; beyond, dynamo would go on
# uncompiled without a word.
DYNAMO = {"recompile_limit": 256, "fail_on_recompile_limit_hit": True}


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
        self.say(f"{what}: {samples} turns of {len(works)}")
        return take_turns(works, samples, finish=self.finish)

    def finish(self) -> None:
        """Wait until the device has done all that it was told."""
        if self.device.name != "cpu":
            getattr(torch, self.device.name).synchronize()


@dataclass(frozen=True)
class Contender:
    """A network that is measured, in one of the ways in which it can run."""

    name: str
    variant: str
    tokens: int
    build: Callable[[], nn.Module]
    compiled: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.variant


class Runner(NamedTuple):
    """A network, and what is timed of it."""

    network: nn.Module
    step: Work
    infer: Work


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


def to_compile(rows: list[Contender], *timings: Mapping[Any, Timing]) -> list[Contender]:
    """This ViT, and of each peer the variant that is fastest in one of the timings: once more, compiled."""
    fastest = set()
    for timing in timings:
        of_peer: dict[tuple[str, int], Contender] = {}
        for row in sorted((row for row in rows if row.key in timing), key=lambda row: timing[row.key].median):
            of_peer.setdefault((row.name, row.tokens), row)
        fastest |= {row.key for row in of_peer.values()}
    kept = [row for row in rows if row.key in fastest]
    return [dataclasses.replace(row, variant=f"{row.variant}, compiled", compiled=True) for row in kept]


def noise(size: int, side: int, device: Device) -> tuple[Tensor, Tensor]:
    """Images float (B,3,H,W) and labels (B,)."""
    images = torch.randn(size, 3, side, side, device=device.name)
    return images, torch.randint(CLASSES, (size,), device=device.name)


def autocast(device: Device) -> torch.autocast:
    """The precision that training chooses on this device."""
    return torch.autocast(device.name, device.dtype, enabled=device.dtype != torch.float32)


def runner(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    device: Device,
    *,
    optimizer: Optimizer | None = None,
    smoothing: float = 0.0,
) -> Runner:
    """A training step and an inference on images float (B,C,H,W) and labels (B,); without an optimiser, with AdamW."""
    learner = optimizer or torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        network.train()
        with autocast(device):
            loss = F.cross_entropy(network(images).float(), labels, label_smoothing=smoothing)
        learner.zero_grad()
        loss.backward()
        learner.step()

    @torch.inference_mode()
    def infer() -> None:
        network.eval()
        with autocast(device):
            network(images)

    return Runner(network, step, infer)


def prepare(contender: Contender, images: Tensor, labels: Tensor, device: Device) -> Runner | str:
    """A runner that took a step and inferred once; of a peer that is missing or fails, why it cannot be measured."""
    try:
        network = contender.build().to(device.name)
        if contender.compiled:
            network.compile()
        made = runner(network, images, labels, device)
        made.step()
        made.infer()
    except (Exception, SystemExit) as error:  # whatever it is, the others are measured all the same
        if contender.name == OWN and not contender.compiled:
            raise
        return reason(error)
    return made


def reason(error: BaseException) -> str:
    """Why something could not be measured, in one line."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed: pip install -e '.[bench]'"
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def speed(bench: Bench) -> dict[str, Any]:
    """Training and inference of all contenders, and how near the training step comes to what the machine can do."""
    settings, device = bench.settings, bench.device
    batch = noise(settings.batch_size, settings.image_size, device)
    prepared: dict[tuple[str, str], Runner | str] = {}

    def ready(more: list[Contender]) -> dict[Any, Runner]:
        for row in more:
            bench.say(f"preparing {', '.join(row.key)}")
            prepared[row.key] = prepare(row, *batch, device)
        return {key: made for key, made in prepared.items() if not isinstance(made, str)}

    rows = contenders(bench.architecture, quick=settings.quick)
    runners = ready(rows)
    side = SQUARE.get(device.name, 4096) // (2 if settings.quick else 1)
    left, right = (torch.randn(side, side, device=device.name).to(device.dtype) for _ in range(2))
    with torch._dynamo.config.patch(DYNAMO) if settings.compiled else contextlib.nullcontext():
        if settings.compiled:
            pilot = ({key: work[kind] for key, work in runners.items()} for kind in (1, 2))
            more = to_compile(rows, *(take_turns(works, PILOT, finish=bench.finish) for works in pilot))
            rows, runners = rows + more, ready(more)
        works: dict[Any, Work] = {key: made.step for key, made in runners.items()}
        steps = bench.turns(f"training, and a product of {side}×{side}", works | {"square": lambda: left @ right})
        inferences = bench.turns("inference", {key: made.infer for key, made in runners.items()})

    own = runners[rows[0].key]
    products = products_alone(bench, own.step)
    step_flops = 3 * settings.batch_size * forward_flops(own.network)  # type: ignore[arg-type]
    seen = sum(product["times"] * product["flops"] for product in products)
    alone = sum(product["times"] * product["seconds"] for product in products)
    training = compare(rows, prepared, steps, settings.batch_size)
    training |= {"square_side": side} | ceiling(
        step_seconds=steps[rows[0].key].median,
        step_flops=step_flops,
        rate=2 * side**3 / steps["square"].median,
        products_seconds=alone if seen > 0.9 * step_flops else None,
    )
    inference = compare(rows, prepared, inferences, settings.batch_size)
    return {"training": training, "inference": inference, "products": products}


def products_alone(bench: Bench, step: Work) -> list[dict[str, Any]]:
    """Every distinct matrix product of a step: its shapes, its operations, how many times it occurs, its time alone."""
    with RecordProducts() as recorded:
        step()
    works = {product: product.alone(bench.device.name) for product in recorded.counts}
    timings = bench.turns("each matrix product of a training step alone", works)
    shapes = [{"left": product.left.shape, "right": product.right.shape, "flops": product.flops} for product in works]
    times = recorded.counts.values()
    return [
        {**shape, "times": n, "seconds": timing.median}
        for shape, n, timing in zip(shapes, times, timings.values(), strict=True)
    ]


def ceiling(
    *, step_seconds: float, step_flops: float, rate: float, products_seconds: float | None
) -> dict[str, float | None]:
    """How near a step comes to the rate of one large product, in FLOP/s, and to its own products each timed alone.

    A step counts three times the forward pass's operations. products_seconds is None where they are hidden in a fused
    kernel, whose floor is unknown.
    """
    floor = products_seconds
    return {
        "flops": step_flops,
        "square_flops_per_second": rate,
        "fraction_of_ceiling": step_flops / step_seconds / rate,
        "floor_seconds": floor,
        "floor_share_of_step": floor and floor / step_seconds,
        "fraction_of_ceiling_at_floor": floor and step_flops / floor / rate,
    }


def compare(
    rows: list[Contender], prepared: Mapping[Any, Runner | str], timings: Mapping[Any, Timing], batch_size: int
) -> dict[str, Any]:
    """Images a second, and how many times as fast this ViT is as each peer with as many tokens, by medians over turns.

    ratio_to_best_peer is the smallest of these. Ratios are None where no peer could be measured.
    """
    own = {row.tokens: timings[row.key] for row in rows if row.name == OWN and not row.compiled}
    ratios = {row.key: timings[row.key].times(own[row.tokens]) for row in rows if row.key in timings}
    table: list[dict[str, Any]] = []
    for row in rows:
        known = {"name": row.name, "variant": row.variant, "tokens": row.tokens}
        made = prepared[row.key]
        if isinstance(made, str):
            table.append({**known, "problem": made})
        else:
            ratio = dict(zip(("ratio", "ratio_low", "ratio_high"), ratios[row.key], strict=True))
            known["parameters"] = parameter_count(made.network)
            table.append({**known, **ratio, **timings[row.key].facts(batch_size)})
    peers = {key: ratio.median for key, ratio in ratios.items() if key[0] != OWN}
    best = min(peers, key=peers.__getitem__, default=None)
    return {
        "images_per_second": table[0]["images_per_second"],
        "ratio_to_best_peer": peers[best] if best else None,
        "best_peer": ", ".join(best) if best else None,
        "ratio_to_timm_as_installed": peers.get(("timm", INSTALLED)),
        "contenders": table,
    }
