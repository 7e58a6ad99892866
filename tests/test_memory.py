"""Memory stays what it was, however long a run or a sweep lasts; and its end gets one line."""

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.running import REPOSITORY, only_run
from vit.training.classifier import Classifier
from vit.training.logger import WriteMetrics


def test_R5_as_many_tensors_after_epoch_10_as_after_epoch_2(
    words: list[str], train: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was logged, no map and no graph is kept."""
    alive: list[tuple[int, int]] = []
    end = WriteMetrics.on_train_epoch_end

    def counting(self: WriteMetrics, *arguments: Any) -> None:
        end(self, *arguments)
        gc.collect()
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        alive.append((len(tensors), sum(tensor.nbytes for tensor in tensors)))

    monkeypatch.setattr(WriteMetrics, "on_train_epoch_end", counting)
    assert train([*words, "epochs=10", "ema=0.9", "trivial_augment=true", "cutmix=1"]) == 0
    assert len(alive) == 10
    assert alive[1] == alive[9]


def test_H17_every_job_of_a_sweep_begins_with_the_same_memory(words: list[str]) -> None:
    """In a process of its own, since what pytest holds would hide it; resident megabytes before each job."""
    code = f"""
import gc, json, os, sys
from pathlib import Path
from vit import command_line
from vit.runs import train as runs
begun, resident = [], lambda: int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
train = runs.train
def counting(*a, **k):
    begun.append(resident())
    return train(*a, **k)
runs.train = counting
sys.argv = ["train.py", *{[*words, "--multirun", "epochs=1", "seed=1,1,1,1"]!r}]
try:
    command_line.train(Path({str(REPOSITORY / "configs")!r}))
finally:
    print(json.dumps(begun))
"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("resident memory is read from /proc")
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    begun = json.loads(process.stdout.strip().splitlines()[-1])
    assert len(begun) == 4
    assert begun[3] - begun[1] < 4


@pytest.mark.parametrize("message", ["CUDA out of memory. Tried to allocate 2.00 GiB.", "not enough memory: you tried"])
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
            raise torch.OutOfMemoryError(message)
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
