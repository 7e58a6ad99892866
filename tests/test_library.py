"""The page of the public names runs, and other networks than this project's get the pictures and the tab."""

import dataclasses
import importlib
import importlib.util
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from tests.references import noise, randomize
from tests.running import call
from tests.test_export import as_trained
from tests.test_tutorial import LINK
from tests.tutorial_pages import DOCS, run
from vit.data import normalize
from vit.data.shapes import shapes
from vit.inspection import map_record
from vit.inspection.attention_logger import AttentionLogger, Shown, picture_steps
from vit.inspection.maps import relevance, rollout
from vit.inspection.tab import TAG
from vit.runs.machine import silence_unneeded

PAGE = DOCS / "library.md"
NEEDS = {"### timm": "timm", "## Weights out": "onnxruntime"}  # by the title of the part
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN = STD = (0.5, 0.5, 0.5)


class Ran(NamedTuple):
    folder: Path
    text: str
    printed: str
    names: dict[str, Any]


def part_that_can_run(text: str) -> str:
    parts = re.split(r"^(?=##)", text, flags=re.MULTILINE)
    missing = [title for title, package in NEEDS.items() if importlib.util.find_spec(package) is None]
    return "".join(part for part in parts if part.splitlines()[0] not in missing)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The page, run in a folder with a trained run and what its command lines wrote."""
    folder = tmp_path_factory.mktemp("library")
    sizes = {"image_size": (32, 32), "patch_size": 4, "dim": 16, "depth": 6, "heads": 8}
    as_trained(folder / "RUN", classes=CIFAR, epoch=8, **sizes)
    text = part_that_can_run(PAGE.read_text(encoding="utf-8"))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        silence_unneeded()
        patch.chdir(folder)
        for line in re.findall(r"^python scripts/export.py ([^#\n]+)", text, flags=re.MULTILINE):
            assert call("export", line.split(), patch) == 0
        printed, names = run(text)
    return Ran(folder, text, printed, names)


def test_its_code_prints_what_the_page_says(page: Ran) -> None:
    assert page.printed == page.text


def test_each_name_is_there_and_says_what_it_does() -> None:
    rows = re.findall(r"^\| `(vit[\w.]*)` \| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(rows) == 18
    for module, name in rows:
        assert getattr(importlib.import_module(module), name).__doc__
    shown = {name for module, name in rows if module in ("vit.model", "vit.training")}
    public = {name for module in ("vit.model", "vit.training") for name in importlib.import_module(module).__all__}
    assert public - shown == {"attention_kernel"}


def test_links_lead_somewhere() -> None:
    links = [link for link in LINK.findall(PAGE.read_text(encoding="utf-8")) if "://" not in link]
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "images": 0}).Reload()


def records(folder: Path) -> list[map_record.MapRecord]:
    found = events(folder).Tensors(TAG)
    return [map_record.unpack(event.tensor_proto.string_val) for event in found]


def assert_within_half_a_step(found: Tensor, expected: Tensor) -> None:
    step = expected.amax(dim=(-2, -1), keepdim=True) / 255
    assert ((found - expected).abs() <= step / 2 * 1.001 + 1e-7).all()


def attention_of_timm(model: Any, images: Tensor) -> list[Tensor]:
    """Layer by layer, from timm's own parts, as plainly as possible: (B,h,T,T) each."""
    maps = []
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    for block in model.blocks:
        attention = block.attn
        q, k, _ = attention.qkv(block.norm1(x)).unflatten(2, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        maps.append((q @ k.mT / attention.head_dim**0.5).softmax(dim=-1))
        x = block(x)
    return maps


@torch.no_grad()
def test_a_timm_network_gets_exact_maps_in_pictures_numbers_and_the_tab(page: Ran) -> None:
    timm = pytest.importorskip("timm")
    folder = page.folder / "runs" / "timm"
    found = records(folder)
    assert [one.header["step"] for one in found] == sorted(picture_steps(8))
    model, images = page.names["tiny"].eval(), normalize(page.names["images"][:10], MEAN, STD)
    for kept, expected in zip(found[-1].maps, attention_of_timm(model, images), strict=True):
        assert_within_half_a_step(kept, expected)
    assert found[-1].header["titles"] == [page.names["classes"][k] for k in page.names["labels"][:10]]
    shares = [of_image[0][1] for of_image in found[-1].header["found"]]
    assert shares == pytest.approx(model(images).softmax(dim=1).amax(dim=1).tolist(), abs=1e-4)
    assert found[-1].relevance is not None
    assert found[-1].relevance.any()
    tags = events(folder).Tags()
    assert {"attention/layer_01", "attention/layer_04", "attention/methods", "matrix/layer_01"} <= set(tags["images"])
    assert "attention_entropy/layer_04_head_03" in tags["scalars"]
    assert all(block.attn.fused_attn == timm.layers.use_fused_attn() for block in model.blocks)
    assert not any(part._forward_hooks for part in model.modules())


def test_a_torchvision_network_gets_the_tab_without_relevance(page: Ran) -> None:
    folder = page.folder / "runs" / "torchvision"
    found = records(folder)
    assert [one.header["step"] for one in found] == sorted(picture_steps(8))
    assert found[-1].relevance is None
    assert found[-1].header["relevance_scales"] is None
    assert len(found[-1].header["found"][0]) == 5
    pictures = {file.name for file in (folder / "pictures").iterdir()}
    assert {"step_000000_layer_01.png", "step_000008_methods.png", "matrix_layer_02.png"} <= pictures
    model, images = page.names["small"].eval(), page.names["images"][:10]
    tokens = model._process_input(normalize(images, MEAN, STD))
    x = torch.cat([model.class_token.expand(10, -1, -1), tokens], dim=1) + model.encoder.pos_embedding
    with torch.no_grad():
        for layer, kept in zip(model.encoder.layers, found[-1].maps, strict=True):
            y = layer.ln_1(x)
            attention = layer.self_attention
            projected = y @ attention.in_proj_weight.T + attention.in_proj_bias
            q, k, _ = projected.unflatten(2, (3, 3, 16)).permute(2, 0, 3, 1, 4)
            assert_within_half_a_step(kept, (q @ k.mT / 4).softmax(dim=-1))
            x = layer(x)


def test_a_hugging_face_network_as_the_page_says() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"image_size": 32, "patch_size": 8, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 96}
    config = transformers.ViTConfig(num_attention_heads=3, num_labels=10, attn_implementation="eager", **sizes)
    module = TrainsNothing(transformers.ViTForImageClassification(config))

    def attend(module: Any, images: Tensor) -> tuple[Any, Tensor]:
        found = module.model(images, output_attentions=True)
        return found.attentions, found.logits

    logger = AttentionLogger(attend, shown(2), grid=(4, 4), folder="nowhere")
    assert logger.how_many_fit(module) > 0
    seen = logger.look(module, noise(2, 3, 32, 32))
    assert [weights.shape for weights in seen.maps] == [(2, 3, 17, 17)] * 2


class Told(nn.Module):
    """Two layers of attention in plain torch which keep their weights; a register, patches of 8, no class token."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, stride=8)
        self.register = nn.Parameter(torch.zeros(1, 1, 16))
        self.qk = nn.ModuleList(nn.Linear(16, 32) for _ in range(2))
        self.head = nn.Linear(16, max(1, classes))
        self.dropout = nn.Dropout(0.5)
        self.maps: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        x = torch.cat([self.register.expand(len(x), -1, -1), x], dim=1)
        self.maps = []
        for qk in self.qk:
            q, k = qk(x).unflatten(2, (2, 2, 8)).permute(2, 0, 3, 1, 4)
            self.maps.append((q @ k.mT / 8**0.5).softmax(dim=-1))
            x = x + (self.maps[-1] @ x.unflatten(2, (2, 8)).transpose(1, 2)).transpose(1, 2).flatten(2)
        return self.head(self.dropout(x[:, 1:].mean(dim=1)))


class TrainsNothing(LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.seen: list[Tensor] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        assert self.model.training
        self.seen.append(torch.rand(1))
        return self.model(batch[0]).float().mean() * 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def attend_told(module: Any, images: Tensor) -> tuple[list[Tensor], Tensor]:
    assert not module.model.training
    logits = module.model(images)
    return module.model.maps, logits


def shown(count: int) -> Shown:
    split = shapes(train=count, test=1).train
    return Shown(split.images, split.labels, shapes(train=1, test=1).classes, MEAN, STD, split.masks)


def fit(module: LightningModule, looks: AttentionLogger | None, folder: Path, **options: Any) -> Trainer:
    batches = DataLoader(TensorDataset(noise(24, 3, 32, 32)), batch_size=4)
    usual = {"max_epochs": 1, "logger": [CSVLogger(folder / "csv"), TensorBoardLogger(folder, name="", version="")]}
    silent = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(callbacks=looks, accelerator="cpu", default_root_dir=folder, **usual | silent | options)
    silence_unneeded()
    trainer.fit(module, batches)
    return trainer


def told(folder: Path, attend: Any = attend_told, **changes: Any) -> AttentionLogger:
    facts: dict = {"grid": (4, 4), "folder": folder / "pictures", "pool": "mean"}
    return AttentionLogger(attend, changes.pop("shown", shown(3)), **facts | changes)


def test_a_network_in_plain_torch_gets_exact_maps_rollout_and_relevance(tmp_path: Path) -> None:
    module = TrainsNothing(Told(10))
    randomize(module.model)
    fit(module, told(tmp_path), tmp_path)
    record = records(tmp_path)[-1]
    module.model.eval()
    logits = module.model(normalize(shown(3).images, MEAN, STD))
    maps = module.model.maps
    for kept, expected in zip(record.maps, maps, strict=True):
        assert_within_half_a_step(kept, expected.detach())
    gradients = torch.autograd.grad(logits.amax(dim=1).sum(), maps)
    assert record.relevance is not None
    assert_within_half_a_step(record.relevance, relevance(maps, gradients).detach())
    assert record.header["readout"] == [[0.0] + [1 / 16] * 16] * 3
    assert_close(rollout(record.maps).sum(dim=2), torch.ones(3, 17), atol=0.02, rtol=0)
    best, share = record.header["found"][0][0]
    assert best == shown(3).classes[int(logits[0].argmax())]
    assert share == pytest.approx(float(logits[0].detach().softmax(0).max()), abs=1e-4)
    scalars = set(events(tmp_path).Tags()["scalars"])
    assert {"attention_to_prefix/layer_01_head_02", "share_on_object/relevance", "share_on_object/chance"} <= scalars
    with Image.open(tmp_path / "pictures" / "step_000006_methods.png") as picture:
        assert np.asarray(picture).std() > 10


def test_looking_changes_no_training_and_frozen_weights_have_relevance(tmp_path: Path) -> None:
    drawn = []
    for looks in (told(tmp_path / "looked"), None):
        torch.manual_seed(0)
        module = TrainsNothing(Told(10))
        module.model.requires_grad_(False).head.requires_grad_(True)
        fit(module, looks, tmp_path / ("looked" if looks else "not"))
        drawn.append(torch.stack(module.seen))
    assert torch.equal(*drawn)
    assert records(tmp_path / "looked")[-1].relevance is not None


def test_without_classes_each_image_has_a_name(tmp_path: Path) -> None:
    images = shown(3).images
    named = Shown(images, torch.arange(3), ("a.png", "b\n.png", "犬.png"), MEAN, STD)
    looks = told(tmp_path, attend=lambda module, images: (attend_told(module, images)[0], None), shown=named)
    fit(TrainsNothing(Told(0)), looks, tmp_path, logger=TensorBoardLogger(tmp_path, name="", version=""))
    record = records(tmp_path)[-1]
    assert record.header["titles"] == ["a.png", "b .png", "犬.png"]
    assert record.header["found"] == [[], [], []]
    assert record.relevance is None


def test_maps_of_half_precision_are_drawn_too(tmp_path: Path) -> None:
    def attend(module: LightningModule, images: Tensor) -> tuple[list[Tensor], None]:
        return [one.bfloat16() for one in attend_told(module, images)[0]], None

    fit(TrainsNothing(Told(10)), looks := told(tmp_path, attend=attend), tmp_path)
    assert list(looks.folder.glob("*methods.png"))


def test_several_batches_a_step_are_looked_at_once_and_without_tensorboard_there_are_files(tmp_path: Path) -> None:
    looks = told(tmp_path)
    options = {"accumulate_grad_batches": 3, "max_epochs": 2, "logger": CSVLogger(tmp_path)}
    trainer = fit(TrainsNothing(Told(10)), looks, tmp_path, **options)
    assert trainer.global_step == 4
    names = {file.name for file in looks.folder.glob("*methods.png")}
    assert names == {f"step_{step:06d}_methods.png" for step in range(5)}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda maps, logits: ([], logits), "no maps: does the network use a fused kernel"),
        (
            lambda maps, logits: (torch.stack(maps, dim=1), logits),
            r"maps of \[\(2, 2, 17, 17\)\]; all must be \(1,h,T,T\)",
        ),
        (lambda maps, logits: ([maps[0][:, :, 1:, 1:]], logits), "do not sum to 1"),
        (lambda maps, logits: ([maps[0][:, :, 2:, 2:]], logits), "T at least 16"),
        (lambda maps, logits: ([maps[0].mean(1)], logits), r"maps of \[\(1, 17, 17\)\]"),
        (lambda maps, logits: (maps, logits[:, :5]), r"logits \(1, 5\) for 10 classes"),
        (lambda maps, logits: ([one.detach() for one in maps], logits), "else detach the logits"),
    ],
)
def test_what_cannot_be_shown_is_said_at_the_start(spoil: Any, said: str, tmp_path: Path) -> None:
    looks = told(tmp_path, attend=lambda module, images: spoil(*attend_told(module, images)))
    with pytest.raises((ValueError, RuntimeError), match=said):
        fit(TrainsNothing(Told(10)), looks, tmp_path)
    assert not looks.folder.exists()


def test_images_that_are_no_bytes_are_refused(tmp_path: Path) -> None:
    floats = dataclasses.replace(shown(3), images=torch.rand(3, 3, 32, 32))
    with pytest.raises(ValueError, match=r"torch.float32, not torch.uint8"):
        told(tmp_path, shown=floats)


@pytest.mark.parametrize(
    ("facts", "said"), [({"pool": "map"}, "one of cls mean"), ({"grid": (5, 5)}, "does not divide")]
)
def test_facts_that_are_wrong_are_said(facts: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        fit(TrainsNothing(Told(10)), told(tmp_path, **facts), tmp_path)
