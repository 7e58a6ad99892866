"""A run that was stopped, however, and resumed equals one that was not: bit for bit, without gap or repeat."""

import csv
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from PIL import Image

from tests.running import TINY, only_run, run_apart
from tests.same_runs import curves, differences
from vit.training.checkpoint import read_checkpoint

DIE_AT_STEP = """
import os, signal
from vit.training.classifier import Classifier
step = Classifier.training_step
def dying(self, *arguments):
    if self.global_step == {step}:
        os.kill(os.getpid(), signal.{signal})
    return step(self, *arguments)
Classifier.training_step = dying
"""
DIE_IN_SAVE = """
import os, signal
from vit.training import checkpoint
replace = os.replace
def dying(part, path):
    dying.saves += str(path).endswith(".ckpt")
    if dying.saves == {save}:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(part, path)
dying.saves = 0
checkpoint.os.replace = dying
"""


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run of 4 epochs, 32 steps."""
    runs = tmp_path_factory.mktemp("whole")
    process = run_apart(["data=folder", f"data.root={tiny}", f"runs={runs}", *TINY, "epochs=4"])
    assert process.returncode == 0, process.stderr
    return only_run(runs)


EVERYTHING = "position=rope similarity=cosine registers=2 drop_path=0.3 pool=sequence ema=0.9"
STRONG = "trivial_augment=true erasing=0.5 mixup=0.5 cutmix=1 augment_until=0.7 patch_dropout=0.4 flat=0.2"


@pytest.mark.parametrize(
    "extra",
    [
        [],
        ["optimizer=adamw", "dropout=0.1", "attention_dropout=0.1", "pool=cls"],
        EVERYTHING.split(),
        STRONG.split(),
    ],
    ids=["default", "adamw", "everything", "strong"],
)
def test_C4_C5_C6_killed_at_step_19_of_32(
    extra: list[str], words: list[str], whole: Path, tmp_path: Path, train: Callable
) -> None:
    if extra:
        assert train([*words, *extra, f"runs={tmp_path / 'other'}", "epochs=4"]) == 0
        whole = only_run(tmp_path / "other")
    process = run_apart([*words, *extra, "epochs=4"], before=DIE_AT_STEP.format(step=19, signal="SIGKILL"))
    assert process.returncode == -signal.SIGKILL
    run = only_run(tmp_path / "runs")
    assert read_checkpoint(run / "last.ckpt")[1].epoch == 2
    assert train([f"resume={run}"]) == 0
    assert differences(whole, run) == []


@pytest.mark.parametrize("save", [1, 4])
def test_C8_killed_within_a_save(save: int, words: list[str], whole: Path, tmp_path: Path, train: Callable) -> None:
    process = run_apart([*words, "epochs=4"], before=DIE_IN_SAVE.format(save=save))
    assert process.returncode == -signal.SIGKILL
    run = only_run(tmp_path / "runs")
    assert list(run.glob("*.part"))
    assert train([f"resume={run}"]) == 0
    assert differences(whole, run) == []
    assert not list(run.glob("*.part"))


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_R1_B7_a_signal_ends_the_step_and_says_how_to_go_on(
    name: str, status: int, words: list[str], whole: Path, tmp_path: Path, train: Callable
) -> None:
    process = run_apart([*words, "epochs=4"], before=DIE_AT_STEP.format(step=19, signal=name))
    assert process.returncode == status, process.stderr
    run = only_run(tmp_path / "runs")
    assert f"resume={run}" in process.stdout
    assert "Traceback" not in process.stderr
    assert read_checkpoint(run / "last.ckpt")[1].epoch == 2
    assert [step for step, _ in curves(run)["validation/accuracy"]] == [8, 16]
    assert train([f"resume={run}"]) == 0
    assert differences(whole, run) == []


def test_C4_killed_before_the_first_checkpoint_begins_again(
    words: list[str], whole: Path, tmp_path: Path, train: Callable
) -> None:
    run_apart([*words, "epochs=4"], before=DIE_AT_STEP.format(step=3, signal="SIGKILL"))
    run = only_run(tmp_path / "runs")
    assert not (run / "last.ckpt").exists()
    assert train([f"resume={run}"]) == 0
    assert differences(whole, run) == []


def test_C6_more_epochs_are_announced_and_the_rate_is_planned_anew(
    words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([*words, "epochs=2", "warmup=0"]) == 0
    run = only_run(tmp_path / "runs")
    capsys.readouterr()
    assert train([f"resume={run}", "epochs=4"]) == 0
    assert "epochs 2 → 4: the learning rate is planned anew" in capsys.readouterr().out
    rates = dict(curves(run)["learning_rate/muon"])
    assert rates[32] == pytest.approx(0.02 * 1 / 32)
    with open(run / "metrics.csv", newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]


def test_C10_eleven_epochs_go_on_with_the_twelfth(
    words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([*words, "epochs=11", "depth=1", "batch_size=48"]) == 0
    run = only_run(tmp_path / "runs")
    capsys.readouterr()
    assert train([f"resume={run}", "epochs=12"]) == 0
    assert "epoch 11 is finished" in capsys.readouterr().out
    assert read_checkpoint(run / "last.ckpt")[1].epoch == 12


def test_C8_a_broken_checkpoint_is_named_and_the_whole_one_offered(
    finished: Path, train: Callable, evaluate: Callable, capsys: pytest.CaptureFixture
) -> None:
    content = (finished / "last.ckpt").read_bytes()
    (finished / "last.ckpt").write_bytes(content[:1000])
    for command in (train, evaluate):
        capsys.readouterr()
        key = "resume" if command is train else "checkpoint"
        assert command([f"{key}={finished}"]) != 0
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "last.ckpt is broken" in line
        assert "best.ckpt" in line
    assert train([f"resume={finished / 'best.ckpt'}"]) == 0


def test_C11_a_contradiction_is_refused(finished: Path, train: Callable, capsys: pytest.CaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    for word in ("heads=4", "seed=1", "data=shapes", "lr=0.5", "recipe=none"):
        capsys.readouterr()
        assert train([f"resume={finished}", word]) != 0
        assert word.partition("=")[0] in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert train([f"resume={finished}", "heads=2"]) == 0


def test_a_finished_run_is_tested_again(
    words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([*words, "epochs=1", "depth=1", "batch_size=48"]) == 0
    run = only_run(tmp_path / "runs")
    first = capsys.readouterr().out
    assert train([f"resume={run}"]) == 0
    line = next(line for line in first.splitlines() if line.startswith("test accuracy"))
    assert line in capsys.readouterr().out.splitlines()


def test_other_images_than_the_run_began_with_are_refused(
    finished: Path, tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    before = (finished / "last.ckpt").read_bytes()
    for part, number in (("train", 32), ("test", 8)):
        for name in ("cat", "dog"):
            (tmp_path / "other" / part / name).mkdir(parents=True)
            for i in range(number):
                Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / "other" / part / name / f"{i}.png")
    assert train([f"resume={finished}", f"data.root={tmp_path / 'other'}", "epochs=2"]) != 0
    assert "not the images that the run has learned from" in capsys.readouterr().err
    assert (finished / "last.ckpt").read_bytes() == before


@pytest.mark.parametrize(("place", "said"), [("typo", "typo is not there"), ("", "is no run folder")])
def test_C10_a_mistyped_run_is_named(
    place: str, said: str, tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([f"resume={tmp_path / place}", "heads=5"]) != 0
    assert said in capsys.readouterr().err


def test_the_command_of_a_result_leads_to_it(finished: Path, train: Callable) -> None:
    command = json.loads((finished / "result.json").read_text())["command"]
    assert "heads=2" in command
    assert train([f"resume={finished}"]) == 0
    assert json.loads((finished / "result.json").read_text())["command"] == command
    assert train([f"resume={finished}", "epochs=2"]) == 0
    assert json.loads((finished / "result.json").read_text())["command"].startswith(f"{command} && ")
    assert [step for step, _ in curves(finished)["test/accuracy"]] == [8, 16]  # one test for each number of epochs


def test_two_processes_do_not_train_in_one_folder(
    finished: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    with FileLock(finished / ".lock"):
        assert train([f"resume={finished}", "epochs=2"]) != 0
    assert "another process is training" in capsys.readouterr().err
    assert train([f"resume={finished}", "epochs=2"]) == 0


def test_C8_a_flipped_bit_is_noticed(
    finished: Path, words: list[str], train: Callable, evaluate: Callable, capsys: pytest.CaptureFixture
) -> None:
    path = finished / "last.ckpt"
    content = bytearray(path.read_bytes())
    value = read_checkpoint(path)[0]["state_dict"]["vit.layers.0.mlp.fc1.weight"].numpy().tobytes()
    content[content.index(value) + 100] ^= 1
    path.write_bytes(content)
    assert evaluate([f"checkpoint={path}", words[1]]) != 0
    assert "checksum" in capsys.readouterr().err


def test_C6_fewer_epochs_than_are_finished_are_refused(
    words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([*words, "epochs=2", "depth=1", "batch_size=48"]) == 0
    run = only_run(tmp_path / "runs")
    assert train([f"resume={run}", "epochs=1"]) != 0
    assert "2 are finished already" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"epoch,step\none,8\n", b"a,b\n1,2\n"])
def test_a_damaged_table_is_named(
    content: bytes, finished: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    (finished / "metrics.csv").write_bytes(content)
    capsys.readouterr()
    assert train([f"resume={finished}", "epochs=2"]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "metrics.csv is damaged" in line


def test_a_full_disk_or_a_lost_folder_gets_one_line(
    finished: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    shutil.rmtree(finished / "pictures")
    (finished / "pictures").write_text("a file")
    capsys.readouterr()
    assert train([f"resume={finished}", "epochs=2"]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "cannot be written" in line


def test_R1_a_signal_while_a_checkpoint_is_read_is_not_taken_for_damage(
    finished: Path, train: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    assert train([f"resume={finished}", "epochs=2"]) == 143
