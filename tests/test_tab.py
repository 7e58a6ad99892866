"""The maps that the Attention tab shows are the model's, and its routes answer with them or with one line."""

import base64
import json
import re
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from tensorboard.backend.application import TensorBoardWSGI
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from torch import Tensor
from torch.testing import assert_close
from torch.utils.tensorboard import SummaryWriter
from werkzeug.test import Client, TestResponse

from tests.map_runs import Seen, record, write_all, write_run
from tests.references import tiny_vit
from tests.running import REPOSITORY, only_run
from vit.inspection import map_record
from vit.inspection.tab import PLUGIN, TAG
from vit.inspection.tab.plugin import AttentionPlugin

TAB = REPOSITORY / "vit" / "inspection" / "tab"
Get = Callable[..., TestResponse]


def assert_within_half_a_step(found: Tensor, expected: Tensor) -> None:
    step = expected.amax(dim=(-2, -1), keepdim=True) / 255
    assert ((found - expected).abs() <= step / 2 * 1.0001).all()


def client(folder: Path) -> tuple[Client, EventMultiplexer]:
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(folder))
    return Client(TensorBoardWSGI([AttentionPlugin(TBContext(data_provider=provider))], "", provider)), multiplexer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Seen]]:
    folder = tmp_path_factory.mktemp("runs")
    return folder, write_all(folder)


@pytest.fixture(scope="module")
def get(runs: tuple[Path, dict[int, Seen]]) -> Get:
    browser = client(runs[0])[0]
    return lambda route, **query: browser.get(f"/data/plugin/attention/{route}", query_string=query)


@pytest.mark.parametrize("pool", ["mean", "cls", "sequence"])
@pytest.mark.parametrize("registers", [0, 2])
def test_maps_come_back_within_half_a_step(pool: str, registers: int) -> None:
    vit = tiny_vit(pool=pool, registers=registers, image_size=(8, 12))
    seen, relevance, packed = record(vit, ["cat", "dog", "ship"], step=7)
    header, images, maps, restored = map_record.unpack(packed)
    for found, expected in zip(maps, seen.maps, strict=True):
        assert_within_half_a_step(found, expected.detach())
    assert_within_half_a_step(restored, relevance)
    assert images.shape == (3, 3, 8, 12)
    assert_close(torch.tensor(header["readout"]), seen.readout.detach())
    assert (header["version"], header["step"], header["grid"], header["image_size"]) == (1, 7, [4, 6], [8, 12])
    assert (header["layers"], header["heads"], header["titles"]) == (2, 4, ["cat", "dog", "ship"])
    assert header["prefix"] == vit.prefix_tokens
    for found, shares in zip(header["found"], seen.logits.softmax(dim=1).detach(), strict=True):
        assert [name for name, _ in found] == ["abcde"[k] for k in shares.argsort(descending=True)]
        assert [part for _, part in found] == pytest.approx(shares.sort(descending=True).values.tolist(), abs=1e-4)


def test_the_record_is_laid_out_as_its_page_reads_it() -> None:
    seen, relevance, packed = record(tiny_vit(registers=1), ["cat", "dog"])
    assert len(packed) == 1 + 2 + 2 + 1
    assert [blob.startswith(b"\x89PNG") for blob in packed] == [False, True, True, False, False, False]
    header = json.loads(packed[0])
    changes = np.frombuffer(zlib.decompress(packed[4]), np.uint8).reshape(2, 4, 17, 17)
    steps = changes.cumsum(axis=2).cumsum(axis=3) % 256
    assert (steps.max(axis=(2, 3)) == 255).all()
    weights = seen.maps[1][1, 2].detach()
    assert steps[1, 2, 3, 4] == round(float(weights[3, 4] / weights.max()) * 255)
    assert header["scales"][1][1][2] == float(weights.max())
    assert len(zlib.decompress(packed[5])) == relevance.numel()


def test_a_relevance_of_nothing_is_no_division_by_zero() -> None:
    seen, relevance, _ = record(vit := tiny_vit(), ["cat"])
    images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)  # grey
    packed = map_record.pack(seen, relevance * 0, images, step=0, grid=vit.grid, titles=["cat"], classes=tuple("abcde"))
    restored = map_record.unpack(packed)
    assert not restored.relevance.any()
    assert restored.images.shape == (1, 3, 8, 8)


def test_a_training_that_diverged_is_shown_as_nothing() -> None:
    vit = tiny_vit(pool="sequence")
    with torch.no_grad():
        vit.layers[1].attention.qkv.weight[:] = float("nan")
    header, _, maps, _ = map_record.unpack(record(vit, ["cat"])[2])
    assert "NaN" not in json.dumps(header)
    assert maps[0].any()
    assert not maps[1].any()


def test_only_as_many_images_as_fit_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(map_record, "LARGEST", 2 * 2 * 4 * 16**2 + 1)
    _, _, packed = record(tiny_vit(), ["cat", "dog", "ship"])
    assert map_record.unpack(packed).header["titles"] == ["cat", "dog"]
    monkeypatch.setattr(map_record, "LARGEST", 100)
    _, _, packed = record(tiny_vit(), ["cat"])
    assert packed == []
    with SummaryWriter(tmp_path) as writer:
        map_record.write(writer, packed, 0)
    assert not EventAccumulator(str(tmp_path)).Reload().Tags()["tensors"]


def test_a_training_writes_its_maps(words: list[str], tmp_path: Path, train: Callable) -> None:
    assert train([*words, "epochs=1"]) == 0
    folder = only_run(tmp_path / "runs")
    found = EventAccumulator(str(folder), size_guidance={"tensors": 0, "images": 0}).Reload()
    assert found.SummaryMetadata(TAG).plugin_data.plugin_name == PLUGIN
    assert {event.step for event in found.Tensors(TAG)} == {image.step for image in found.Images("attention/methods")}
    record = map_record.unpack(found.Tensors(TAG)[-1].tensor_proto.string_val)
    for weights in record.maps:
        assert weights.shape == (10, 2, 4, 4)
        assert_close(weights.sum(dim=-1), torch.ones(10, 2, 4), atol=0.01, rtol=0)
    assert set(record.header["titles"]) <= {"cat", "dog"}


def test_runs_are_listed_with_their_steps(get: Get) -> None:
    assert get("runs").json == [
        {"run": "a", "steps": [0, 5, 20]},
        {"run": "b", "steps": [7]},
        {"run": "none", "steps": []},
    ]


def test_header_and_blobs_are_those_that_were_written(get: Get, runs: tuple[Path, dict[int, Seen]]) -> None:
    packed = runs[1][5][2]
    assert get("header", run="a", step=5).json == json.loads(packed[0])
    for index, blob in enumerate(packed):
        answer = get("blob", run="a", step=5, index=index)
        assert answer.data == blob
        assert (answer.content_type == "image/png") == (1 <= index <= 2)


def test_a_class_name_with_markup_stays_text(get: Get) -> None:
    answer = get("header", run="a", step=0)
    assert answer.content_type == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.json["titles"] == ["cat", "<b>dog</b>"]
    for file in TAB.glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", file.read_text())


@pytest.mark.parametrize(
    ("route", "query", "status", "said"),
    [
        ("header", {"run": "nowhere", "step": 0}, 404, "run 'nowhere' has no attention maps"),
        ("header", {"run": "none", "step": 0}, 404, "run 'none' has no attention maps"),
        ("header", {"run": "a", "step": 3}, 404, "no maps at step 3; it has [0, 5, 20]"),
        ("header", {"run": "a"}, 400, "step='' is no whole number"),
        ("header", {"run": "a", "step": "-1"}, 400, "step='-1' is no whole number"),
        ("header", {"run": "a", "step": "²"}, 400, "is no whole number"),
        ("header", {}, 400, "is no whole number"),
        ("blob", {"run": "a", "step": 0, "index": 6}, 404, "index 6 is not between 0 and 5"),
        ("blob", {"run": "a", "step": 0, "index": "x"}, 400, "index='x' is no whole number"),
        ("blob", {"run": "<script>", "step": 0, "index": 0}, 404, "'<script>'"),
    ],
)
def test_mistakes_get_one_line(get: Get, route: str, query: dict, status: int, said: str) -> None:
    answer = get(route, **query)
    assert answer.status_code == status
    assert said in answer.text
    assert len(answer.text.splitlines()) == 1
    assert answer.content_type.startswith("text/plain")


def test_nothing_is_written_through_the_tab(runs: tuple[Path, dict[int, Seen]]) -> None:
    answer = client(runs[0])[0].post("/data/plugin/attention/runs")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET"


def test_a_run_that_is_being_written_grows(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path / "run") as writer:
        packed = record(tiny_vit(), ["cat"])[2]
        writer.add_scalar("train/loss", 1.0, 0)
        writer.flush()
        browser, multiplexer = client(tmp_path)
        for steps in ([], [0], [0, 10]):
            if steps:
                map_record.write(writer, packed, steps[-1])
                writer.flush()
                multiplexer.Reload()
            assert browser.get("/data/plugin/attention/runs").json == [{"run": "run", "steps": steps}]


def test_the_page_is_served_and_names_no_other_host(get: Get) -> None:
    for name, kind in (("index.js", "text/javascript"), ("view.js", "text/javascript"), ("tab.css", "text/css")):
        answer = get(name)
        assert answer.content_type.startswith(kind)
        assert answer.data == (TAB / name).read_bytes()
        assert not re.search(r"(?i)https?:|//[a-z]|@import|url\(", answer.text)


def test_the_colours_are_inferno() -> None:
    code = (TAB / "view.js").read_text()
    table = np.frombuffer(base64.b64decode(re.search(r"atob\(`([^`]*)`", code).group(1)), np.uint8)
    assert np.array_equal(table.reshape(256, 3), matplotlib.colormaps["inferno"](np.arange(256), bytes=True)[:, :3])


def test_tensorboard_finds_the_tab_and_does_not_wait_for_torch() -> None:
    entries = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = entries["tensorboard_plugins"]["attention"].partition(":")
    assert (module, name) == (AttentionPlugin.__module__, "AttentionPlugin")
    code = f"import sys, {module}; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in process.stdout.split()}
    assert not loaded & {"torch", "lightning", "matplotlib", "torchvision", "hydra"}


def test_several_event_files_of_one_run_are_one(tmp_path: Path) -> None:
    for step in (0, 4):
        write_run(tmp_path / "run", tiny_vit(), ["cat"], [step])
    assert client(tmp_path)[0].get("/data/plugin/attention/runs").json == [{"run": "run", "steps": [0, 4]}]
