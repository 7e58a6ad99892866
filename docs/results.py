"""Writes results.md and results.png from results/*.json: the result.json of runs, and screening.json.

python docs/results.py; a new result: cp RUN/result.json docs/results/RECIPE_seed-S.json
"""

import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

FOLDER = Path(__file__).with_name("results")
PAGE = Path(__file__).with_name("results.md")
PLOT = Path(__file__).with_name("results.png")
SCREENING = "screening.json"
BASE = ("10", "batch_size=128 muon_lr=0.01")  # what the others are compared with: passes and words
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"

# Of pure ViTs on the original 32×32 images, as their authors report them: the best epoch on the test set, one seed.
PUBLISHED = [
    (80, 82.2, "leonardotonelli/optimizers-CIFAR10, 192/6/6, AdamW, TrivialAugment; 31 min on an RTX 5090"),
    (200, 80.0, "kentaroy47/vision-transformers-cifar10, 512/6/8, RandAugment"),
    (200, 90.92, "omihub777/ViT-CIFAR, 384/7/12, AutoAugment; 2 h 14 min on a V100"),
    (200, 92.58, "SHI-Labs/Compact-Transformers, CVT 256/6-7, sequence pooling"),
    (300, 94.53, "aanna0701/SPT_LSA_ViT, 192/9/12 with shifted-patch tokens and locality attention"),
]

Result = dict[str, Any]


def results() -> list[Result]:
    files = sorted(file for file in FOLDER.glob("*.json") if file.name != SCREENING)
    return [json.loads(file.read_text()) for file in files]


def by_recipe(found: list[Result]) -> dict[str, list[Result]]:
    recipes: dict[str, list[Result]] = {}
    for result in found:
        recipes.setdefault(result["recipe"], []).append(result)
    return recipes


def reached(found: list[Result]) -> str:
    """A row a recipe."""
    lines = [
        "| recipe | passes | test accuracy, last weights | worst | n | minutes, the whole command | training images |",
        "|---|---|---|---|---|---|---|",
    ]
    for recipe, runs in by_recipe(found).items():
        accuracies = [100 * run["test_accuracy"] for run in runs]
        spread = f" ± {statistics.stdev(accuracies):.2f}" if len(runs) > 1 else ""
        minutes = statistics.mean(run["minutes"] for run in runs)
        cells = [f"`{recipe}`", str(runs[0]["passes"]), f"{statistics.mean(accuracies):.2f}{spread} %"]
        cells += [f"{min(accuracies):.2f} %", str(len(runs)), f"{minutes:.0f} on {runs[0]['hardware']}"]
        lines.append(f"| {' | '.join([*cells, str(runs[0]['train_images'])])} |")
    return "\n".join(lines)


def published() -> str:
    lines = ["| passes | top-1, best epoch on test | who, what |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {passes} | {top1} % | {who} |" for passes, top1, who in PUBLISHED)])


def tried() -> str:
    """A row an experiment: differences to BASE seed by seed, with their standard error."""
    screened = json.loads((FOLDER / SCREENING).read_text())
    base = screened[BASE[0]][BASE[1]]
    lines = ["| passes | what | n | cross-entropy | difference | accuracy |", "|---|---|---|---|---|---|"]
    found = [(passes, words, seeds) for passes, of in screened.items() for words, seeds in of.items()]
    for passes, words, seeds in sorted(found, key=lambda row: statistics.mean(of["loss"] for of in row[2].values())):
        losses, accuracies = ([of[what] for of in seeds.values()] for what in ("loss", "accuracy"))
        differences = [of["loss"] - base[seed]["loss"] for seed, of in seeds.items() if seed in base]
        told = f"{statistics.mean(differences):+.3f}" if seeds is not base else ""
        if len(differences) > 1 and seeds is not base:
            told += f" ± {statistics.stdev(differences) / len(differences) ** 0.5:.3f}"
        cells = [passes, f"`{words}`", str(len(seeds)), f"{statistics.mean(losses):.3f}", told]
        lines.append(f"| {' | '.join([*cells, f'{100 * statistics.mean(accuracies):.1f} %'])} |")
    return "\n".join(lines)


def plot(found: list[Result]) -> Figure:
    """Validation accuracy against passes and minutes; published figures as points."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, (recipe, runs) in enumerate(by_recipe(found).items()):
        for run in runs:
            curve = [row for row in run["curve"] if row.get("validation_accuracy") is not None]
            accuracy, passes = [100 * row["validation_accuracy"] for row in curve], [row["epoch"] for row in curve]
            minutes = [run["minutes"] * epoch / run["passes"] for epoch in passes]
            label = f"{recipe}, validation" if run is runs[0] else None
            left.plot(passes, accuracy, color=f"C{number}", label=label, linewidth=1)
            right.plot(minutes, accuracy, color=f"C{number}", linewidth=1)
            left.plot(run["passes"], 100 * run["test_accuracy"], "*", color=f"C{number}")
            right.plot(run["minutes"], 100 * run["test_accuracy"], "*", color=f"C{number}")
    left.plot(*zip(*((passes, top1) for passes, top1, _ in PUBLISHED), strict=True), "k.", label="published, test")
    left.set(xlabel="passes over the training images", ylabel="accuracy, %", xscale="log")
    right.set(xlabel="minutes of the whole command, evenly over the passes")
    left.legend()
    return figure


def tables(found: list[Result]) -> str:
    return "\n\n".join([reached(found), published(), tried()])


if __name__ == "__main__":
    runs = results()
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    assert after, f"{PAGE} has lost {END}"
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(runs)}\n\n{END}{after}")
    plot(runs).savefig(PLOT, dpi=100)
