"""Averaged weights: what is averaged, what is validated, and which weights a checkpoint holds."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from torch.testing import assert_close

from tests.references import tiny_vit
from tests.running import only_run
from vit.data import Augmentation, ImageData, load_images, normalize
from vit.runs.machine import silence_unneeded
from vit.training import load
from vit.training.averaging import AverageWeights
from vit.training.checkpoint import read_checkpoint
from vit.training.classifier import Classifier


class Remember(Callback):
    """The weights after each step."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        self.weights.append({name: value.detach().clone() for name, value in pl_module.vit.named_parameters()})


@pytest.mark.parametrize("decay", [0.3, 0.99])
def test_the_average_is_that_of_its_formula(decay: float, tiny: Path) -> None:
    silence_unneeded()
    data = ImageData(load_images("folder", root=tiny, image_size=(8, 8)), validation=16, batch_size=6, seed=0)
    module = Classifier(tiny_vit(classes=2).train(), mean=data.mean, std=data.std, augmentation=Augmentation(crop=2))
    remember = Remember()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=[remember, AverageWeights(decay, device="cpu")],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, data)
    assert len(remember.weights) == 16
    expected = remember.weights[0]
    for step, weights in enumerate(remember.weights[1:], start=1):
        d = min(decay, (1 + step) / (10 + step))
        expected = {name: d * expected[name] + (1 - d) * weights[name] for name in weights}
    for name, value in module.vit.named_parameters():  # the average takes the place of the weights at the end
        assert_close(value.detach(), expected[name], atol=1e-6, rtol=1e-5)


def test_what_is_validated_saved_and_evaluated_is_the_average(
    words: list[str], tiny: Path, tmp_path: Path, train: Callable, evaluate: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([*words, "epochs=3", "ema=0.9", "precision=32-true", "lr=0.05"]) == 0
    run = only_run(tmp_path / "runs")
    data = ImageData(load_images("folder", root=tiny, image_size=(8, 8)), validation=16, batch_size=6, seed=0)
    with open(run / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    best = max(rows, key=lambda row: float(row["validation_accuracy"]))
    for name, row in (("last.ckpt", rows[-1]), ("best.ckpt", best)):
        content, facts = read_checkpoint(run / name)
        assert facts.weights == "averaged"
        assert facts.epoch == int(row["epoch"])
        raw = content["current_model_state"]
        assert content["state_dict"].keys() == raw.keys()
        assert any(not torch.equal(value, raw[key]) for key, value in content["state_dict"].items())
        vit, _ = load(run / name)
        with torch.no_grad():
            logits = vit(normalize(data.validation.images, data.mean, data.std))
        loss = F.cross_entropy(logits, data.validation.labels).item()
        assert loss == pytest.approx(float(row["validation_loss"]), abs=1e-4)
    trained = capsys.readouterr().out
    assert evaluate([f"checkpoint={run}", words[1]]) == 0
    found = capsys.readouterr().out
    assert "averaged weights" in found
    line = next(line for line in trained.splitlines() if line.startswith("test accuracy"))
    assert line in found.splitlines()


def test_without_averaging_a_checkpoint_says_raw(small_run: Path) -> None:
    content, facts = read_checkpoint(small_run / "last.ckpt")
    assert facts.weights == "raw"
    assert "current_model_state" not in content
