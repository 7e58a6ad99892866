"""What a run leaves behind, and that evaluate reads it as training wrote it."""

import csv
import hashlib
import io
import itertools
import json
import math
import multiprocessing
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.running import REPOSITORY, TINY, call, only_run, start
from vit.data import datamodule
from vit.data.shapes import shapes
from vit.runs.folder import claim_folder
from vit.training import load
from vit.training.checkpoint import read_checkpoint


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of two epochs, only to be read, and what it printed."""
    return trained(tmp_path_factory.mktemp("run"), tiny, "epochs=2")


@pytest.fixture(scope="module")
def unimproved(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of three epochs that learns nothing, so that the first is the best."""
    return trained(tmp_path_factory.mktemp("unimproved"), tiny, "epochs=3", "lr=0", "muon_lr=0")


def trained(runs: Path, images: Path, *words: str) -> tuple[Path, str]:
    out, err = io.StringIO(), io.StringIO()
    words = ("data=folder", f"data.root={images}", f"runs={runs}", *TINY, *words)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        assert call("train", list(words), patch) == 0
    assert err.getvalue() == ""
    return only_run(runs), out.getvalue()


def line_of(out: str, beginning: str) -> str:
    (line,) = [line for line in out.splitlines() if line.startswith(beginning)]
    return line


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, (str, int)) and plain(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(plain, value))
    return value is None or type(value) in (bool, int, float, str, torch.Tensor)


def events(run: Path) -> EventAccumulator:
    found = EventAccumulator(str(run), size_guidance={"scalars": 0, "images": 0})
    found.Reload()
    return found


@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_C11_R10_evaluate_prints_what_training_printed(
    batch_size: int,
    run: tuple[Path, str],
    words: list[str],
    tmp_path: Path,
    evaluate: Callable,
    capsys: pytest.CaptureFixture,
) -> None:
    folder, out = run
    assert evaluate([f"checkpoint={folder}", words[1], f"batch_size={batch_size}", f"output={tmp_path}"]) == 0
    again = capsys.readouterr().out
    assert line_of(again, "test accuracy") == line_of(out, "test accuracy")
    assert "of 16" in line_of(again, "test accuracy")
    assert "16 test images" in again
    assert re.search(r"cat +8 +\d\.\d{4}", again)


def test_C11_evaluate_refuses_a_contradiction(
    run: tuple[Path, str], words: list[str], tmp_path: Path, evaluate: Callable, capsys: pytest.CaptureFixture
) -> None:
    for word in ("heads=4", "image_size=16", "data=cifar10", "precision=16-mixed", "validation=null"):
        assert evaluate([f"checkpoint={run[0]}", words[1], word]) != 0
        assert "contradicts the checkpoint" in capsys.readouterr().err
    agreeing = ["heads=2", "image_size=8", "data=folder"]
    assert evaluate([f"checkpoint={run[0]}", words[1], *agreeing, f"output={tmp_path}"]) == 0
    assert evaluate([f"checkpoint={run[0]}", words[1], "runs=elsewhere"]) != 0
    assert "runs is no key of evaluate" in capsys.readouterr().err


def test_evaluate_refuses_images_of_other_classes(
    run: tuple[Path, str], tmp_path: Path, evaluate: Callable, capsys: pytest.CaptureFixture
) -> None:
    for part in ("train", "test"):
        for name in ("cat", "horse"):
            (tmp_path / "other" / part / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "other" / part / name / "0.png")
    assert evaluate([f"checkpoint={run[0]}", f"data.root={tmp_path / 'other'}"]) != 0
    assert "other classes (cat horse) than trained (cat dog)" in capsys.readouterr().err


def test_C1_H15_a_checkpoint_holds_tensors_and_plain_facts(run: tuple[Path, str], words: list[str]) -> None:
    for name in ("last.ckpt", "best.ckpt"):
        content = torch.load(run[0] / name, weights_only=True)
        assert plain(content)
        facts = content["facts"]
        assert facts["settings"]["heads"] == 2
        assert facts["classes"] == ("cat", "dog")
        assert "data.root" not in facts["settings"]
        assert words[1].partition("=")[2] not in repr(facts)


def test_load_gives_the_network_and_its_facts(run: tuple[Path, str]) -> None:
    vit, facts = load(run[0])
    assert not vit.training
    assert (facts.epoch, facts.step, facts.classes) == (2, 16, ("cat", "dog"))
    assert vit(torch.zeros(1, 3, 8, 8)).shape == (1, 2)


def test_C7_last_is_the_last_epoch_even_if_nothing_improves(unimproved: tuple[Path, str]) -> None:
    folder, _ = unimproved
    assert load(folder / "last.ckpt")[1].epoch == 3
    assert load(folder / "best.ckpt")[1].epoch == 1


def test_C15_it_is_said_which_file_and_epoch_is_meant(
    unimproved: tuple[Path, str], words: list[str], tmp_path: Path, evaluate: Callable, capsys: pytest.CaptureFixture
) -> None:
    folder, out = unimproved
    assert "last.ckpt, epoch 3" in out
    for place, said in ((folder, "last.ckpt: epoch 3 of 3"), (folder / "best.ckpt", "best.ckpt: epoch 1 of 3")):
        assert evaluate([f"checkpoint={place}", words[1], f"output={tmp_path}"]) == 0
        assert said in capsys.readouterr().out


def test_without_validation_nothing_is_selected(
    words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([*words, "epochs=1", "batch_size=48", "validation=0"]) == 0
    folder = only_run(tmp_path / "runs")
    assert not (folder / "best.ckpt").exists()
    assert json.loads((folder / "result.json").read_text())["validation_accuracy"] is None
    assert "val loss" not in capsys.readouterr().out


def test_result_holds_everything_that_is_needed_to_reach_it_again(run: tuple[Path, str]) -> None:
    result = json.loads((run[0] / "result.json").read_text())
    assert result["passes"] == 2
    assert result["train_images"] == 48
    assert result["test_images"] == 16
    assert result["images"].startswith("images of tiny")
    assert f"test accuracy {100 * result['test_accuracy']:.2f} % of 16" in run[1]
    assert result["settings"]["heads"] == 2
    assert [row["epoch"] for row in result["curve"]] == [1, 2]
    assert "heads=2" in result["command"].split()
    assert result["minutes"] > 0
    assert set(result) >= {"recipe", "seed", "flops", "hardware", "commit", "torch", "precision"}


def test_B1_hyperparameters_stand_beside_real_metrics(run: tuple[Path, str]) -> None:
    found = events(run[0])
    assert "hp_metric" not in found.Tags()["scalars"]
    assert {"validation/accuracy", "test/accuracy"} <= set(found.Tags()["scalars"])
    metadata = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    session = HParamsPluginData.FromString(metadata).session_start_info
    assert session.hparams["heads"].number_value == 2
    experiment = HParamsPluginData.FromString(
        found.SummaryMetadata("_hparams_/experiment").plugin_data.content
    ).experiment
    assert {info.name.tag for info in experiment.metric_infos} == {"validation/accuracy", "test/accuracy"}


def test_the_curves_stand_at_the_steps_that_were_made(run: tuple[Path, str]) -> None:
    found = events(run[0])
    assert [event.step for event in found.Scalars("validation/accuracy")] == [8, 16]
    assert [event.step for event in found.Scalars("train/loss")] == [8, 10, 16]
    rates = {event.step: event.value for event in found.Scalars("learning_rate/adamw")}
    assert rates[16] == pytest.approx(3e-3 * 1 / (16 - 1.6), rel=1e-4)
    assert min(event.value for event in found.Scalars("throughput/images_per_second")) > 0


def test_B4_B6_ten_pictures_a_tag_and_a_png_of_each(run: tuple[Path, str]) -> None:
    folder, out = run
    assert "--samples_per_plugin images=200" in out
    found = events(folder)
    again_and_again = {
        "attention/layer_01": "layer_01",
        "attention/layer_02": "layer_02",
        "attention/methods": "methods",
        "logit_lens": "logit_lens",
    }
    once = {"data/examples": 0, "data/first_batch": 0, "matrix/layer_01": 16, "matrix/layer_02": 16}
    once |= {"embedding/patch_filters": 16, "embedding/positions": 16}
    assert set(found.Tags()["images"]) == again_and_again.keys() | once.keys()
    for tag, name in again_and_again.items():
        images = found.Images(tag)
        steps = [image.step for image in images]
        assert steps[0] == 0
        assert steps[-1] == 16
        assert len(steps) <= 10
        for image in images:
            copy = folder / "pictures" / f"step_{image.step:06d}_{name}.png"
            assert copy.read_bytes() == image.encoded_image_string
    for tag, step in once.items():
        (image,) = found.Images(tag)
        assert image.step == step
        copy = folder / "pictures" / f"{tag.replace('/', '_')}.png"
        assert copy.read_bytes() == image.encoded_image_string
    for copy in (folder / "pictures").iterdir():
        picture = np.asarray(Image.open(copy))
        assert picture.max() == 255
        assert picture.std() > 10, copy.name


def size_of_events(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("events.*"))


def test_B3_a_longer_run_writes_no_more_pictures(words: list[str], tmp_path: Path, train: Callable) -> None:
    sizes = []
    for epochs in (3, 12):
        parent = tmp_path / f"{epochs}"
        assert train([*words, f"epochs={epochs}", f"runs={parent}"]) == 0
        found = events(folder := only_run(parent))
        assert all(len(found.Images(tag)) <= 10 for tag in found.Tags()["images"])
        assert len(found.Tensors("attention/maps")) <= 10
        sizes.append(size_of_events(folder))
    assert sizes[1] < 1.3 * sizes[0]


def test_B3_ten_looks_at_the_default_network_stay_below_30_MB(tmp_path: Path, train: Callable) -> None:
    draw = np.random.default_rng(0)
    for part, name, i in itertools.product(("train", "test"), ("cat", "dog"), range(14)):
        (tmp_path / "images" / part / name).mkdir(parents=True, exist_ok=True)
        clouds = Image.fromarray(draw.integers(0, 256, (3, 3, 3), dtype=np.uint8)).resize((32, 32))
        clouds.save(tmp_path / "images" / part / name / f"{i}.png")
    words = ["data=folder", f"data.root={tmp_path / 'images'}", "validation=16", "epochs=1", "device=cpu"]
    assert train([*words, f"runs={tmp_path / 'runs'}"]) == 0
    found = events(folder := only_run(tmp_path / "runs"))
    maps = [event.tensor_proto.ByteSize() for event in found.Tensors("attention/maps")]
    again_and_again = [tag for tag in found.Tags()["images"] if len(found.Images(tag)) == 2]
    pictures = [len(image.encoded_image_string) for tag in again_and_again for image in found.Images(tag)]
    assert (len(maps), len(pictures)) == (2, 2 * (6 + 2))
    look = (sum(maps) + sum(pictures)) / 2
    assert size_of_events(folder) + 8 * look < 30e6


def test_numbers_of_every_layer_and_head_and_how_to_read_them(run: tuple[Path, str]) -> None:
    found = events(run[0])
    by_head = [f"layer_{layer:02d}_head_{head:02d}" for layer in (1, 2) for head in (1, 2)]
    for name in ("attention_distance", "attention_entropy", "attention_to_itself"):
        assert [tag for tag in found.Tags()["scalars"] if tag.startswith(name)] == [f"{name}/{one}" for one in by_head]
    drawn = [image.step for image in found.Images("logit_lens")]
    for one in by_head:  # two patches a side, of 4 pixels
        assert [event.step for event in found.Scalars(f"attention_distance/{one}")] == drawn
        assert all(0 <= event.value <= 4 * 2**0.5 for event in found.Scalars(f"attention_distance/{one}"))
        assert all(0 <= event.value <= 1.0001 for event in found.Scalars(f"attention_entropy/{one}"))
    assert len(found.Scalars("head_similarity/layer_02")) == len(drawn)
    assert found.Scalars("largest_token_norm/last_layer")[0].value > 0
    assert not [tag for tag in found.Tags()["scalars"] if "prefix" in tag or "object" in tag]
    text = found.Tensors("how_to_read/text_summary")[0].tensor_proto.string_val[0].decode()
    for tag in ("attention/methods", "logit_lens", "attention_distance", "head_similarity"):
        assert tag in text


def test_the_projector_holds_validation_images_with_their_classes(run: tuple[Path, str]) -> None:
    config = (run[0] / "projector_config.pbtxt").read_text()
    place = run[0] / "00016" / "features"
    assert "00016/features/tensors.tsv" in config
    assert len((place / "tensors.tsv").read_text().splitlines()) == 16
    assert set((place / "metadata.tsv").read_text().split()) == {"cat", "dog"}
    assert (place / "sprite.png").is_file()


def test_on_shapes_it_is_measured_whether_maps_lie_on_the_object(
    tmp_path: Path,
    train: Callable,
    evaluate: Callable,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(datamodule, "shapes", partial(shapes, train=800, test=200))
    small = ["dim=8", "depth=1", "heads=2", "batch_size=100", "epochs=1", "validation=100", "patch_size=8"]
    assert train(["data=shapes", *small, "pool=cls", "registers=1", f"runs={tmp_path}"]) == 0
    found = events(only_run(tmp_path))
    for name in ("share_on_object", "points_at_object"):
        for method in ("last_layer", "rollout", "relevance", "chance"):
            values = [event.value for event in found.Scalars(f"{name}/{method}")]
            assert all(0 <= value <= 1 for value in values)
    assert 0.1 < found.Scalars("points_at_object/chance")[0].value < 0.4
    assert 0 < found.Scalars("attention_to_prefix/layer_01_head_01")[0].value < 1
    line = line_of(capsys.readouterr().out, "test accuracy")
    assert evaluate([f"checkpoint={only_run(tmp_path)}"]) == 0
    assert line_of(capsys.readouterr().out, "test accuracy") == line
    assert "of 200" in line


def test_B13_the_command_to_look_has_an_absolute_path(run: tuple[Path, str]) -> None:
    lines = [line for line in run[1].splitlines() if "tensorboard --logdir" in line]
    assert len(lines) == 2  # at the start and at the end
    for line in lines:
        assert str(run[0].parent.resolve()) in line


def test_B8_H3_names_sort_by_time_and_tell_what_was_changed(tmp_path: Path) -> None:
    first = claim_folder(tmp_path, {"heads": 2, "lr": 1e-4, "image_size": [32, 64], "data.root": "/a b/c=d"})
    second = claim_folder(tmp_path, {"heads": 4})
    assert "heads-2" in first.name
    assert "heads-4" in second.name
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", first.name)
    many = claim_folder(tmp_path, {f"key{i}": "x" * 9 for i in range(50)} | {"x/../../y": "z"})
    assert len(many.name) <= 110
    assert many.parent == tmp_path


def test_H4_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: claim_folder(tmp_path / "runs", {}), range(40)))
    assert len(set(folders)) == 40


def test_H4_H8_one_folder_one_event_file(run: tuple[Path, str]) -> None:
    names = sorted(path.name for path in run[0].iterdir() if path.name != ".lock")
    assert [re.sub(r"^events\..*", "events", name) for name in names] == [
        "00016", "best.ckpt", "events", "last.ckpt", "metrics.csv", "pictures", "projector_config.pbtxt",
        "result.json", "settings.json",
    ]  # fmt: skip
    assert not [name for name in names if re.search(r"[=,: ]", name)]


def test_B11_a_missing_tensorboard_does_not_stop_the_training(
    words: list[str],
    tmp_path: Path,
    train: Callable,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith(("torch.utils.tensorboard", "tensorboard."))]:
        monkeypatch.delitem(sys.modules, name)
    assert train([*words, "epochs=1"]) == 0
    assert line_of(capsys.readouterr().out, "no TensorBoard")
    folder = only_run(tmp_path / "runs")
    assert (folder / "metrics.csv").exists()
    assert list((folder / "pictures").iterdir())
    assert not list(folder.glob("events*"))


def test_H14_jobs_of_a_sweep_run_as_if_alone_and_a_failed_one_is_named(
    words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    sweep = [word for word in words if not word.startswith("heads")]
    assert train(["--multirun", *sweep, "batch_size=48", "epochs=1", "heads=1,3,2"]) == 1
    printed = capsys.readouterr()
    assert "error: heads=3 does not divide dim=16" in printed.err
    table = printed.out[printed.out.index("validation ┃") :]
    assert "heads=3" in table
    assert "failed" in table
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 2
    assert train([*words, "batch_size=48", "epochs=1", f"runs={tmp_path / 'alone'}"]) == 0
    assert weights_hash(runs[1]) == weights_hash(only_run(tmp_path / "alone"))
    assert weights_hash(runs[0]) != weights_hash(runs[1])


def weights_hash(run: Path) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(read_checkpoint(run / "last.ckpt")[0]["state_dict"].items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(params=["fork", "spawn"])
def started_by(request: pytest.FixtureRequest) -> Iterator[None]:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(request.param, force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.usefixtures("started_by")
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")  # on a machine of one core
def test_R8_D6_workers_change_no_number(words: list[str], tmp_path: Path, train: Callable) -> None:
    for workers in (0, 2):
        assert train([*words, "epochs=2", f"workers={workers}", f"runs={tmp_path / str(workers)}"]) == 0
    first, second = only_run(tmp_path / "0"), only_run(tmp_path / "2")
    assert weights_hash(first) == weights_hash(second)
    assert (first / "metrics.csv").read_text() == (second / "metrics.csv").read_text()


def test_H2_H1_two_devices_share_one_folder(words: list[str], tmp_path: Path) -> None:
    options = ["ema=0.9", "trivial_augment=true", "cutmix=1", "drop_path=0.3", "registers=1", "batch_size=24"]
    process = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "train.py"), *words, *options, "epochs=1", "devices=2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    folder = only_run(tmp_path / "runs")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert len(list(folder.glob("events*"))) == 1
    assert process.stdout.count("test accuracy") == 1
    assert load(folder)[1].step == 2
    assert not [line for line in process.stderr.splitlines() if "warn" in line.lower()]


def test_a_reader_that_leaves_ends_the_training_without_a_traceback(words: list[str], tmp_path: Path) -> None:
    """As `| head -1` does."""
    process = start([*words, "epochs=3"])
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1
    assert (only_run(tmp_path / "runs") / "settings.json").exists()


def test_R6_R7_a_log_file_gets_plain_lines_and_no_third_party_message(words: list[str]) -> None:
    process = start([*words, "epochs=3", "batch_size=24"])
    out, err = process.communicate()
    assert process.returncode == 0
    assert err == ""
    assert "\r" not in out
    assert "\x1b" not in out
    assert sum(bool(re.match(r"epoch \d/3 · train loss", line)) for line in out.splitlines()) == 3
    assert len(out.splitlines()) < 30
    assert not re.search(r"(?i)warning|deprecat|tip:", out)


def test_first_loss_is_that_of_chance(run: tuple[Path, str]) -> None:
    with open(run[0] / "metrics.csv") as file:
        assert file.readline().startswith("epoch,step,train_loss,train_accuracy,validation_loss")
    assert events(run[0]).Scalars("train/loss")[0].value < math.log(2) + 0.1


def test_V17_sixty_four_images_are_learned(words: list[str], tmp_path: Path, train: Callable) -> None:
    learn = ["validation=0", "epochs=12", "batch_size=16", "dim=32", "lr=0.01", "precision=32-true"]
    assert train([*words, *learn, "crop=0", "flip=false"]) == 0
    with open(only_run(tmp_path / "runs") / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert abs(float(rows[0]["train_loss"]) - math.log(2)) < 0.15
    assert float(rows[-1]["train_accuracy"]) > 0.95


@pytest.mark.parametrize("shuffled", [True, False], ids=["shuffled labels", "true labels"])
def test_only_true_labels_are_followed_on_the_test_set(shuffled: bool, tmp_path: Path, train: Callable) -> None:
    """Ten colours under noise. Shuffled: every colour has each label equally often, so that nothing can be learned
    but the images by heart; what is more than chance on the test set would have leaked into the training."""
    draw = np.random.default_rng(0)
    for part, times in (("train", 20), ("test", 50)):
        for colour in range(10):
            for number in range(times):
                label = number % 10 if shuffled and part == "train" else colour
                pixels = draw.integers(0, 64, (8, 8, 3)) + 80 * np.array([colour % 3, colour // 3 % 3, colour // 9])
                folder = tmp_path / "colours" / part / f"{label}"
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{colour}_{number}.png")
    learn = ["validation=0", "epochs=15", "batch_size=20", "dim=64", "lr=0.01", "precision=32-true", "crop=0"]
    words = ["data=folder", f"data.root={tmp_path / 'colours'}", f"runs={tmp_path / 'runs'}", *TINY]
    assert train([*words, *learn, "flip=false", "label_smoothing=0"]) == 0
    run = only_run(tmp_path / "runs")
    with open(run / "metrics.csv", newline="") as file:
        assert float(list(csv.DictReader(file))[-1]["train_accuracy"]) > 0.9
    accuracy = json.loads((run / "result.json").read_text())["test_accuracy"]
    assert abs(accuracy - 0.1) < 0.06 if shuffled else accuracy > 0.95  # 0.06: over four standard errors
