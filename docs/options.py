"""What each option gives: python docs/options.py DATA [NAME ...] trains, python docs/options.py writes the table.

DATA is a CIFAR-10 folder or zip as for data=folder. Every option (or those named) learns for three passes, with seeds
0, 1 and 2, from 10,000 training images, always the same ones, and is judged by the cross-entropy of the usual 5,000
validation images. Its difference to the default is taken seed by seed. The test images are not looked at. What was
measured is kept in options.json beside this file, and measured again only if it is not there.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from lightning.pytorch import Trainer
from torch import nn

from vit.data import ImageData, load_images
from vit.data.datamodule import InMemory
from vit.model import ViT
from vit.model.position import AxialRotation
from vit.runs.machine import commit, silence_unneeded, tune_allocator
from vit.runs.train import averaging, classifier
from vit.settings import TrainSettings
from vit.training.precision import choose

FILE = Path(__file__).with_name("options.json")
PAGE = Path(__file__).with_name("options.md")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
IMAGES, PASSES, SEEDS = 10_000, 3, (0, 1, 2)

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


def learn(settings: TrainSettings, data: ImageData, change: Callable[[ViT], None] | None) -> dict[str, float]:
    """Train, and measure on the validation images; cross-entropy in nats, accuracy as a share of 1."""
    device = choose(settings.device, settings.precision)
    torch.manual_seed(settings.seed)
    vit = ViT(image_size=32, classes=10, **settings.group("model"))
    if change is not None:
        change(vit)
    module = classifier(vit, settings, data, device)
    trainer = Trainer(
        accelerator=device.name,
        precision=device.precision,  # type: ignore[arg-type]
        max_epochs=settings.epochs,
        callbacks=averaging(settings, device),
        check_val_every_n_epoch=settings.epochs,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    began = time.perf_counter()
    trainer.fit(module, data)
    found = {tag.removeprefix("validation/"): float(value) for tag, value in trainer.callback_metrics.items()}
    return {"loss": found["loss"], "accuracy": found["accuracy"], "seconds": time.perf_counter() - began}


def measure(root: Path, names: list[str]) -> None:
    silence_unneeded()
    tune_allocator()
    images = load_images("folder", root=root)
    results = json.loads(FILE.read_text()) if FILE.exists() else {}
    for seed in SEEDS:
        for name in names:
            if f"{seed}" in results.get(name, {}):
                continue
            settings = TrainSettings.from_values({"epochs": PASSES, "seed": seed, **OPTIONS.get(name, {})})
            data = ImageData(images, validation=None, batch_size=settings.batch_size, seed=seed)
            fold = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[:IMAGES]
            data.train = InMemory(data.train.images[fold], data.train.labels[fold])
            found = learn(settings, data, TRIED.get(name)) | {"commit": commit()}
            with FileLock(FILE.with_suffix(".lock")):  # several may measure at once
                results = json.loads(FILE.read_text()) if FILE.exists() else {}
                results.setdefault(name, {})[f"{seed}"] = found
                FILE.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{name}, seed {seed}: {found}", flush=True)


def table() -> str:
    """A row an option: means over the seeds, and the mean difference to the default with its standard error."""
    results = json.loads(FILE.read_text())
    rows = ["| option | cross-entropy | difference | accuracy |", "|---|---|---|---|"]
    base = results[DEFAULT]
    order = [name for name in (*OPTIONS, *TRIED) if name in results]
    for name, by_seed in ((name, results[name]) for name in order):
        loss = [by_seed[seed]["loss"] for seed in base]
        difference = [by_seed[seed]["loss"] - base[seed]["loss"] for seed in base]
        error = statistics.stdev(difference) / len(difference) ** 0.5
        accuracy = statistics.mean(by_seed[seed]["accuracy"] for seed in base)
        told = "" if name == DEFAULT else f"{statistics.mean(difference):+.3f} ± {error:.3f}"
        rows.append(f"| {name} | {statistics.mean(loss):.3f} | {told} | {100 * accuracy:.1f} % |")
    return "\n".join(rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]), sys.argv[2:] or [*OPTIONS, *TRIED])
    else:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}")
