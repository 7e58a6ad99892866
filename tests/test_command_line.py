"""What a user can mistype is answered in one line that says what would be right, before torch is imported."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.running import REPOSITORY, only_run
from vit.settings import BenchmarkSettings, EvaluateSettings, TrainSettings, UserError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("heads=7", "heads=7 does not divide dim=192; heads can be 1 2 3 4 6 8 12 16 …"),
        ("heads=0", "heads is a whole number, at least 1"),
        ("heads=2.5", "heads is a whole number"),
        ("heads=true", "heads is a whole number"),
        ("heads=null", "heads is a whole number"),
        ("heads=[2,4]", "heads is a whole number"),
        ("heads=4)", "heads is a whole number"),
        ("heads=", "heads is a whole number"),
        ("lr=nan", "lr is a number, at least 0"),
        ("lr=inf", "lr is a number, at least 0"),
        ("lr=-1", "lr is a number, at least 0"),
        ("dropout=1", "dropout is a number, at least 0, below 1"),
        ("flip=1", "flip is true or false"),
        ("image_size=[32,32,3]", "image_size is a whole number or [height,width]"),
        ("image_size=0", "image_size is a whole number or [height,width]"),
        ("crop=32", "crop=32 must be smaller than image_size=32"),
        ("dim=18 heads=2 position=sincos", "position=sincos needs a dim divisible by 4"),
        ("pool=mena", "did you mean mean?"),
        ("data=folder", "data=folder needs data.root=PATH"),
        ("batch_size=9 devices=2", "batch_size=9 must be divisible by devices=2"),
        ("seed=99999999999", "seed is a whole number"),
        ("recipe=fast", "recipe is one of"),
        ("data=cifar", "data is one of cifar10 cifar100 folder shapes"),
        ("heads", "heads is not key=value; write heads=VALUE"),
        ("--heads=8", "keys have no dashes; write heads=VALUE"),
        ("--heads 8", "keys have no dashes; write heads=VALUE"),
        ("--epoch=8", "--epoch=8 is not an option"),
        ("-heads=8", "ignored explicit argument 'eads=8'"),
        ("--cfg nonsense", "invalid choice: 'nonsense'"),
        ("--run --multirun", "--run and --multirun do not go together"),
        ("--shell-completion", "is not offered"),
        ("a/b=(", "a/b is not a key here"),
        ("heads=2,4", "add --multirun"),
        ("position=rope patch_dropout=0.5", "does not go with position=rope"),
        ("warmup=0.6 flat=0.5", "more than all steps"),
        ("position=rope,none", "add --multirun"),
        ("position=rope dim=96 heads=16", "needs dim / heads divisible by 4, not 6; heads can be 1 2 3 4 6 8 12 24"),
        ("position=rope dim=90 heads=9", "dim must be divisible by 4"),
        ("drop_path=1", "drop_path is a number, at least 0, below 1"),
        ("erasing=2", "erasing is a number, at least 0, at most 1"),
        ("similarity=cos", "similarity is one of dot cosine"),
        ("registers=-1", "registers is a whole number, at least 0"),
        ("ema=1", "ema is a number, at least 0, below 1"),
        ("nonsense=1", "nonsense is not a key here"),
        ("heads=${nonsense}", "write the value itself"),
        ("--multirun heads=glob(*)", "the sweep has no job"),
    ],
)
def test_a_mistake_gets_one_line(words: str, said: str, train: Callable, capsys: pytest.CaptureFixture) -> None:
    assert train(words.split()) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.parametrize("word", ["head=8", "+head=8", "++head=8", "~head=8", "Heads=8", "model.heads=8"])
def test_H7_an_unknown_key_is_refused_with_the_nearest(
    word: str, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([word]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "did you mean heads?" in line


@pytest.mark.parametrize("word", ["+heads=8", "++heads=8", "~heads", "~heads=8"])
def test_H7_no_key_is_added_or_removed(word: str, train: Callable, capsys: pytest.CaptureFixture) -> None:
    assert train([word]) != 0
    assert "heads=" in capsys.readouterr().err


def test_H9_the_text_None_is_answered_with_null(train: Callable, capsys: pytest.CaptureFixture) -> None:
    assert train(["resume=None"]) != 0
    assert "for none write null" in capsys.readouterr().err
    assert train(["heads=eight"]) != 0
    assert "heads=eight: heads is a whole number, at least 1" in capsys.readouterr().err


def test_V1_V7_mistakes_are_answered_without_torch() -> None:
    code = f"""
import sys
from pathlib import Path
from vit.command_line import train
for words in (["heads=7"], ["patch_size=5"], ["heads=eight"], ["--help"], ["--cfg", "job"], ["-m", "devices=2"]):
    sys.argv = ["train.py", *words]
    try:
        train(Path({str(REPOSITORY / "configs")!r}))
    except SystemExit as left:
        print(words[0], left.code)
assert "torch" not in sys.modules
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    lines = process.stderr.strip().splitlines()
    assert "heads=7 does not divide dim=192" in lines[0]
    assert "patch_size=5 does not divide image_size=32; patch_size can be 1 2 4 8 16 32" in lines[1]
    assert len(lines) == 4


@pytest.mark.parametrize("devices", ["2", "2,4"])
def test_H1_a_sweep_over_several_devices_is_refused(
    devices: str, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train(["--multirun", "heads=2,4", f"devices={devices}"]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "one device each" in line


@pytest.mark.parametrize(
    "name", ["太郎", "IMG(1)", "a=b", "a b", "it's", 'say "x"', "a,b", "{x}", "[1]", "${x}", "2024", "é%"]
)
def test_H8_any_path_can_be_typed(
    name: str, words: list[str], tmp_path: Path, train: Callable, evaluate: Callable, capsys: pytest.CaptureFixture
) -> None:
    runs = tmp_path / name
    data = words[1].partition("=")[2]
    (tmp_path / f"{name}-data").symlink_to(data)
    typed = [*words, "depth=1", "epochs=1", "batch_size=48", f"runs={runs}", f"data.root={tmp_path / f'{name}-data'}"]
    assert train([word for word in typed if word not in words[1:3]]) == 0, capsys.readouterr().err
    run = only_run(runs)
    out = capsys.readouterr().out
    assert evaluate([f"checkpoint={run}", f"data.root={tmp_path / f'{name}-data'}"]) == 0
    line = next(line for line in out.splitlines() if line.startswith("test accuracy"))
    assert line in capsys.readouterr().out.splitlines()
    assert train([f"resume={run / 'last.ckpt'}"]) == 0


def test_H6_the_configuration_is_found_from_any_folder(
    tmp_path: Path, train: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(["--cfg", "job", "heads=4", "data=shapes"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "heads: 4" in printed
    assert "dim: 96" in printed
    assert not list(tmp_path.iterdir())


def test_options_may_stand_anywhere(train: Callable, capsys: pytest.CaptureFixture) -> None:
    assert train(["heads=4", "--cfg", "job", "dim=64"]) == 0
    assert {"heads: 4", "dim: 64"} <= set(capsys.readouterr().out.splitlines())


def test_help_lists_every_key_with_its_default_within_80_columns(
    train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    listed = {line.strip().partition("=")[0] for line in lines if line.startswith("  ") and "=" in line.split()[0]}
    assert set(TrainSettings.names()) <= listed


def test_later_sources_win(train: Callable, capsys: pytest.CaptureFixture) -> None:
    """Table, recipe, data, command line."""
    assert train(["--cfg", "job", "data=shapes"]) == 0
    data = capsys.readouterr().out
    assert {"epochs: 10", "batch_size: 128", "lr: 0.002", "position: sincos"} <= set(data.splitlines())
    assert train(["--cfg", "job", "data=shapes", "epochs=3"]) == 0
    assert "epochs: 3" in capsys.readouterr().out.splitlines()


def test_a_key_that_a_file_of_settings_misspells_is_refused(
    tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text("# @package _global_\nepoch: 3\n")
    assert train([f"--config-dir={tmp_path}", "recipe=mine"]) != 0
    assert "epoch is not a key here; did you mean epochs?" in capsys.readouterr().err


def test_evaluate_needs_a_checkpoint_and_knows_its_keys(evaluate: Callable, capsys: pytest.CaptureFixture) -> None:
    for words, said in (
        ([], "checkpoint=RUN is missing"),
        (["checkpoint=/nowhere"], "/nowhere is not there"),
        (["checkpont=x"], "did you mean checkpoint?"),
        (["checkpoint=x", "heads=eight"], "heads is a whole number"),
    ):
        assert evaluate(words) != 0
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert said in line


def test_settings_survive_a_round_trip() -> None:
    settings = TrainSettings.from_values({"heads": 4, "image_size": [32, 64], "data.root": "x", "lr": 1})
    assert TrainSettings.from_values(settings.values()) == settings
    assert settings.image_size == (32, 64)
    assert isinstance(settings.lr, float)
    with pytest.raises(UserError, match="did you mean heads"):
        TrainSettings.from_values({"head": 4})
    with pytest.raises(TypeError):
        TrainSettings(head=4)  # type: ignore[call-arg]


def test_every_key_has_a_meaning_and_a_default_that_passes_its_own_check() -> None:
    for table in (TrainSettings, EvaluateSettings, BenchmarkSettings):
        for name, field in table.fields().items():
            assert field.metadata["key"].meaning
            table.check_one(name, field.default)


def test_the_default_recipe_is_what_the_table_says(train: Callable, capsys: pytest.CaptureFixture) -> None:
    assert train(["--cfg", "job"]) == 0
    lines = set(capsys.readouterr().out.splitlines())
    for name in ("epochs", "batch_size", "position", "optimizer", "lr", "muon_lr", "weight_decay", "warmup"):
        assert f"{name}: {TrainSettings.fields()[name].default}" in lines


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("runs=~nobody-of-this-name/x", "home directory"),
        (f"resume=/{'x' * 300}", "more than 255 bytes"),
        ("data.root=/tmp/\udcff", "not UTF-8"),
        ("image_size=100000", "image_size is a whole number"),
        ("batch_size=99999999999999999999", "at most 1,000,000"),
        ("depth=100000000", "at most 1,000"),
    ],
)
def test_values_that_no_machine_takes_are_refused(
    word: str, said: str, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([word]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
