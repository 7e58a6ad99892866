"""The network from outside: what goes in, what comes out, and what can be seen of it."""

import inspect
import itertools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from tests.references import noise, randomize, tiny_vit, use_kernel
from vit.model import MLP, Attention, EncoderLayer, MultiHeadSelfAttention, PatchEmbedding, ViT, attention_kernel
from vit.model.attention import EXPLICIT_TOKENS, SIMILARITIES
from vit.model.initialization import INITS
from vit.model.pooling import POOLS
from vit.model.position import POSITIONS
from vit.settings import TrainSettings

IMAGES = noise(3, 3, 8, 8)
EACH_POOL = pytest.mark.parametrize("pool", POOLS)
EACH_POSITION = pytest.mark.parametrize("position", POSITIONS)
OPTIONS: list[dict[str, object]] = [
    {"pool": "cls"},
    {"pool": "sequence"},
    {"position": "learned"},
    {"position": "rope"},
    {"position": "none"},
    {"registers": 3},
    {"similarity": "cosine"},
    {"drop_path": 0.5},
    {"qkv_bias": False},
    {"init": "mimetic"},
]
PAIRS = [one | other for one, other in itertools.combinations(OPTIONS, 2) if one.keys() != other.keys()]
EACH_OPTION = pytest.mark.parametrize("options", OPTIONS, ids=str)
EACH_PAIR = pytest.mark.parametrize("options", [*OPTIONS, *PAIRS], ids=str)
EACH_KERNEL = pytest.mark.parametrize("kernel", ["explicit", "fused"])


def tensors_of(seen: Attention) -> list[Tensor]:
    return [*seen.maps, *seen.tokens, seen.logits, seen.readout, seen.features]


def tokens_before_pool(vit: ViT) -> Tensor:
    x = vit.embed(IMAGES)
    for layer in vit.layers:
        x = layer(x)
    return vit.norm(x)


@EACH_PAIR
@EACH_KERNEL
def test_V8_logits_are_the_same_with_and_without_maps(
    options: dict, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kernel(kernel, monkeypatch)
    vit = tiny_vit(**options)
    logits = vit(IMAGES)
    assert logits.shape == (3, 5)
    assert logits.std() > 0.1
    assert_close(vit.attend(IMAGES).logits, logits, atol=1e-5, rtol=0)


@EACH_PAIR
def test_every_option_has_an_effect_also_beside_another(options: dict) -> None:
    vit = tiny_vit(**options).train()
    for name in options.keys() - {"init"}:  # where weights begin: see test_parity
        without = tiny_vit(**{key: value for key, value in options.items() if key != name}).train()
        shapes = {key: value.shape for key, value in without.state_dict().items()}
        same = {key: value for key, value in vit.state_dict().items() if value.shape == shapes.get(key)}
        without.load_state_dict(same, strict=False)  # the same weights, where both have them
        torch.manual_seed(1)
        logits = vit(IMAGES)
        torch.manual_seed(1)
        assert not torch.allclose(logits, without(IMAGES), atol=1e-4), name


@pytest.mark.parametrize("look", [torch.no_grad, torch.inference_mode, nullcontext])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("pool", "tokens"), [("mean", 16), ("cls", 17), ("sequence", 16)])
def test_V8_V9_maps_of_every_layer_and_head_in_every_mode(
    look: Callable[[], AbstractContextManager], training: bool, pool: str, tokens: int
):
    vit = tiny_vit(pool=pool).train(training)
    with look():
        maps = vit.attention_maps(IMAGES)
    assert maps.shape == (3, 2, 4, tokens, tokens)
    assert not maps.requires_grad
    assert_close(maps, torch.stack(vit.attend(IMAGES).maps, dim=1))


def test_V5_rows_of_maps_sum_to_1_and_columns_do_not():
    maps = tiny_vit().attention_maps(IMAGES)
    assert_close(maps.sum(-1), torch.ones(3, 2, 4, 16))
    assert (maps.sum(-2) - 1).abs().amax(dim=-1).min() > 0.05  # in every map
    assert maps.min() >= 0


@pytest.mark.parametrize("kernel", ["explicit", "fused"])
def test_maps_times_values_are_the_layers_output(kernel: str, monkeypatch: pytest.MonkeyPatch):
    use_kernel(kernel, monkeypatch)
    layer = MultiHeadSelfAttention(16, 4)
    randomize(layer)
    x = noise(2, 7, 16)
    output, maps = layer.attend(x)
    v = F.linear(x, layer.qkv.weight[32:], layer.qkv.bias[32:])
    mixed = torch.cat([maps[:, head] @ v[:, :, 4 * head : 4 * head + 4] for head in range(4)], dim=2)
    expected = F.linear(mixed, layer.proj.weight, layer.proj.bias)
    assert_close(output, expected, atol=1e-6, rtol=0)
    assert_close(layer(x), expected, atol=1e-5, rtol=0)


@EACH_PAIR
@EACH_KERNEL
def test_V4_every_parameter_gets_a_gradient(options: dict, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernel(kernel, monkeypatch)
    vit = tiny_vit(**options).train()
    torch.manual_seed(0)  # for what drop_path drops
    F.cross_entropy(vit(IMAGES), torch.arange(3)).backward()
    gradients = {}
    for name, parameter in vit.named_parameters():
        if name.endswith("qkv.weight"):
            gradients |= zip([f"{name} of {part}" for part in "qkv"], parameter.grad.chunk(3), strict=True)
        elif name.endswith("qkv.bias"):  # not of k: what it adds to all scores of a query, softmax takes away
            gradients |= {f"{name} of q": parameter.grad[:16], f"{name} of v": parameter.grad[32:]}
        elif name != "pool.score.bias":  # for the same reason
            gradients[name] = parameter.grad
    assert [name for name, gradient in gradients.items() if gradient is None or gradient.abs().max() < 1e-5] == []
    assert ("layers.1.attention.qkv.bias of q" in gradients) == options.get("qkv_bias", True)


@EACH_PAIR
def test_number_of_parameters_is_that_of_the_formula(options: dict) -> None:
    dim, depth, heads, hidden, patches, patch, classes = 16, 2, 4, 32, 16, 12, 5
    tokens = patches + (options.get("pool") == "cls")
    per_layer = 4 * dim  # norms
    per_layer += 3 * dim * dim + 3 * dim * options.get("qkv_bias", True) + dim * dim + dim
    per_layer += dim * hidden + hidden + hidden * dim + dim
    per_layer += heads * (options.get("similarity") == "cosine")
    outside = patch * dim + dim + 2 * dim + dim * classes + classes
    outside += dim * (options.get("pool") == "cls") + dim * (options.get("pool") == "sequence")
    outside += tokens * dim * (options.get("position") == "learned") + dim * options.get("registers", 0)
    assert sum(p.numel() for p in tiny_vit(**options).parameters()) == depth * per_layer + outside


def test_V4_values_alone_leave_the_map_unchanged():
    layer = MultiHeadSelfAttention(16, 4)
    randomize(layer)
    x = noise(2, 7, 16)
    with torch.no_grad():
        output, maps = layer.attend(x)
        layer.qkv.weight[32:] += 1
        changed, same_maps = layer.attend(x)
        assert torch.equal(maps, same_maps)
        assert not torch.allclose(output, changed, atol=0.1)
        layer.qkv.weight[:32] += noise(32, 16)
        assert not torch.allclose(layer.attend(x)[1], maps, atol=0.1)


@EACH_POOL
@pytest.mark.parametrize("classes", [2, 10])
def test_V17_first_loss_is_that_of_a_guess(pool: str, classes: int):
    vit = ViT(image_size=8, depth=1, dim=16, heads=2, pool=pool, classes=classes)
    assert F.cross_entropy(vit(IMAGES), torch.tensor([0, 1, 1])).item() == pytest.approx(math.log(classes))


@pytest.mark.parametrize("options", [*OPTIONS, *(pair for pair in PAIRS if pair.get("pool") == "cls")], ids=str)
def test_V17_every_option_learns_from_where_it_begins(options: dict) -> None:
    torch.manual_seed(0)
    vit = ViT(**{"image_size": 8, "patch_size": 2, "dim": 16, "depth": 2, "heads": 4, "classes": 5} | options)
    labels = torch.arange(3)
    optimizer = torch.optim.AdamW(vit.parameters(), lr=0.01)
    for _ in range(50):
        optimizer.zero_grad()
        torch.manual_seed(0)  # drop_path drops the same half-layers each time
        loss = F.cross_entropy(vit(IMAGES), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.9  # the best guess without looking: ln 3 = 1.1


@EACH_POOL
@pytest.mark.parametrize("registers", [0, 3])
def test_readout_weighs_the_normalized_tokens(pool: str, registers: int) -> None:
    vit = tiny_vit(pool=pool, registers=registers)
    seen = vit.attend(IMAGES)
    tokens = tokens_before_pool(vit)
    assert tokens.shape == (3, registers + (17 if pool == "cls" else 16), 16)
    assert_close(seen.readout.sum(1), torch.ones(3))
    first = vit.pool.prefix_tokens  # the class token stands before the registers
    assert seen.readout[:, first : first + registers].count_nonzero() == 0
    assert_close(torch.einsum("bt,btd->bd", seen.readout, tokens), seen.features, atol=1e-5, rtol=0)
    assert_close(vit.head(seen.features), seen.logits)
    read = torch.cat([seen.readout[:, :first], seen.readout[:, first + registers :]], dim=1)
    expected = {"mean": torch.full((16,), 1 / 16), "cls": torch.eye(17)[0]}
    if pool in expected:
        assert_close(read, expected[pool].expand(3, -1))
    else:
        assert read.std(dim=1).min() > 0.01  # learned: not even


def test_tokens_are_what_each_layer_leaves() -> None:
    vit = tiny_vit(depth=3)
    x = vit.embed(IMAGES)
    for layer, left in zip(vit.layers, vit.attend(IMAGES).tokens, strict=True):
        x = layer(x)
        assert_close(left, x, atol=1e-5, rtol=0)


def test_edit_sees_each_layer_and_may_leave_it():
    vit, layers = tiny_vit(depth=3), []

    def edit(layer: int, weights: Tensor) -> Tensor:
        layers.append((layer, weights.shape))
        return weights

    seen, edited = vit.attend(IMAGES), vit.attend(IMAGES, edit)
    assert layers == [(layer, (3, 4, 16, 16)) for layer in range(3)]
    assert torch.equal(seen.logits, edited.logits)


@pytest.mark.parametrize(("layer", "head"), [(0, 0), (0, 3), (1, 2)])
def test_edit_can_knock_out_a_head(layer: int, head: int):
    vit = tiny_vit()

    def knock_out(index: int, weights: Tensor) -> Tensor:
        return weights * (torch.arange(4) != head)[:, None, None] if index == layer else weights

    whole, edited = vit.attend(IMAGES), vit.attend(IMAGES, knock_out)
    assert edited.maps[layer][:, head].count_nonzero() == 0
    with torch.no_grad():
        vit.layers[layer].attention.proj.weight[:, 4 * head : 4 * head + 4] = 0
    assert not torch.allclose(edited.logits, whole.logits, atol=1e-3)
    assert_close(edited.logits, vit(IMAGES), atol=1e-5, rtol=0)


@EACH_OPTION
def test_gradient_flows_through_every_map(options: dict) -> None:
    seen = tiny_vit(**options).attend(IMAGES)
    gradients = torch.autograd.grad(seen.logits[:, 0].sum(), seen.maps)
    for gradient, weights in zip(gradients, seen.maps, strict=True):
        assert gradient.shape == weights.shape
        assert gradient.isfinite().all()
        assert (gradient.abs().amax(dim=(2, 3)) > 1e-6).all()  # of every head for every image


@EACH_OPTION
def test_the_residual_stream_has_the_type_of_the_products(options: dict) -> None:
    """Whatever was added before the layers: a stream in float32 would take a tenth more memory under autocast."""
    vit = tiny_vit(**options)
    seen: list[torch.dtype] = []
    for layer in vit.layers:
        layer.register_forward_hook(lambda module, inputs, output: seen.extend([inputs[0].dtype, output.dtype]))
    with torch.autocast("cpu", torch.bfloat16):
        vit(IMAGES)
    assert set(seen) == {torch.bfloat16}
    seen.clear()
    vit(IMAGES)
    assert set(seen) == {torch.float32}


@EACH_OPTION
def test_what_is_seen_is_float32_under_autocast(options: dict) -> None:
    vit = tiny_vit(**options)
    expected = vit.attend(IMAGES)
    with torch.autocast("cpu", torch.bfloat16):
        assert vit(IMAGES).dtype == torch.bfloat16
        seen = vit.attend(IMAGES)
    for ours, exact in zip(tensors_of(seen), tensors_of(expected), strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, exact)


@pytest.mark.parametrize("where", ["dropout", "attention_dropout"])
@pytest.mark.parametrize("kernel", ["explicit", "fused"])
def test_dropout_acts_in_training_only(where: str, kernel: str, monkeypatch: pytest.MonkeyPatch):
    use_kernel(kernel, monkeypatch)
    vit = tiny_vit(**{where: 0.5})
    assert torch.equal(vit(IMAGES), vit(IMAGES))
    assert_close(vit(IMAGES), tiny_vit()(IMAGES))
    vit.train()
    assert not torch.allclose(vit(IMAGES), vit(IMAGES), atol=1e-3)


@pytest.mark.parametrize(
    ("block", "share"),
    [
        (lambda vit: vit.embed(noise(8, 3, 8, 8)), 0.5),
        (lambda vit: vit.layers[1].attention(noise(8, 16, 16)), 0.5),
        (lambda vit: vit.layers[1].mlp(noise(8, 16, 16)), 0.75),  # of the hidden units, and of the output
    ],
    ids=["embedding", "attention", "mlp"],
)
def test_dropout_drops_its_share(block: Callable[[ViT], Tensor], share: float):
    vit = tiny_vit(dropout=0.5, mlp_ratio=1).train()
    nn.init.eye_(vit.layers[1].mlp.fc2.weight)
    nn.init.zeros_(vit.layers[1].mlp.fc2.bias)
    torch.manual_seed(0)
    assert (block(vit) == 0).float().mean().item() == pytest.approx(share, abs=0.05)


def test_maps_are_those_before_dropout():
    layer = MultiHeadSelfAttention(16, 4, attention_dropout=0.5)
    randomize(layer)
    x = noise(2, 7, 16)
    output, maps = layer.attend(x)
    quiet_output, quiet_maps = layer.eval().attend(x)
    assert torch.equal(maps, quiet_maps)
    assert not torch.allclose(output, quiet_output, atol=0.1)


@EACH_POOL
@EACH_POSITION
def test_image_need_not_be_square(pool: str, position: str):
    vit = tiny_vit(image_size=(4, 12), pool=pool, position=position)
    images = noise(2, 3, 4, 12)
    assert vit.grid == (2, 6)
    assert vit.attention_maps(images).shape[-1] == 12 + vit.prefix_tokens
    images[:, :, 2:4, 8:10] += 1  # the patch in row 1, column 4
    changed = (vit.embed(images) - vit.embed(noise(2, 3, 4, 12))).abs().amax(dim=(0, 2)) > 1e-6
    assert changed.nonzero().tolist() == [[vit.prefix_tokens + 1 * 6 + 4]]


@EACH_POSITION
def test_position_makes_order_matter_and_none_does_not(position: str) -> None:
    vit = tiny_vit(position=position)
    patches = IMAGES.unflatten(3, (4, 2))
    moved = patches[:, :, :, [2, 0, 3, 1]].flatten(3)  # columns of patches, neither rolled nor flipped
    assert torch.allclose(vit(IMAGES), vit(moved), atol=1e-5) == (position == "none")


def test_registers_act_on_the_patches_but_have_no_place() -> None:
    vit = tiny_vit(registers=3, position="learned")
    assert vit.position.embedding.shape == (1, 16, 16)
    before = vit(IMAGES)
    with torch.no_grad():
        vit.registers.copy_(vit.registers[:, [2, 0, 1]])
        assert_close(vit(IMAGES), before, atol=1e-5, rtol=0)  # a set
        vit.registers.mul_(3)
    assert not torch.allclose(vit(IMAGES), before, atol=1e-3)


def test_registers_begin_apart() -> None:
    registers = ViT(registers=4).registers[0]
    assert torch.cdist(registers, registers).add(torch.eye(4)).min() > 0.1


def test_drop_path_leaves_out_whole_half_layers_of_each_image_by_itself() -> None:
    layer = EncoderLayer(16, 4, drop_path=0.25).train()
    randomize(layer)
    x = noise(1, 7, 16).expand(4000, -1, -1)
    attended = layer.attention(layer.norm1(x[:1]))
    torch.manual_seed(0)
    first = layer.drop_path(attended.expand(4000, -1, -1))
    kept = (first != 0).flatten(1).any(1)
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.03)
    assert_close(first[kept], (attended / 0.75).expand(int(kept.sum()), -1, -1))
    outputs = {tuple(out.flatten()[:4].tolist()) for out in layer(x).detach().round(decimals=3)}
    assert len(outputs) == 4  # both halves, one of them, none
    assert torch.equal(layer.eval()(x[:2]), layer(x[:2]))


def test_drop_path_rises_evenly_to_the_last_layer() -> None:
    rates = [layer.drop_path.p for layer in ViT(depth=5, drop_path=0.2).layers]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert ViT(depth=1, drop_path=0.2).layers[0].drop_path.p == 0.2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param({"heads": 7}, r"heads=7 .*dim=16", id="V1 heads"),
        pytest.param({"patch_size": 5}, r"patch_size=5 .*image_size=\(8, 8\)", id="V7 patch"),
        pytest.param({"image_size": (8, 9)}, r"patch_size=2 .*image_size=\(8, 9\)", id="V7 one side"),
        pytest.param({"pool": "max"}, r"pool=max .*mean cls sequence", id="pool"),
        pytest.param({"position": "sine"}, r"position=sine .*learned sincos rope none", id="position"),
        pytest.param({"init": "kaiming"}, r"init=kaiming .*xavier mimetic", id="init"),
        pytest.param({"similarity": "euclid"}, r"similarity=euclid .*dot cosine", id="similarity"),
        pytest.param({"drop_path": 1.0}, r"drop_path=1.0 is not .* below 1", id="drop_path"),
        pytest.param({"registers": -1}, r"registers=-1 is negative", id="registers"),
        pytest.param({"position": "rope", "heads": 8}, r"by 4, not dim / heads = 2", id="rope"),
        pytest.param({"position": "sincos", "dim": 6, "heads": 2}, r"by 4, not dim=6", id="sincos"),
    ],
)
def test_V1_V7_what_does_not_fit_is_refused_with_both_numbers(wrong: dict, message: str):
    with pytest.raises(ValueError, match=message):
        tiny_vit(**wrong)


@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (1, 1, 8, 8), (1, 3, 4, 16), (3, 8, 8), (1, 8, 8, 3)])
def test_V7_images_of_another_shape_are_refused(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"images of shape \(.*\), but this network takes \(3, 8, 8\)"):
        tiny_vit()(torch.zeros(shape))


@pytest.mark.parametrize("block", [ViT, MultiHeadSelfAttention, PatchEmbedding, MLP])
def test_misspelt_keyword_is_refused(block: type[nn.Module]):
    needed = {MultiHeadSelfAttention: (16, 4), PatchEmbedding: ((8, 8), 2), MLP: (16, 32)}
    with pytest.raises(TypeError, match="head_s"):
        block(*needed.get(block, ()), head_s=4)


def test_choices_and_defaults_are_those_of_the_settings():
    table = TrainSettings.fields()
    assert set(table["pool"].metadata["key"].choices) == set(POOLS)
    assert set(table["position"].metadata["key"].choices) == set(POSITIONS)
    assert set(table["similarity"].metadata["key"].choices) == set(SIMILARITIES)
    assert set(table["init"].metadata["key"].choices) == set(INITS)
    defaults = {name: parameter.default for name, parameter in inspect.signature(ViT).parameters.items()}
    shared = (defaults.keys() & table.keys()) - {"image_size"}  # a side here, two numbers there
    assert len(shared) == 15
    assert {name: defaults[name] for name in shared} == {name: table[name].default for name in shared}


@EACH_PAIR
def test_V16_nothing_is_float64(options: dict) -> None:
    vit = tiny_vit(**options)
    kept = [*vit.parameters(), *vit.buffers(), *tensors_of(vit.attend(IMAGES))]
    assert {value.dtype for value in kept} == {torch.float32}


def test_C3_compile_changes_no_key(monkeypatch: pytest.MonkeyPatch):
    called = []
    monkeypatch.setattr(torch, "compile", lambda call: lambda *images: called.append(1) or call(*images))
    vit = tiny_vit()
    keys, logits = list(vit.state_dict()), vit(IMAGES)
    vit.compile()
    assert torch.equal(vit(IMAGES), logits)
    assert called == [1]
    assert list(vit.state_dict()) == keys
    tiny_vit().load_state_dict(vit.state_dict())
    vit.load_state_dict(tiny_vit().state_dict())


@EACH_PAIR
def test_weights_carry_all_that_was_learned_and_nothing_else(options: dict) -> None:
    vit, other = (tiny_vit(**options) for _ in range(2))
    assert vit.state_dict().keys() == {name for name, _ in vit.named_parameters()}
    randomize(other, seed=1)
    assert not torch.allclose(vit(IMAGES), other(IMAGES), atol=1e-3)
    other.load_state_dict(vit.state_dict())
    assert torch.equal(vit(IMAGES), other(IMAGES))


@pytest.mark.parametrize(
    ("tokens", "device", "dtype", "kernel"),
    [
        (64, "cpu", torch.float32, "explicit"),
        (197, "cpu", torch.float32, "fused"),
        (197, "cpu", torch.bfloat16, "explicit"),
        (1025, "cpu", torch.bfloat16, "fused"),
        (64, "cpu", torch.float16, "fused"),
        (64, "cuda", torch.float32, "fused"),
        (64, "cuda", torch.bfloat16, "fused"),
    ],
)
def test_kernel_is_the_faster_one(tokens: int, device: str, dtype: torch.dtype, kernel: str):
    assert attention_kernel(tokens, device=device, dtype=dtype) == kernel


@pytest.mark.parametrize(("dtype", "tokens"), EXPLICIT_TOKENS.items())
def test_kernel_changes_after_the_measured_number_of_tokens(dtype: torch.dtype, tokens: int):
    assert attention_kernel(tokens, device="cpu", dtype=dtype) == "explicit"
    assert attention_kernel(tokens + 1, device="cpu", dtype=dtype) == "fused"


@pytest.mark.parametrize(("kernel", "calls"), [("explicit", 0), ("fused", 1)])
def test_chosen_kernel_is_the_one_that_runs(kernel: str, calls: int, monkeypatch: pytest.MonkeyPatch):
    use_kernel(kernel, monkeypatch)
    called = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: called.append(1) or fused(*a, **k))
    MultiHeadSelfAttention(16, 4)(noise(1, 7, 16))
    assert len(called) == calls


@pytest.mark.parametrize("options", [{}, {"pool": "cls"}, {"pool": "sequence", "registers": 2, "position": "learned"}])
def test_a_network_of_some_patches_never_sees_the_others(options: dict) -> None:
    """Whatever these hold; and all of them, named in order, are the whole image."""
    vit = tiny_vit(**options)
    kept = torch.tensor([[0, 3, 5, 10], [1, 2, 12, 15]])
    images, other = noise(2, 3, 8, 8), noise(2, 3, 8, 8, seed=1)
    place = torch.zeros(2, 16, dtype=torch.bool).scatter(1, kept, True).view(2, 1, 4, 4)
    same = torch.where(place.repeat_interleave(2, 2).repeat_interleave(2, 3), images, other)
    assert not torch.allclose(vit(images), vit(same), atol=1e-3)
    assert_close(vit(images, kept), vit(same, kept))
    assert not torch.allclose(vit(images, kept), vit(images), atol=1e-3)
    assert_close(vit(images, torch.arange(16).expand(2, -1)), vit(images))
