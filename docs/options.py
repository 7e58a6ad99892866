"""What each option gives: python docs/options.py DATA [NAME ...] trains, python docs/options.py writes the table.

DATA is a CIFAR-10 folder or zip as for data=folder. Every option (or those named) learns for three passes as trial.py
says, with seeds 0, 1 and 2, and is judged by the cross-entropy; its difference to the default is taken seed by seed.
What was measured is kept in options.json beside this file.
"""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from trial import SEEDS, fold, learn, record, recorded

from vit.data import load_images
from vit.model import ViT
from vit.model.position import AxialRotation
from vit.runs.machine import silence_unneeded, tune_allocator
from vit.settings import TrainSettings

FILE = Path(__file__).with_name("options.json")
PAGE = Path(__file__).with_name("options.md")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
PASSES = 3

DEFAULT = "default"
OPTIONS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "position=learned": {"position": "learned"},
    "position=rope": {"position": "rope"},
    "position=none": {"position": "none"},
    "similarity=cosine": {"similarity": "cosine"},
    "registers=4": {"registers": 4},
    "drop_path=0.1": {"drop_path": 0.1},
    "init=mimetic": {"init": "mimetic"},
    "trivial_augment=true": {"trivial_augment": True},
    "erasing=0.25": {"erasing": 0.25},
    "mixup=0.8": {"mixup": 0.8},
    "cutmix=1": {"cutmix": 1.0},
    "ema=0.99": {"ema": 0.99},
    "pool=cls": {"pool": "cls"},
    "pool=sequence": {"pool": "sequence"},
    "position=rope similarity=cosine": {"position": "rope", "similarity": "cosine"},
}


def layer_scale(vit: ViT) -> None:
    """Touvron et al. 2021 (arXiv 2103.17239): a learned factor for each channel of each half-layer, which begins at 0.1
    where the last matrix begins as the others do."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.full((vit.head.in_features,), 0.1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor.to(x.dtype)

    for layer in vit.layers:
        for half, name in ((layer.attention, "proj"), (layer.mlp, "fc2")):
            last = getattr(half, name)
            nn.init.xavier_uniform_(last.weight)
            setattr(half, name, nn.Sequential(last, Scale()))


def rope_beside_sincos(vit: ViT) -> None:
    for layer in vit.layers:
        attention: Any = layer.attention
        attention.rotation = AxialRotation(vit.grid, attention.proj.in_features // attention.heads)


# Tried, and no part of the project: what is done to the network after it is built.
TRIED: dict[str, Callable[[ViT], None]] = {
    "rope beside sincos": rope_beside_sincos,
    "layer scale": layer_scale,
}


def measure(root: Path, names: list[str]) -> None:
    silence_unneeded()
    tune_allocator()
    images = load_images("folder", root=root)
    for seed in SEEDS:
        for name in names:
            if f"{seed}" in recorded(FILE).get(name, {}):
                continue
            settings = TrainSettings.from_values({"epochs": PASSES, "seed": seed, **OPTIONS.get(name, {})})
            found, _ = learn(settings, fold(images, settings), TRIED.get(name))
            record(FILE, (name, f"{seed}"), found)
            print(f"{name}, seed {seed}: {found}", flush=True)


def table() -> str:
    """A row an option: means over its n seeds, and the mean difference to the default with its standard error."""
    results = recorded(FILE)
    rows = ["| option | n | cross-entropy | difference | accuracy |", "|---|---|---|---|---|"]
    base = results[DEFAULT]
    for name in (name for name in (*OPTIONS, *TRIED) if name in results):
        seeds = [seed for seed in results[name] if seed in base]
        losses = [results[name][seed]["loss"] for seed in seeds]
        differences = [loss - base[seed]["loss"] for loss, seed in zip(losses, seeds, strict=True)]
        accuracy = statistics.mean(results[name][seed]["accuracy"] for seed in seeds)
        told = f"{statistics.mean(differences):+.3f}"
        if len(seeds) > 1:
            told += f" ± {statistics.stdev(differences) / len(seeds) ** 0.5:.3f}"
        shown = f"{name} (left out)" if name in TRIED else f"`{name}`"
        told = "" if name == DEFAULT else told
        rows.append(f"| {shown} | {len(seeds)} | {statistics.mean(losses):.3f} | {told} | {100 * accuracy:.1f} % |")
    return "\n".join(rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]), sys.argv[2:] or [*OPTIONS, *TRIED])
    else:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}")
