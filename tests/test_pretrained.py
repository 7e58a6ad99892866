"""Weights of other libraries compute here what they compute there; and they can be gone on from at other sizes."""

import dataclasses
import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models import VisionTransformer

from tests.references import noise, randomize, tiny_vit
from tests.running import call, only_run
from vit.data import load_images, normalize
from vit.model import ViT
from vit.settings import UserError
from vit.training import load
from vit.training.checkpoint import find_checkpoint
from vit.training.pretrained import NORMALIZATIONS, fitted, resized_patches, resized_positions, translate

SIZE, HEADS = 16, 2  # pixels; dim 128 has two heads, 64 wide each
Case = tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]


def torchvision_vit(**changes: Any) -> VisionTransformer:
    sizes = {"image_size": SIZE, "patch_size": 4, "num_layers": 2, "num_heads": HEADS, "hidden_dim": 128}
    return VisionTransformer(**sizes | {"mlp_dim": 200, "num_classes": 5} | changes)


def timm_vit(**changes: Any) -> Case:
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": SIZE, "patch_size": 4, "embed_dim": 128, "depth": 2, "num_heads": HEADS, "num_classes": 5}
    return VisionTransformer(**sizes | changes), lambda network, images: network(images)


def of_transformers(network: str, config: str, **changes: Any) -> Case:
    import transformers

    sizes = {"image_size": SIZE, "patch_size": 4, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    sizes |= {"hidden_size": 128, "intermediate_size": 256, "mlp_ratio": 2, "num_labels": 5}
    built = getattr(transformers, network)(getattr(transformers, config)(**sizes), **changes)
    if network.endswith("Model"):
        return built, lambda network, images: network(images).last_hidden_state[:, 0]
    return built, lambda network, images: network(images).logits


CASES: dict[str, tuple[str | None, Callable[[], Case]]] = {
    "torchvision": (None, lambda: (torchvision_vit(), lambda network, images: network(images))),
    "timm": ("timm", timm_vit),
    "timm, no bias of q, k, v": ("timm", lambda: timm_vit(qkv_bias=False)),
    "timm, mean of patches": ("timm", lambda: timm_vit(class_token=False, global_pool="avg", fc_norm=False)),
    "timm, DINO": ("timm", lambda: timm_vit(num_classes=0)),
    "timm, DeiT III": ("timm", lambda: timm_vit(no_embed_class=True, init_values=0.1)),
    "timm, DINOv2": ("timm", lambda: timm_vit(num_classes=0, init_values=0.1)),
    "timm, DINOv2 with registers": (
        "timm",
        lambda: timm_vit(num_classes=0, init_values=0.1, reg_tokens=4, no_embed_class=True),
    ),
    "transformers, ViT": ("transformers", lambda: of_transformers("ViTForImageClassification", "ViTConfig")),
    "transformers, DINO": ("transformers", lambda: of_transformers("ViTModel", "ViTConfig", add_pooling_layer=False)),
    "transformers, DINOv2": ("transformers", lambda: of_transformers("Dinov2Model", "Dinov2Config")),
    "transformers, DINOv2 with registers": (
        "transformers",
        lambda: of_transformers("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig"),
    ),
}


@pytest.mark.filterwarnings("ignore")  # of importing other libraries
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_the_library(name: str, tmp_path: Path) -> None:
    library, build = CASES[name]
    if library:
        pytest.importorskip(library)
    theirs, forward = build()
    randomize(theirs.eval())
    with torch.no_grad():
        for part, value in theirs.named_parameters():
            if "embed" in part or "class_token" in part or "cls_token" in part:
                value *= 0.02  # as small as in trained networks: now what LayerNorm adds to the variance shows
    if hasattr(theirs, "save_pretrained"):  # which renames its weights
        theirs.save_pretrained(tmp_path)
        vit, facts = load(tmp_path)
    else:
        torch.save(theirs.state_dict(), tmp_path / "vit.pth")
        vit, facts = load(tmp_path / "vit.pth")
    images = noise(3, 3, SIZE, SIZE)
    with torch.no_grad():
        expected = forward(theirs, images)
        assert expected.std() > 0.1  # or there would be nothing to compare
        assert_close(vit(images), expected, atol=1e-5, rtol=0)
    renamed, _ = translate(theirs.state_dict())  # as it names them itself
    assert_close(renamed(images), vit(images))
    assert facts.model["heads"] == HEADS
    assert len(facts.classes) == vit.head.out_features


TIMM_NAMES = {  # ours, as regular expressions: theirs, written down from published files
    "patch_embedding.projection": "patch_embed.proj",
    "position.embedding": "pos_embed",
    "layers.": "blocks.",
    "attention.": "attn.",
}
DINOV2_NAMES = {
    "patch_embedding.projection": "embeddings.patch_embeddings.projection",
    "position.embedding": "embeddings.position_embeddings",
    "cls_token": "embeddings.cls_token",
    "layers.": "encoder.layer.",
    "attention.proj": "attention.output.dense",
    "^norm": "layernorm",
}
TRANSFORMERS_NAMES = {
    **DINOV2_NAMES,
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
    "^": "vit.",
    "^vit.head": "classifier",
}


def as_named_by(vit: ViT, names: dict[str, str]) -> dict[str, Tensor]:
    """Our weights under another library's names: patches as a convolution's, and in transformers q, k and v apart."""
    state = {}
    for name, value in vit.state_dict().items():
        if name == "patch_embedding.projection.weight":
            value = value.unflatten(1, (3, 4, 4))
        for our, their in names.items():
            name = re.sub(our, their, name)
        if ".attention.qkv." in name:
            for part, tensor in zip(("query", "key", "value"), value.chunk(3), strict=True):
                state[name.replace("qkv", f"attention.{part}")] = tensor
        else:
            state[name] = value
    return state


def plain_vit(**changes: Any) -> ViT:
    sizes = {"image_size": SIZE, "patch_size": 4, "dim": 128, "heads": HEADS, "pool": "cls", "position": "learned"}
    return tiny_vit(**sizes | changes)


@pytest.mark.parametrize(
    ("names", "beginning", "eps"), [(TIMM_NAMES, "module.", 1e-6), (TRANSFORMERS_NAMES, "", 1e-12)]
)
def test_weights_under_a_librarys_names_come_back(names: dict[str, str], beginning: str, eps: float) -> None:
    """Without the library, which not everybody has."""
    ours = plain_vit(norm_eps=eps)
    vit, facts = translate({beginning + name: value for name, value in as_named_by(ours, names).items()})
    assert facts.model["norm_eps"] == eps
    assert facts.mean == NORMALIZATIONS["half"][0]
    assert_close(vit.state_dict(), ours.state_dict())
    assert_close(vit(noise(2, 3, SIZE, SIZE)), ours(noise(2, 3, SIZE, SIZE)))


@pytest.mark.parametrize("names", [TIMM_NAMES, DINOV2_NAMES])
def test_layer_scale_registers_and_a_missing_head(names: dict[str, str]) -> None:
    """DINOv2: each half of a layer is scaled, channel by channel, before it is added."""
    ours = plain_vit(registers=3)
    state = as_named_by(ours, names)
    state["mask_token" if names is TIMM_NAMES else "embeddings.mask_token"] = noise(1, 128)
    registers = "register_tokens" if names is TIMM_NAMES else "embeddings.register_tokens"
    state[registers] = state.pop("registers")
    state = {name: value for name, value in state.items() if not name.startswith("head.")}
    for layer in range(2):
        for half, part in ((1, "attention.proj"), (2, "mlp.fc2")):
            gamma = noise(128, seed=10 * layer + half)
            name = f"ls{half}.gamma" if names is TIMM_NAMES else f"layer_scale{half}.lambda1"
            state[f"{names['layers.']}{layer}.{name}"] = gamma
            projection = ours.get_submodule(f"layers.{layer}.{part}")
            projection.register_forward_hook(lambda _module, _inputs, output, gamma=gamma: gamma * output)
    vit, facts = translate(state)
    images = noise(2, 3, SIZE, SIZE)
    assert_close(vit(images), ours.features(images), atol=1e-5, rtol=0)
    assert "no head" in facts.images
    assert "left out: " in facts.images
    assert facts.classes[127] == "feature 127"
    assert facts.mean == NORMALIZATIONS["imagenet"][0]


def test_a_class_token_without_a_position() -> None:
    ours = plain_vit()
    state = as_named_by(ours, TIMM_NAMES)
    state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
    state["pos_embed"] = state["pos_embed"][:, 1:]
    vit, _ = translate(state)
    images = noise(2, 3, SIZE, SIZE)
    assert_close(vit(images), ours(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"norm.weight": None, "fc_norm.weight": 128},
            "no place for fc_norm.weight; it lacks norm.weight",
        ),
        ({"blocks.0.attn.q_norm.weight": 64}, "no place for blocks.0.attn.q_norm.weight"),
        (
            {"dist_token": (1, 1, 128), "pos_embed": (1, 18, 128)},
            "no place for dist_token; of an odd shape are pos",
        ),
        ({"blocks.1.mlp.fc1.weight": (30, 128)}, "of an odd shape are blocks.1.mlp.fc1.weight"),
        ({"blocks.0.mlp.fc2.weight": None}, "it lacks layers.0.mlp.fc2.weight"),
        ({"pos_embed": None}, "it lacks position.embedding"),
        (
            {"patch_embed.proj.weight": None},
            "or transformers has such names as cls_token",
        ),
        ({"patch_embed.proj.weight": (128, 1, 4, 4)}, "images of 1 channels instead of 3"),
        ({"norm.weight": torch.full((128,), torch.nan)}, "not finite are norm.weight"),
        ({"epoch": 3}, "other things than tensors"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    state: dict[str, Any] = as_named_by(plain_vit(), TIMM_NAMES)
    for name, value in change.items():
        if value is None:
            state.pop(name, None)
        else:
            state[name] = torch.ones(value) if name != "epoch" and not isinstance(value, Tensor) else value
    torch.save(state, tmp_path / "vit.pth")
    with pytest.raises(UserError, match=r"vit\.pth cannot be used") as error:
        load(tmp_path / "vit.pth")
    assert said in str(error.value)


def test_heads_that_cannot_be_seen_must_be_told(tmp_path: Path) -> None:
    ours = plain_vit(dim=48, heads=3)
    torch.save({"state_dict": as_named_by(ours, TIMM_NAMES)}, tmp_path / "vit.pt")
    with pytest.raises(UserError, match=r"dim=48 is no multiple of 64, .* add heads="):
        load(tmp_path / "vit.pt")
    vit, facts = load(tmp_path / "vit.pt", heads=3)
    images = noise(2, 3, SIZE, SIZE)
    assert_close(vit(images), ours(images))
    assert facts.classes == ("class 0", "class 1", "class 2", "class 3", "class 4")
    with pytest.raises(UserError, match="heads=5 does not divide dim=48"):
        load(tmp_path / "vit.pt", heads=5)


class Harm:
    def __reduce__(self) -> tuple:
        return (pytest.fail, ("the file's code ran",))


@pytest.mark.parametrize("name", ["vit.pth", "vit.bin", "vit.safetensors"])
def test_code_in_a_file_is_not_run(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps({"cls_token": Harm()}))
    with pytest.raises(UserError, match="cannot be read as tensors alone, without code"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("shape", "said"), [((8192, 3, 1, 1), "lacks the layers of a ViT"), ((0, 3, 16, 16), "cannot be used")]
)
def test_one_odd_weight_asks_for_nothing_large(shape: tuple[int, ...], said: str, tmp_path: Path) -> None:
    save_file({"patch_embed.proj.weight": torch.zeros(shape)}, tmp_path / "odd.safetensors")
    with pytest.raises(UserError, match=said):
        load(tmp_path / "odd.safetensors")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda name, value: value.to(torch.int8), "no plain floating-point numbers"),
        (lambda name, value: value.to(torch.complex64), "no plain floating-point numbers"),
        (lambda name, value: value[:0] if name.startswith("heads.head") else value, "0 classes: no ViT"),
        (lambda name, value: value[:, :0] if name.endswith("pos_embedding") else value, "cannot be used"),
    ],
)
def test_weights_of_no_network_get_one_line(change: Callable, said: str, tmp_path: Path) -> None:
    weights = {name: change(name, value).clone() for name, value in torchvision_vit().state_dict().items()}
    torch.save(weights, tmp_path / "odd.pth")
    with pytest.raises(UserError, match=said):
        load(tmp_path / "odd.pth")


def test_a_network_of_endless_numbers_predicts_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    torch.save({name: value * 1e30 for name, value in torchvision_vit().state_dict().items()}, tmp_path / "huge.pth")
    monkeypatch.chdir(tmp_path)
    words = ["checkpoint=huge.pth", f"images={tiny / 'test' / 'cat' / '0.png'}", "heads=2"]
    assert call("predict", words, monkeypatch) == 1
    assert "not finite" in capsys.readouterr().err


def test_a_runs_own_checkpoint_comes_before_other_weights_in_its_folder(finished: Path) -> None:
    (finished / "model.safetensors").write_bytes(b"of another program")
    assert find_checkpoint(finished) == finished / "last.ckpt"


def test_the_network_keeps_no_memory_of_the_librarys() -> None:
    weights = torchvision_vit().state_dict()
    vit, _ = translate(weights, normalization="imagenet")
    with torch.no_grad():
        vit.head.weight.add_(1)
    assert not torch.equal(vit.head.weight, weights["heads.head.weight"])


def test_a_small_file_cannot_claim_large_weights(tmp_path: Path) -> None:
    state = {name: torch.ones(1).expand(value.shape) for name, value in as_named_by(plain_vit(), TIMM_NAMES).items()}
    torch.save(state, tmp_path / "vit.pth")
    with pytest.raises(UserError, match="larger than the file"):
        load(tmp_path / "vit.pth")


@pytest.mark.parametrize("larger", [6, 7, 8])
def test_resized_patches_give_resized_images_the_same_tokens(larger: int) -> None:
    """Exactly, where nothing of the image is lost."""
    weight, patches = noise(5, 3, 4, 4), noise(10, 3, 4, 4, seed=1)
    resized = F.interpolate(patches, (larger, larger), mode="bicubic", antialias=True)
    tokens = torch.einsum("nchw,dchw->nd", resized, resized_patches(weight, larger))
    assert_close(tokens, torch.einsum("nchw,dchw->nd", patches, weight), atol=1e-4, rtol=0)


@pytest.mark.filterwarnings("ignore")
def test_resizing_equals_timms() -> None:
    layers = pytest.importorskip("timm.layers")
    positions = noise(1, 26, 8)
    for grid in ((5, 5), (3, 4), (8, 8)):
        expected = layers.resample_abs_pos_embed(positions, list(grid), [5, 5])
        assert_close(resized_positions(positions, (5, 5), grid), expected)
    weight = noise(5, 3, 16, 16)
    for size in (4, 14, 16, 20):
        expected = layers.resample_patch_embed(weight, [size, size])
        assert_close(resized_patches(weight, size), expected, atol=1e-4, rtol=0)


def test_another_normalization_and_other_classes_change_no_feature() -> None:
    source, facts = translate(as_named_by(plain_vit(), TIMM_NAMES))
    images = torch.randint(0, 256, (3, 3, SIZE, SIZE), dtype=torch.uint8)
    after = dataclasses.replace(facts, mean=(0.1, 0.4, 0.7), std=(0.2, 0.3, 0.1), classes=("cat", "dog"))
    after = dataclasses.replace(after, model={**facts.model, "classes": 2})
    vit = fitted(source, facts, after)
    expected = source.features(normalize(images, facts.mean, facts.std))
    assert_close(vit.features(normalize(images, after.mean, after.std)), expected, atol=1e-4, rtol=0)
    assert vit.head.weight.count_nonzero() == 0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """torchvision's, of the sizes that the words of a run have, but for images of 16×16."""
    network = torchvision_vit(hidden_dim=16, mlp_dim=24)
    randomize(network)
    torch.save(network.state_dict(), tmp_path / "vit_b_16.pth")
    return tmp_path / "vit_b_16.pth"


def test_a_run_begins_with_a_files_weights_at_other_sizes(
    file: Path, words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([*words, f"init_from={file}", "patch_size=2", "lr=0", "epochs=1"]) == 0
    out = capsys.readouterr().out
    assert "torchvision's ViT, dim 16, 2 layers of 2 heads (8 wide), patches of 4 at 16" in out
    (line,) = [line for line in out.splitlines() if line.startswith("by init_from")]
    assert set(line.split()[2:]) >= {"pool=cls", "position=learned", "similarity=dot", "init=xavier", "body_lr=0.1"}
    run = only_run(tmp_path / "runs")
    vit, facts = load(run)
    assert facts.model["image_size"] == (8, 8)
    assert (facts.model["pool"], facts.model["position"], facts.model["mlp_ratio"]) == ("cls", "learned", 1.5)
    assert {name: facts.settings[name] for name in ("optimizer", "lr", "body_lr")} == {
        "optimizer": "adamw",
        "lr": 0,
        "body_lr": 0.1,
    }
    assert "init_from" not in facts.settings
    source, before = load(file, heads=2)
    assert_close(vit.state_dict(), fitted(source, before, facts).state_dict())
    assert_close(vit.layers.state_dict(), source.layers.state_dict())
    for name in ("last.ckpt", "best.ckpt"):
        (run / name).unlink()
    assert train([f"resume={run}"]) == 0  # no epoch was finished: it begins again, with the file
    assert_close(load(run)[0].state_dict(), vit.state_dict())


def test_a_frozen_body_stays_and_is_seen(
    file: Path, words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    assert train([*words, f"init_from={file}", "body_lr=0", "epochs=1", "weight_decay=0.1"]) == 0
    assert "could not be drawn" not in capsys.readouterr().out
    run = only_run(tmp_path / "runs")
    assert list((run / "pictures").glob("*_methods.png"))
    source, _ = load(file, heads=2)
    file.unlink()  # a resumed run needs it no longer
    assert train([f"resume={run}", "epochs=2"]) == 0
    vit, facts = load(run)
    assert facts.epoch == 2
    assert_close(vit.layers.state_dict(), source.layers.state_dict(), atol=0, rtol=0)
    assert_close(vit.cls_token, source.cls_token, atol=0, rtol=0)
    assert vit.head.weight.count_nonzero() > 0


def test_a_lower_rate_for_the_body(file: Path, words: list[str], tmp_path: Path, train: Callable) -> None:
    """AdamW's first step is about the rate, whatever the gradient."""
    assert train([*words, f"init_from={file}", "epochs=1", "validation=58", "warmup=0", "weight_decay=0"]) == 0
    vit, facts = load(only_run(tmp_path / "runs"))
    assert facts.step == 1
    begun = fitted(*load(file, heads=2), facts)
    moved = {name: (value - begun.state_dict()[name]).abs().max().item() for name, value in vit.state_dict().items()}
    assert moved["head.bias"] == pytest.approx(1e-3, rel=0.01)
    assert moved["norm.bias"] == moved["layers.0.mlp.fc1.weight"] == 0  # the head began at zero, and gave no gradient


def test_a_run_begins_with_another_run(words: list[str], tmp_path: Path, train: Callable) -> None:
    assert train([*words, "epochs=1", "position=learned", "similarity=cosine"]) == 0
    first = only_run(tmp_path / "runs")
    words = [word for word in words if not word.startswith(("runs=", "dim=", "depth=", "heads=", "image_size="))]
    again = [*words, f"runs={tmp_path / 'again'}", f"init_from={first}", "image_size=12", "lr=0", "epochs=1"]
    assert train(again) == 0
    vit, facts = load(only_run(tmp_path / "again"))
    before, _ = load(first)
    assert facts.model["similarity"] == "cosine"
    assert vit.grid == (3, 3)
    assert_close(vit.head.state_dict(), before.head.state_dict())  # of the same classes
    assert_close(vit.layers.state_dict(), before.layers.state_dict())


def test_a_result_tells_which_network_its_run_began_with(
    small_run: Path, words: list[str], tmp_path: Path, train: Callable
) -> None:
    """Also after a resume, which no longer needs that network; and two networks are told apart."""
    begun = set()
    for number in (0, 1):
        first = Path(shutil.copytree(small_run, tmp_path / f"first_{number}"))
        if number:
            content = torch.load(first / "last.ckpt", weights_only=True)
            next(iter(content["state_dict"].values())).add_(1e-3)
            torch.save(content, first / "last.ckpt")
        runs = tmp_path / f"runs_{number}"
        assert train([*words, "depth=1", f"runs={runs}", f"init_from={first}", "epochs=1"]) == 0
        shutil.rmtree(first)
        assert train([f"resume={only_run(runs)}", "epochs=2"]) == 0
        begun.add(json.loads((only_run(runs) / "result.json").read_text())["begun_from"])
    assert len(begun) == 2
    assert all(re.fullmatch(r"images of tiny\d*, epoch 1, weights [0-9a-f]{12}", told) for told in begun)
    assert "begun_from" not in json.loads((small_run / "result.json").read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["init_from=nowhere.pth"], "nowhere.pth is not there"),
        (["dim=32", "heads=2"], "dim=32 contradicts"),
        (["heads=3"], "heads=3 does not divide dim=16"),
        (["heads=2", "pool=mean"], "which has pool=cls"),
        (["heads=2", "image_size=10"], "patch_size=4 does not divide image_size=10"),
        (["heads=2", "patch_size=3"], "patch_size=3 does not divide image_size=16"),
    ],
)
def test_mistakes_with_init_from_get_one_line(
    words: list[str], said: str, file: Path, tiny: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    first = [] if words[0].startswith("init_from") else [f"init_from={file}"]
    assert train(["data=folder", f"data.root={tiny}", f"runs={file.parent / 'runs'}", *first, *words]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


def test_predict_shows_what_another_librarys_network_sees(
    file: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    picture = tiny / "test" / "cat" / "0.png"
    words = [f"checkpoint={file}", f"images={picture}", "heads=2", "normalization=half"]
    assert call("predict", [*words, "explorer=true"], monkeypatch) == 0
    out = capsys.readouterr().out
    network = torchvision_vit(hidden_dim=16, mlp_dim=24)
    network.load_state_dict(torch.load(file, weights_only=True))
    images = load_images("folder", root=tiny, image_size=(SIZE, SIZE)).test.images[:1]
    shares = network.eval()(images / 127.5 - 1).softmax(1)[0].sort(descending=True)
    line = next(line for line in out.splitlines() if line.startswith("0.png"))
    expected = zip(shares.indices.tolist(), shares.values.tolist(), strict=True)
    assert line.split("  ")[1:] == [f"class {label} {100 * share:.1f} %" for label, share in expected]
    assert "normalization=half" in out
    assert (tmp_path / "predictions" / "0.png.png").is_file()
    assert (tmp_path / "predictions" / "explorer.html").is_file()
    assert call("predict", [*words, "image_size=24"], monkeypatch) == 0
    assert call("predict", [*words, "image_size=10"], monkeypatch) == 1
    assert "patch_size=4 does not divide image_size=(10, 10)" in capsys.readouterr().err


def test_evaluate_says_what_to_do_instead(file: Path, evaluate: Callable, capsys: pytest.CaptureFixture) -> None:
    save_file(plain_vit().state_dict(), file.parent / "own.safetensors")
    state = as_named_by(plain_vit(), TIMM_NAMES)
    torch.save({"model": state}, file.parent / "deit.pth")
    assert load(file.parent / "deit.pth")[1].mean == NORMALIZATIONS["imagenet"][0]  # as DeiT's authors wrap theirs
    assert evaluate([f"checkpoint={file.parent / 'deit.pth'}"]) == 1
    assert "does not say on which images and classes" in capsys.readouterr().err
