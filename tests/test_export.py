"""What leaves this program computes the same elsewhere, and says what it is."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.references import tiny_vit
from tests.running import call
from vit.data import normalize
from vit.model import ViT
from vit.runs import export as exporting
from vit.settings import PLACES, TrainSettings, UserError
from vit.training import Facts, load

SIZES = {"image_size": (8, 8), "patch_size": 2, "dim": 16, "depth": 2, "heads": 4, "mlp_ratio": 2, "classes": 5}
MODELS = {
    "cls": {"pool": "cls", "registers": 1, "position": "learned"},
    "rope": {"position": "rope", "similarity": "cosine", "pool": "sequence"},
    "fused": {"image_size": (8, 64), "depth": 1},  # 128 tokens: attention by the fused kernel
}
CLASSES = ("cat", "dog", "ウサギ", 'a "b"', "<c>")
Export = Callable[..., int]


class Trained(NamedTuple):
    folder: Path
    vit: ViT
    facts: Facts

    def logits(self, images: Tensor) -> Tensor:
        return self.vit(normalize(images, self.facts.mean, self.facts.std))


def as_trained(folder: Path, *, classes: tuple[str, ...] = CLASSES, epoch: int = 3, **model: object) -> Trained:
    """A run folder with a checkpoint of random weights."""
    sizes: dict = SIZES | {"classes": len(classes)} | model
    vit = tiny_vit(**sizes)
    settings = TrainSettings.from_values({name: value for name, value in sizes.items() if name != "classes"}).values()
    settings = {key: value for key, value in settings.items() if key not in PLACES}
    facts = Facts(
        sizes, settings, classes, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3), "noise", 64, "32-true", "raw", epoch=epoch
    )
    folder.mkdir()
    state = {f"vit.{name}": value for name, value in vit.state_dict().items()}
    torch.save({"state_dict": state, "facts": dataclasses.asdict(facts)}, folder / "last.ckpt")
    return Trained(folder, vit, facts)


@pytest.fixture(scope="module", params=MODELS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return as_trained(tmp_path_factory.mktemp("run") / request.param, **MODELS[request.param])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return as_trained(tmp_path / "run").folder


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> Export:
    return lambda *words: call("export", list(words), monkeypatch)


def pixels(trained: Trained, batch: int) -> Tensor:
    shape = (batch, *trained.vit.patch_embedding.image_shape)
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(batch))


def assert_says_what_it_is(described: dict[str, str], trained: Trained) -> None:
    height, width = trained.vit.patch_embedding.image_shape[1:]
    assert f"uint8 ('batch', 3, {height}, {width}), RGB or grey, 0 to 255, not normalised" in described["input"]
    assert tuple(json.loads(described["classes"])) == CLASSES
    assert json.loads(described["facts"]) == json.loads(json.dumps(dataclasses.asdict(trained.facts)))


def test_torch_export_is_the_network_with_its_normalisation(
    trained: Trained, export: Export, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "network.pt2"
    words = [f"checkpoint={trained.folder}", "format=torch_export", f"output={file}"]
    assert export(*words, "attention=true") == 0
    printed = capsys.readouterr()
    assert "what it computes differs by at most" in printed.out
    assert printed.err == ""
    described = dict.fromkeys(("input", "outputs", "classes", "facts"), "")
    network = torch.export.load(file, extra_files=described).module()
    assert_says_what_it_is(described, trained)
    for batch in (1, 3, 7):
        images = pixels(trained, batch)
        found = network(images)
        seen = trained.vit.attend(normalize(images, trained.facts.mean, trained.facts.std))
        assert_close(found["logits"], trained.logits(images), atol=1e-5, rtol=1e-5)
        assert_close(found["attention"], torch.stack(seen.maps, dim=1), atol=1e-6, rtol=0)
        assert_close(found["readout"], seen.readout, atol=1e-6, rtol=0)


@pytest.mark.parametrize("attention", [False, True])
def test_onnx_runtime_computes_the_same(trained: Trained, attention: bool, export: Export, tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "network.onnx"
    assert export(f"checkpoint={trained.folder}", f"output={file}", f"attention={str(attention).lower()}") == 0
    assert os.listdir(tmp_path) == ["network.onnx"]
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert_says_what_it_is(session.get_modelmeta().custom_metadata_map, trained)
    (taken,) = session.get_inputs()
    assert (taken.name, taken.type) == ("images", "tensor(uint8)")
    assert taken.shape == ["batch", *trained.vit.patch_embedding.image_shape]
    given = {output.name: output.shape for output in session.get_outputs()}
    assert list(given) == (["logits", "attention", "readout"] if attention else ["logits"])
    assert given["logits"] == ["batch", 5]
    for batch in (1, 3, 7):
        images = pixels(trained, batch)
        found = dict(zip(given, map(torch.from_numpy, session.run(None, {"images": images.numpy()})), strict=True))
        assert_close(found["logits"], trained.logits(images), atol=1e-5, rtol=1e-5)
        if attention:
            seen = trained.vit.attend(normalize(images, trained.facts.mean, trained.facts.std))
            assert_close(found["attention"], torch.stack(seen.maps, dim=1), atol=1e-6, rtol=0)
            assert_close(found["readout"], seen.readout, atol=1e-6, rtol=0)
    with pytest.raises(Exception, match="expected: \\(tensor\\(uint8\\)\\)"):
        session.run(None, {"images": pixels(trained, 1).numpy().astype(np.float32) / 255})


def test_safetensors_are_the_weights_by_their_names_and_are_loaded_again(trained: Trained, export: Export) -> None:
    from safetensors.numpy import load_file

    assert export(f"checkpoint={trained.folder}", "format=safetensors") == 0
    file = trained.folder / "last.safetensors"
    weights = load_file(file)
    expected = trained.vit.state_dict()
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        assert np.array_equal(value, expected[name].numpy())
    vit, facts = load(file)
    assert facts == trained.facts
    assert not vit.training
    images = pixels(trained, 2)
    assert torch.equal(vit(normalize(images, facts.mean, facts.std)), trained.logits(images))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "checkpoint=RUN is missing"),
        (["checkpoint=nowhere"], "nowhere is not there"),
        (["checkpoint=run", "format=tflite"], "one of onnx torch_export safetensors"),
        (["checkpoint=run", "format=safetensors", "attention=true"], "safetensors holds weights only"),
        (["checkpoint=run", "format=safetensors", "output=run/last.ckpt"], "must end in .safetensors"),
        (["checkpoint=run", "format=safetensors", "output=nowhere/x.safetensors"], "could not be written"),
    ],
)
def test_mistakes_get_one_line(
    words: list[str],
    said: str,
    run: Path,
    export: Export,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(run.parent)
    assert export(*words) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_without_onnx_it_says_what_to_install(
    run: Path, export: Export, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None if name == "onnxscript" else name)
    assert export(f"checkpoint={run}") != 0
    assert "format=onnx needs onnxscript: pip install -e '.[export]'" in capsys.readouterr().err


def test_a_file_that_computes_something_else_takes_the_place_of_none(
    run: Path, export: Export, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def broken(file: Path, kind: str) -> Callable[[Tensor], dict[str, Tensor]]:
        network = exporting.Deployed(*load(file), attention=False)
        return lambda images: {name: value * 1.01 for name, value in network(images).items()}

    assert export(f"checkpoint={run}", "format=safetensors") == 0
    before = (run / "last.safetensors").read_bytes()
    monkeypatch.setattr(exporting, "read", broken)
    assert export(f"checkpoint={run}", "format=safetensors") != 0
    assert "computes something else" in capsys.readouterr().err
    assert sorted(os.listdir(run)) == ["last.ckpt", "last.safetensors"]
    assert (run / "last.safetensors").read_bytes() == before


def test_a_run_is_not_resumed_from_weights_alone(run: Path, export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    assert export(f"checkpoint={run}", "format=safetensors") == 0
    assert call("train", [f"resume={run / 'last.safetensors'}"], monkeypatch) != 0


def test_a_broken_file_of_weights_gets_one_line(tmp_path: Path, export: Export, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(b"\x00" * 100)
    assert export(f"checkpoint={file}", "format=torch_export") != 0
    assert "cannot be read as tensors alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("facts", "said"),
    [({"classes": "abcde"}, "no list"), ({"mean": {"0.5": 1}}, "no list"), ({"std": [0, 0, 0]}, "impossible")],
)
def test_forged_facts_of_a_file_of_weights_are_refused(run: Path, facts: dict, said: str, export: Export) -> None:
    from safetensors.torch import load_file, save_file

    assert export(f"checkpoint={run}", "format=safetensors") == 0
    file = run / "last.safetensors"
    described = json.loads(json.dumps(dataclasses.asdict(load(file)[1])))
    save_file(load_file(file), file, {"facts": json.dumps(described | facts)})
    with pytest.raises(UserError, match=said):
        load(file)
