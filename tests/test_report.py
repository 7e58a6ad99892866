"""scripts/evaluate.py: what it writes, and that it says no more than is so."""

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.running import TINY, call
from vit.data import folder
from vit.model import ViT
from vit.runs import evaluate as command

Words = Callable[[list[str]], int]


@pytest.fixture(scope="module")
def runs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one recipe."""
    parent = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        for seed in (1, 2):
            words = [f"seed={seed}", "data=folder", f"data.root={tiny}", f"runs={parent}", *TINY, "epochs=1"]
            assert call("train", words, patch) == 0
    return parent


def run_of(runs: Path, seed: int) -> Path:
    (folder,) = runs.glob(f"*seed-{seed}_*")
    return folder


def written(folder: Path) -> dict[str, Any]:
    def refuse(value: str) -> None:
        raise AssertionError(f"{value} is no JSON")

    return json.loads((folder / "report.json").read_text(), parse_constant=refuse)


def edited(checkpoint: Path, to: Path, **facts: Any) -> Path:
    """A copy that says something else of itself."""
    content = torch.load(checkpoint, weights_only=True)
    content["facts"].update(facts)
    torch.save(content, to)
    return to


def test_the_whole_report(runs: Path, tiny: Path, evaluate: Words, capsys: pytest.CaptureFixture) -> None:
    folder = run_of(runs, 1)
    words = [f"checkpoint={folder}", f"data.root={tiny}", "attention=true", "robustness=true", "flip_average=true"]
    assert evaluate(words) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for title in (
        "classes",
        "calibration",
        "can the maps be trusted?",
        "which heads matter?",
        "what writes the answer?",
    ):
        assert title in printed.out
    assert re.search(r"attention: [\d,]+ passes, about", printed.out)
    assert "C-style, 12 kinds" in printed.out
    found = written(folder)
    promised = "accuracy accuracy_interval top5 nll ece temperature n per_class confusion patch_drop cost"
    assert {*promised.split(), "corruption", "faithfulness", "heads", "flip_average"} <= set(found)
    assert found["n"] == 16
    assert found["accuracy"] == json.loads((folder / "result.json").read_text())["test_accuracy"]
    assert found["accuracy_interval"][0] < found["accuracy"] <= found["accuracy_interval"][1]
    assert found["precision"] == "float32"
    assert [line["class"] for line in found["per_class"]] == ["cat", "dog"]
    assert np.trace(found["confusion"]) == round(16 * found["accuracy"])
    assert np.shape(found["heads"]["lost"]) == (2, 2)
    assert found["cost"]["parameters"] > 1000
    parts = found["attribution"]
    total = parts["embedding"] + parts["bias"] + np.sum(parts["heads"]) + np.sum(parts["mlps"])
    assert total == pytest.approx(parts["logit"], abs=1e-4)  # each is rounded

    page = (folder / "report.html").read_text()
    assert 'src="data:image/png;base64,' in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    events = EventAccumulator(str(folder / "report"), size_guidance={"images": 0})
    events.Reload()
    assert events.Scalars("report/accuracy")[0].value == pytest.approx(found["accuracy"])
    assert {"report/confusion", "report/reliability", "report/heads"} <= set(events.Tags()["images"])


def test_R10_C11_batch_size_changes_no_digit(runs: Path, tiny: Path, tmp_path: Path, evaluate: Words) -> None:
    reports = []
    shutil.copy(run_of(runs, 1) / "last.ckpt", tmp_path / "alone.ckpt")  # all that is read beside the images
    for size in (1, 7, 256):
        words = [f"checkpoint={tmp_path / 'alone.ckpt'}", f"data.root={tiny}", f"batch_size={size}", "attention=true"]
        assert evaluate([*words, f"output={tmp_path / str(size)}"]) == 0
        reports.append(written(tmp_path / str(size)))
        del reports[-1]["cost"]
    assert reports[0] == reports[1] == reports[2]


def test_C15_a_report_lies_beside_its_checkpoint_and_says_which(runs: Path, tiny: Path, evaluate: Words) -> None:
    folder = run_of(runs, 2)
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    assert evaluate([f"checkpoint={folder / 'best.ckpt'}", f"data.root={tiny}"]) == 0
    found = written(folder)
    assert (found["checkpoint"], found["epoch"]) == (f"{folder.name}/best.ckpt", 1)
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_without_the_training_images_there_is_no_temperature(
    runs: Path, tiny: Path, tmp_path: Path, evaluate: Words
) -> None:
    for part in ("train", "test"):
        shutil.copytree(tiny / "test", tmp_path / "other" / part)
    words = [f"checkpoint={run_of(runs, 1)}", f"data.root={tmp_path / 'other'}", f"output={tmp_path}"]
    assert evaluate([*words, "attention=true"]) == 0
    found = written(tmp_path)
    assert found["temperature"] is None
    assert found["temperature_reason"] == "these are not the images it has learned from"
    assert found["heads"]["ranking"] is None


def test_of_the_training_images_only_those_kept_aside_are_read(
    runs: Path, tiny: Path, tmp_path: Path, evaluate: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 training images, of which 16 were kept aside, and 16 test images."""
    read: list[bytes] = []
    decode = folder.decode
    monkeypatch.setattr(folder, "decode", lambda data, size: (read.append(data), decode(data, size))[1])
    assert evaluate([f"checkpoint={run_of(runs, 1)}", f"data.root={tiny}", f"output={tmp_path}"]) == 0
    assert written(tmp_path)["temperature_reason"] != "these are not the images it has learned from"
    assert len(set(read)) == 32

    shutil.copytree(tiny, tmp_path / "renamed")  # as many images of the same classes, but others were kept aside
    for name in ("cat", "dog"):
        files = sorted((tmp_path / "renamed" / "train" / name).iterdir())
        for file in files:
            file.rename(file.with_name(f"other_{40 - int(file.stem)}.png"))
    words = [f"checkpoint={run_of(runs, 1)}", f"data.root={tmp_path / 'renamed'}", f"output={tmp_path}"]
    assert evaluate(words) == 0
    assert written(tmp_path)["temperature_reason"] == "these are not the images it has learned from"


def test_without_validation_images_there_is_no_temperature(
    runs: Path, tiny: Path, tmp_path: Path, evaluate: Words
) -> None:
    file = edited(run_of(runs, 1) / "last.ckpt", tmp_path / "a.ckpt", validation_accuracy=None)
    assert evaluate([f"checkpoint={file}", f"data.root={tiny}"]) == 0
    found = written(tmp_path)
    assert found["temperature"] is None
    assert found["temperature_reason"] == "trained without validation images"


def test_names_of_classes_are_no_markup(runs: Path, tiny: Path, tmp_path: Path, evaluate: Words) -> None:
    name = "<b>[red]$a_$\udcff"  # the last letter: a name that is no UTF-8
    for half in ("train", "test"):
        shutil.copytree(tiny / half / "dog", tmp_path / half / "dog")
        shutil.copytree(tiny / half / "cat", tmp_path / half / name)
    file = edited(run_of(runs, 1) / "last.ckpt", tmp_path / "a.ckpt", classes=(name, "dog"))
    assert evaluate([f"checkpoint={file}", f"data.root={tmp_path}", "attention=true"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;[red]$a_$?" in page
    assert "<b>" not in page
    assert [line["class"] for line in written(tmp_path)["per_class"]] == ["<b>[red]$a_$?", "dog"]


def test_progress_is_seen(
    runs: Path, tiny: Path, tmp_path: Path, evaluate: Words, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(command, "LINE_EVERY", 0.0)
    words = [f"checkpoint={run_of(runs, 1)}", f"data.root={tiny}", f"output={tmp_path}", "batch_size=8"]
    assert evaluate([*words, "robustness=true"]) == 0
    said = capsys.readouterr().out
    assert "report: 8 of 80 passes" in said  # 16 test images, 16 for the temperature and three times 16 with less
    assert "report: 80 of 80 passes" in said
    assert re.search(r"robustness: [\d,]+ passes, about", said)
    assert "robustness: 8 of " in said
    terminal = Console(force_terminal=True, file=io.StringIO(), width=80)
    passes = command.PassCount(terminal)
    with passes.expect("heads", 100):
        passes(25)
        passes.bar.refresh()
    assert "25%" in terminal.file.getvalue()


def test_two_seeds_differ_by_nothing_that_is_shown(
    runs: Path, tiny: Path, tmp_path: Path, evaluate: Words, capsys: pytest.CaptureFixture
) -> None:
    one, other = run_of(runs, 1), run_of(runs, 2)
    assert evaluate([f"checkpoint=[{one},{other}]", f"data.root={tiny}", f"output={tmp_path}"]) == 0
    assert "no difference shown" in capsys.readouterr().out
    (difference,) = written(tmp_path)["differences"]
    assert difference["interval"][0] <= 0 <= difference["interval"][1]
    assert difference["p"] > 0.05


def test_a_pattern_gathers_seeds(
    runs: Path, tiny: Path, tmp_path: Path, evaluate: Words, capsys: pytest.CaptureFixture
) -> None:
    assert evaluate([f"checkpoint={runs}/*seed*", f"data.root={tiny}", f"output={tmp_path}"]) == 0
    assert "settings that differ: seed" in capsys.readouterr().out
    (group,) = written(tmp_path)["groups"]
    expected = [json.loads((run_of(runs, s) / "result.json").read_text())["test_accuracy"] for s in (1, 2)]
    assert sorted(group["accuracies"]) == sorted(expected)
    assert group["mean"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert group["deviation"] == pytest.approx(np.std(expected, ddof=1), abs=1e-5)
    assert group["n"] == 2


def black_images(folder: Path) -> None:
    np.save(folder / "fog.npy", np.zeros((30, 8, 8, 3), np.uint8))
    np.save(folder / "labels.npy", np.arange(30) % 2)


def rebuilt(run: Path, file: Path, **facts: Any) -> Path:
    """A checkpoint of another network than the run's, with random weights."""
    content = torch.load(run / "last.ckpt", weights_only=True)
    content["facts"] |= facts
    model = content["facts"]["model"]
    model |= {"channels": len(content["facts"]["mean"]), "classes": len(content["facts"]["classes"])}
    content["state_dict"] = {f"vit.{name}": value for name, value in ViT(**model).state_dict().items()}
    torch.save(content, file)
    return file


def test_files_of_corrupted_images_are_read(runs: Path, tiny: Path, tmp_path: Path, evaluate: Words) -> None:
    black_images(tmp_path)
    words = [f"checkpoint={run_of(runs, 1)}", f"data.root={tiny}", f"output={tmp_path}"]
    assert evaluate([*words, "robustness=true", f"corrupted={tmp_path}"]) == 0
    assert written(tmp_path)["corruption"]["kinds"] == {"fog": [0.5]}  # black images are all of one class


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["checkpoint=RUNS/nothing*"], "matches no run folder"),
        (["checkpoint=[RUN,RUNS/*seed*]"], "compare one checkpoint with one, or several seeds with several"),
        (["checkpoint=[RUN,RUN]", "attention=true"], "one checkpoint"),
        (["checkpoint=RUN", "full=true"], "robustness=true"),
        (["checkpoint=RUN", "robustness=true", "corrupted=/nowhere"], "holds no .npy file"),
        (["checkpoint=RUN", "robustness=full"], "robustness"),
        (["checkpoint=RUN", "robustness=true", "corrupted=[BLACK,BLACK]"], "fog is in two of the folders"),
        (["checkpoint=RUN", "output=RUN/last.ckpt"], "nothing can be written there"),
        (["checkpoint=RUN", "output=/proc"], "nothing can be written there"),
        (["checkpoint=[RUN,OTHER]"], "have other classes"),
        (["checkpoint=GREY"], "takes images of (channels,height,width) (1, 8, 8); these are of (3, 8, 8)"),
    ],
)
def test_mistakes_get_one_line(
    words: list[str], said: str, runs: Path, tiny: Path, tmp_path: Path, evaluate: Words, capsys: pytest.CaptureFixture
) -> None:
    black_images(tmp_path)
    run = run_of(runs, 1)
    other = rebuilt(run, tmp_path / "other.ckpt", classes=("cat", "cow", "dog"))
    grey = rebuilt(run, tmp_path / "grey.ckpt", mean=(0.5,), std=(0.2,))
    places = {"RUNS": runs, "RUN": run, "BLACK": tmp_path, "OTHER": other, "GREY": grey}
    typed = [re.sub("|".join(places), lambda found: str(places[found[0]]), word) for word in words]
    assert evaluate([*typed, f"data.root={tiny}"]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
