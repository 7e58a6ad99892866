"""What heads do under a change: python docs/studies.py STUDY DATA trains and measures; without DATA it writes the page.

STUDY is heads or cutmix, DATA a CIFAR-10 folder or zip as for data=folder. Every variant learns as trial.py says, with
seeds 0, 1 and 2; then the attention of 500 validation images is measured, head by head. `python docs/studies.py speed`
times training steps of the variants of heads, on an otherwise idle machine. All is kept in docs/studies.
"""

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor
from trial import SEEDS, fold, learn, record, recorded

from vit.data import load_images, normalize
from vit.evaluation.timing import take_turns
from vit.inspection.maps import readout_maps
from vit.inspection.measures import attention_distance, attention_entropy, attention_shares, head_similarity
from vit.inspection.pictures import attention_sheet, png
from vit.model import ViT
from vit.runs.machine import commit, silence_unneeded, tune_allocator
from vit.settings import TrainSettings

FOLDER = Path(__file__).with_name("studies")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
MEASURED = 500  # images
SHOWN = (3, 7, 8)  # cat, horse, ship: the first image of each is shown
EVEN = 16.546  # pixels: the distance of even attention on 8×8 patches of 4
BATCH, TURNS = 256, 20  # of the speed


@dataclass(frozen=True)
class Study:
    """Variants by name, the first of which is what the others are compared with, and the layer whose maps are shown."""

    passes: int
    base: dict[str, Any]
    variants: dict[str, dict[str, Any]]
    layer: int


STUDIES = {
    "heads": Study(
        passes=3,
        base={"similarity": "cosine", "init": "mimetic"},
        variants={f"heads={heads}": {"heads": heads} for heads in (8, 1, 2, 4, 16)},
        layer=-1,
    ),
    "cutmix": Study(
        passes=8,
        base={},
        variants={"cutmix=0": {}, "cutmix=1": {"cutmix": 1.0}},
        layer=0,
    ),
}


def settings_of(study: Study, variant: str, seed: int) -> TrainSettings:
    return TrainSettings.from_values(study.base | study.variants[variant] | {"epochs": study.passes, "seed": seed})


def rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def measures(vit: ViT, images: Tensor) -> dict[str, Any]:
    """Of every layer, numbers of every head: distance in pixels, entropy as a share of the largest, what a patch gives
    to itself; and how alike the heads of the layer are. Images are normalised, (B,C,H,W)."""
    found: dict[str, list] = {"distance": [], "entropy": [], "itself": [], "similarity": []}
    for weights in vit.attend(images).maps:
        found["distance"].append(rounded(attention_distance(weights, grid=vit.grid, patch_size=32 // vit.grid[0])))
        found["entropy"].append(rounded(attention_entropy(weights)))
        found["itself"].append(rounded(attention_shares(weights, prefix_tokens=0)[0]))
        found["similarity"].append(round(float(head_similarity(weights)), 4))
    return found


def measure(name: str, root: Path) -> None:
    silence_unneeded()
    tune_allocator()
    images, study, file = load_images("folder", root=root), STUDIES[name], FOLDER / f"{name}.json"
    for seed in SEEDS:
        for variant in study.variants:
            if f"{seed}" in recorded(file).get(variant, {}):
                continue
            settings = settings_of(study, variant, seed)
            data = fold(images, settings)
            found, vit = learn(settings, data)
            pictures, labels = data.validation.images, data.validation.labels  # type: ignore[union-attr]
            measured = pictures[:: len(pictures) // MEASURED]  # they come class by class
            with torch.no_grad():
                numbers = measures(vit.eval(), normalize(measured, data.mean, data.std))
            if seed == 0:
                shown = pictures[[int((labels == label).nonzero()[0]) for label in SHOWN]]
                attention = vit.attend(normalize(shown, data.mean, data.std))
                maps = readout_maps(attention.maps[study.layer], attention.readout, grid=vit.grid).detach()
                titles = [images.classes[label] for label in SHOWN]
                (FOLDER / f"{variant}.png").write_bytes(png(attention_sheet(shown, maps, titles)))
            record(file, (variant, f"{seed}"), found | numbers)
            print(f"{variant}, seed {seed}: {found}", flush=True)


def time_steps() -> None:
    """Forward and backward of 256 images as training does them, the variants of heads in turns."""
    tune_allocator()
    study, file = STUDIES["heads"], FOLDER / "heads.json"
    pictures, labels = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH) % 10
    networks = {}
    for variant in study.variants:
        networks[variant] = ViT(image_size=32, classes=10, **settings_of(study, variant, 0).group("model"))

    def step(vit: ViT) -> None:
        vit.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(vit(pictures), labels)
        loss.backward()

    times = take_turns({variant: lambda vit=vit: step(vit) for variant, vit in networks.items()}, TURNS)
    for variant, timing in times.items():
        facts = {"milliseconds": round(1000 * timing.median, 1), "threads": torch.get_num_threads()}
        record(file, (variant, "step"), facts | {"turns": TURNS, "commit": commit()})
        print(variant, facts, flush=True)


def seeds_of(runs: dict[str, Any]) -> dict[str, Any]:
    return {seed: run for seed, run in runs.items() if seed != "step"}


def spread(values: list[float], digits: int) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def rows(study: Study, results: dict[str, Any]) -> Iterator[list[str]]:
    """A row a variant; mean ± standard deviation over the seeds, differences with their standard error."""
    layers = {"first": 0, "last": -1}
    head = ["variant", "n", "accuracy, %", "cross-entropy", "difference"]
    for layer in layers:
        head += [f"{layer} layer: nearest head", "mean"]
    yield [*head, "heads alike", "step, ms"]
    base = next(iter(study.variants))
    for variant in study.variants:
        runs = seeds_of(results[variant])
        differences = [run["loss"] - results[base][seed]["loss"] for seed, run in runs.items()]
        told = ""
        if variant != base:
            told = f"{statistics.mean(differences):+.3f}"
            if len(differences) > 1:
                told += f" ± {statistics.stdev(differences) / len(differences) ** 0.5:.3f}"
        cells = [f"`{variant}`", str(len(runs)), spread([100 * run["accuracy"] for run in runs.values()], 1)]
        cells += [spread([run["loss"] for run in runs.values()], 3), told]
        for layer in layers.values():
            of_heads = [run["distance"][layer] for run in runs.values()]
            cells.append(spread([min(distances) for distances in of_heads], 1))
            cells.append(spread([statistics.mean(distances) for distances in of_heads], 1))
        alike = [statistics.mean(run["similarity"]) for run in runs.values()]
        several = any(len(distances) > 1 for run in runs.values() for distances in run["distance"])
        step = results[variant].get("step")
        yield [*cells, spread(alike, 2) if several else "", f"{step['milliseconds']:.0f}" if step else ""]


def table(study: Study, results: dict[str, Any]) -> str:
    head, *body = rows(study, results)
    filled = [column for column, _ in enumerate(head) if any(row[column] for row in body)]
    lines = [head, ["---"] * len(head), *sorted(body, key=lambda row: row[0].rjust(99))]
    return "\n".join(f"| {' | '.join(line[column] for column in filled)} |" for line in lines)


def chart(study: Study, results: dict[str, Any]) -> Figure:
    """Accuracy by variant, and of every head of every seed the distance and the entropy, by layer."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    accuracy, distance, entropy = figure.subplots(1, 3, width_ratios=(1, 2, 2))
    names = sorted(study.variants, key=lambda name: name.rjust(99))
    for place, variant in enumerate(names):
        runs = list(seeds_of(results[variant]).values())
        colour = f"C{place}"
        accuracy.plot([place] * len(runs), [100 * run["accuracy"] for run in runs], "o", color=colour)
        shift = 0.7 * (place / max(1, len(names) - 1) - 0.5)
        for axes, what in ((distance, "distance"), (entropy, "entropy")):
            points = [
                (layer + shift, value)
                for run in runs
                for layer, values in enumerate(run[what], start=1)
                for value in values
            ]
            axes.plot(*zip(*points, strict=True), ".", color=colour, markersize=5, alpha=0.7, label=variant)
    accuracy.set_xticks(range(len(names)), names, rotation=30)
    accuracy.set_ylabel("validation accuracy, %")
    accuracy.margins(x=0.2)
    distance.axhline(EVEN, color="grey", linestyle=":")
    distance.set(xlabel="layer", ylabel="distance, pixels; dotted: even", ylim=(0, None))
    entropy.set(xlabel="layer", ylabel="entropy, share of the largest", ylim=(0, 1.02))
    distance.legend(fontsize=8)
    return figure


def write(name: str) -> None:
    study, results, page = STUDIES[name], recorded(FOLDER / f"{name}.json"), FOLDER / f"{name}.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    assert after, f"{page} has lost {END}"
    page.write_text(f"{before}{BEGIN}\n\n{table(study, results)}\n\n{END}{after}")
    chart(study, results).savefig(FOLDER / f"{name}.png", dpi=90)


if __name__ == "__main__":
    if sys.argv[1:] == ["speed"]:
        time_steps()
    elif len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
    else:
        write(sys.argv[1])
