"""Memory stays what it was, however long a run or a sweep lasts; and its end gets one line."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from tests.running import only_run
from vit.data import ImageData
from vit.training.classifier import Classifier
from vit.training.logger import WriteMetrics


def test_R5_as_many_tensors_after_epoch_10_as_after_epoch_2(
    words: list[str], train: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was logged, no map and no graph is kept."""
    alive: list[tuple[int, int]] = []
    end = WriteMetrics.on_train_epoch_end

    def counting(self: WriteMetrics, trainer: Trainer, module: Classifier) -> None:
        end(self, trainer, module)
        if trainer.current_epoch not in (1, 9):  # counting takes half a second
            return
        gc.collect()
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        alive.append((len(tensors), sum(tensor.numel() * tensor.element_size() for tensor in tensors)))

    monkeypatch.setattr(WriteMetrics, "on_train_epoch_end", counting)
    assert train([*words, "batch_size=24", "epochs=10", "ema=0.9", "trivial_augment=true", "cutmix=1"]) == 0
    assert len(alive) == 2
    assert alive[0] == alive[1]


def test_H17_nothing_of_a_sweeps_jobs_is_left_to_the_next(
    words: list[str], train: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network, optimiser, images and trainer of a job are gone when the next begins."""
    earlier: list[weakref.ref] = []
    left: list[int] = []
    fit = Trainer.fit

    def watched(self: Trainer, module: Classifier, data: ImageData, **keywords: Any) -> None:
        gc.collect()
        left.append(sum(thing() is not None for thing in earlier))
        earlier.extend(weakref.ref(thing) for thing in (self, module, module.vit, data, data.train.images))
        fit(self, module, data, **keywords)

    monkeypatch.setattr(Trainer, "fit", watched)
    assert train([*words, "batch_size=48", "--multirun", "epochs=1", "seed=1,1,1", "ema=0.9"]) == 0
    assert left == [0, 0, 0]


@pytest.mark.parametrize(
    "message",
    ["CUDA out of memory. Tried to allocate 2.00 GiB.", "not enough memory: you tried", "CUBLAS_STATUS_ALLOC_FAILED"],
)
def test_R5_running_out_of_memory_names_the_settings_to_lower(
    message: str,
    words: list[str],
    tmp_path: Path,
    train: Callable,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    step = Classifier.training_step

    def failing(self: Classifier, batch: Any, batch_idx: int) -> Any:
        if self.global_step == 10:
            raise RuntimeError(message)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Classifier, "training_step", failing)
    assert train([*words, "epochs=2"]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "lower batch_size=6" in line
    monkeypatch.undo()
    assert (only_run(tmp_path / "runs") / "last.ckpt").is_file()  # what was finished is there


def test_another_failure_is_shown_in_full(
    words: list[str], train: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def failing(self: Classifier, batch: Any, batch_idx: int) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Classifier, "training_step", failing)
    assert train([*words, "epochs=2"]) != 0
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "RuntimeError: a bug" in err
    assert "batch_size" not in err.splitlines()[-1]
