"""result.json: what a run reached, and everything that is needed to reach it again."""

import json
from pathlib import Path
from typing import Any

import torch

from vit.evaluation.cost import forward_flops, parameter_count
from vit.evaluation.score import Score
from vit.model import ViT
from vit.runs.machine import commit, hardware
from vit.training.checkpoint import Facts
from vit.training.logger import METRICS, read_metrics
from vit.training.precision import Device

RESULT = "result.json"


def tested_epoch(folder: Path) -> int | None:
    """The epoch that a result.json in the folder is about."""
    if not (folder / RESULT).is_file():
        return None
    try:
        return json.loads((folder / RESULT).read_text(encoding="utf-8"))["passes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def describe(
    vit: ViT, facts: Facts, test: Score, *, folder: Path, device: Device, minutes: float, command: str
) -> dict[str, Any]:
    """Plain values. Accuracies are shares of 1; flops are those of one image's forward pass."""
    return {
        "recipe": facts.settings["recipe"],
        "seed": facts.settings["seed"],
        "passes": facts.epoch,
        "train_images": facts.train_images,
        "images": facts.images,
        **({"begun_from": facts.begun_from} if facts.begun_from else {}),
        "test_accuracy": test.accuracy,
        "test_top5": test.top5,
        "test_loss": test.loss,
        "test_images": test.n,
        "validation_accuracy": facts.validation_accuracy,
        "weights": f"{facts.weights}, last epoch",
        "parameters": parameter_count(vit),
        "flops": forward_flops(vit),
        "minutes": round(minutes, 2),
        "hardware": hardware(device.name),
        "precision": facts.precision,
        "torch": torch.__version__,
        "commit": commit(),
        "command": command,
        "settings": facts.settings,
        "curve": [
            {name: float(value) if value else None for name, value in row.items()}
            for row in read_metrics(folder / METRICS)
        ],
    }
