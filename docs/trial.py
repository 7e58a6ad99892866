"""A short training from 10,000 CIFAR-10 images, always the same ones, judged by the usual 5,000 validation images.

What options.py and screening.py share. The test images are not looked at. What was measured is kept in a
JSON file and measured again only if it is not there; several programs may measure at once.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from lightning.pytorch import Trainer

from vit.data import ImageData
from vit.data.datamodule import InMemory
from vit.data.image_set import ImageSet
from vit.model import ViT
from vit.runs.machine import commit
from vit.runs.train import averaging, classifier
from vit.settings import TrainSettings
from vit.training.precision import choose

IMAGES, SEEDS = 10_000, (0, 1, 2)


def fold(images: ImageSet, settings: TrainSettings) -> ImageData:
    """Validation images as a run with this seed has them, and 10,000 of the others."""
    data = ImageData(images, validation=None, batch_size=settings.batch_size, seed=settings.seed)
    chosen = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[:IMAGES]
    data.train = InMemory(data.train.images[chosen], data.train.labels[chosen])
    return data


def learn(
    settings: TrainSettings, data: ImageData, change: Callable[[ViT], None] | None = None
) -> tuple[dict[str, Any], ViT]:
    """Train, and measure on the validation images; cross-entropy in nats, accuracy as a share of 1.

    `change` is done to the network after it is built.
    """
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
    seconds = time.perf_counter() - began
    return {"loss": found["loss"], "accuracy": found["accuracy"], "seconds": seconds, "commit": commit()}, vit


def recorded(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def record(file: Path, keys: Sequence[str], found: object) -> None:
    """Keep what was found where the keys lead, one within the other."""
    with FileLock(file.with_suffix(".lock")):
        results = recorded(file)
        inner = results
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = found
        file.write_text(json.dumps(results, indent=1) + "\n")
