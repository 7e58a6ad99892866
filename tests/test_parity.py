"""The network equals independent implementations of the same equations, with the same weights."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models import VisionTransformer

from tests.references import (
    assert_equals_torchs_layer,
    encoder_layer,
    noise,
    randomize,
    self_attention,
    softmax,
    tiny_vit,
    use_kernel,
    weights_of,
)
from vit.model import EncoderLayer, MultiHeadSelfAttention, PatchEmbedding, ViT
from vit.model.pooling import SequencePool
from vit.model.position import SinCosPosition

HEADS = pytest.mark.parametrize("heads", [1, 2, 4, 8])
KERNELS = pytest.mark.parametrize("kernel", ["explicit", "fused"])

TORCHVISION_NAMES = {  # theirs: ours
    "class_token": "cls_token",
    "conv_proj": "patch_embedding.projection",
    "encoder.pos_embedding": "position.embedding",
    "encoder.layers.encoder_layer_": "layers.",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "self_attention.in_proj_": "attention.qkv.",
    "self_attention.out_proj": "attention.proj",
    "mlp.0": "mlp.fc1",
    "mlp.3": "mlp.fc2",
    "encoder.ln": "norm",
    "heads.head": "head",
}


@pytest.fixture
def twins() -> tuple[VisionTransformer, ViT]:
    """torchvision's network and ours with the same weights, not one left over on either side."""
    theirs = VisionTransformer(image_size=12, patch_size=4, num_layers=3, num_heads=4, hidden_dim=32, mlp_dim=48)
    as_published = {"classes": 1000, "pool": "cls", "position": "learned"}
    ours = ViT(image_size=12, patch_size=4, depth=3, heads=4, dim=32, mlp_ratio=1.5, **as_published)
    randomize(theirs)
    state = {}
    for name, value in theirs.state_dict().items():
        for their, our in TORCHVISION_NAMES.items():
            name = name.replace(their, our)
        state[name] = value.flatten(1) if value.ndim == 4 else value
    ours.load_state_dict(state)
    return theirs.eval(), ours.eval()


@HEADS
@KERNELS
def test_V2_V3_V4_attention_equals_torchs_layer(heads: int, kernel: str, monkeypatch: pytest.MonkeyPatch):
    use_kernel(kernel, monkeypatch)
    assert_equals_torchs_layer(MultiHeadSelfAttention(16, heads))


@HEADS
@KERNELS
def test_V2_scale_is_that_of_a_head(heads: int, kernel: str, monkeypatch: pytest.MonkeyPatch):
    layer = MultiHeadSelfAttention(16, heads)
    randomize(layer)
    x = noise(2, 7, 16)
    q, k, v = (part.unflatten(2, (heads, 16 // heads)).transpose(1, 2) for part in layer.qkv(x).chunk(3, dim=2))
    expected = layer.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    use_kernel(kernel, monkeypatch)
    assert_close(layer(x), expected, atol=1e-5, rtol=0)
    assert_close(layer.attend(x)[0], expected, atol=1e-5, rtol=0)


@HEADS
@KERNELS
def test_attention_equals_plain_loops(heads: int, kernel: str, monkeypatch: pytest.MonkeyPatch):
    use_kernel(kernel, monkeypatch)
    layer = MultiHeadSelfAttention(16, heads)
    randomize(layer)
    x = noise(2, 7, 16)
    with torch.no_grad():
        output, maps = layer(x), layer.attend(x)[1]
    for image in range(2):
        expected, expected_maps = self_attention(x[image].double().numpy(), weights_of(layer), heads)
        assert_close(output[image].double(), torch.from_numpy(expected), atol=1e-5, rtol=0)
        assert_close(maps[image].double(), torch.from_numpy(expected_maps), atol=1e-5, rtol=0)


def test_encoder_layer_equals_its_equations():
    layer = EncoderLayer(16, 4, mlp_ratio=1.5)
    randomize(layer)
    x = noise(1, 7, 16)
    expected = torch.from_numpy(encoder_layer(x[0].double().numpy(), weights_of(layer), 4))
    with torch.no_grad():
        assert_close(layer(x)[0].double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("image_size", "patch_size", "channels"), [((8, 8), 4, 3), ((6, 12), 3, 1), ((4, 2), 1, 4), ((10, 10), 10, 3)]
)
def test_patch_embedding_equals_a_strided_convolution(image_size: tuple[int, int], patch_size: int, channels: int):
    ours = PatchEmbedding(image_size, patch_size, channels=channels, dim=5)
    convolution = nn.Conv2d(channels, 5, patch_size, stride=patch_size)
    ours.projection.weight.data = convolution.weight.data.flatten(1)
    ours.projection.bias.data = convolution.bias.data
    images = noise(2, channels, *image_size)
    expected = convolution(images)
    assert ours.grid == expected.shape[2:]
    assert_close(ours(images), expected.flatten(2).mT, atol=1e-5, rtol=0)


@KERNELS
def test_logits_equal_torchvisions(twins: tuple[VisionTransformer, ViT], kernel: str, monkeypatch: pytest.MonkeyPatch):
    use_kernel(kernel, monkeypatch)
    theirs, ours = twins
    images = noise(3, 3, 12, 12)
    expected = theirs(images)
    assert expected.std() > 0.1  # or there would be nothing to compare
    assert_close(ours(images), expected, atol=1e-5, rtol=0)
    assert_close(ours.attend(images).logits, expected, atol=1e-5, rtol=0)


def test_V9_maps_equal_those_of_torchs_layers(twins: tuple[VisionTransformer, ViT]):
    theirs, ours = twins
    images = noise(3, 3, 12, 12)
    normalized: list[Tensor] = []
    for layer in theirs.encoder.layers:
        layer.ln_1.register_forward_hook(lambda _module, _inputs, output: normalized.append(output))
    with torch.no_grad():
        theirs(images)
        expected = [
            layer.self_attention(x, x, x, average_attn_weights=False)[1]
            for layer, x in zip(theirs.encoder.layers, normalized, strict=True)
        ]
    assert_close(ours.attention_maps(images), torch.stack(expected, dim=1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("grid", [(2, 3), (4, 1)])
@pytest.mark.parametrize("prefix_tokens", [0, 1])
def test_sincos_equals_its_formula(grid: tuple[int, int], prefix_tokens: int):
    """Chen, Xie, He 2021 (MoCo v3): frequencies from 1 down to 10,000 ** -((D/4 - 1) / (D/4))."""
    dim, quarter = 12, 3
    expected = np.zeros((prefix_tokens + grid[0] * grid[1], dim))
    for row in range(grid[0]):
        for column in range(grid[1]):
            token = expected[prefix_tokens + row * grid[1] + column]
            for i in range(quarter):
                frequency = 10_000 ** (-i / quarter)
                token[i::quarter] = [
                    np.sin(column * frequency),
                    np.cos(column * frequency),
                    np.sin(row * frequency),
                    np.cos(row * frequency),
                ]
    position = SinCosPosition(grid, dim, prefix_tokens=prefix_tokens)
    x = noise(2, len(expected), dim)
    assert_close(position(x) - x, torch.from_numpy(expected).float().expand(2, -1, -1), atol=1e-6, rtol=0)


@KERNELS
@pytest.mark.parametrize("prefix_tokens", [0, 2])
def test_rope_equals_turning_complex_numbers(prefix_tokens: int, kernel: str, monkeypatch: pytest.MonkeyPatch):
    """Heo et al. 2024, equations 5 and 8: channel pairs as complex numbers, frequencies 100 ** (-t / (d/4))."""
    use_kernel(kernel, monkeypatch)
    grid, heads, width = (2, 3), 2, 8
    layer = MultiHeadSelfAttention(16, heads, rotary_grid=grid, prefix_tokens=prefix_tokens)
    randomize(layer)
    x = noise(1, prefix_tokens + 6, 16)
    weights = weights_of(layer)
    projected = x[0].double().numpy() @ weights["qkv.weight"].T + weights["qkv.bias"]
    angles = np.zeros((prefix_tokens + 6, width // 2))
    for row in range(grid[0]):
        for column in range(grid[1]):
            for t in range(width // 4):
                frequency = 100 ** (-t / (width // 4))
                token = angles[prefix_tokens + row * grid[1] + column]
                token[t], token[width // 4 + t] = row * frequency, column * frequency
    expected = []
    for head in range(heads):
        q, k = (projected[:, start + head * width :][:, :width] for start in (0, 16))
        q, k = ((part[:, : width // 2] + 1j * part[:, width // 2 :]) * np.exp(1j * angles) for part in (q, k))
        expected.append(softmax((q @ k.conj().T).real / np.sqrt(width)))
    with torch.no_grad():
        output, maps = layer.attend(x)
        assert_close(layer(x), output, atol=1e-5, rtol=0)
    assert_close(maps[0].double(), torch.from_numpy(np.stack(expected)), atol=1e-5, rtol=0)


def test_rope_sees_only_how_far_apart_patches_lie():
    layer = MultiHeadSelfAttention(16, 2, rotary_grid=(4, 5))
    randomize(layer)
    q, k = layer.comparable(*(noise(1, 2, 1, 8, seed=seed).expand(-1, -1, 20, -1) for seed in (1, 2)))
    similarity = (q @ k.mT).unflatten(3, (4, 5)).unflatten(2, (4, 5))
    assert_close(similarity[:, :, 0, 0, 2, 3], similarity[:, :, 1, 1, 3, 4])
    assert_close(similarity[:, :, 3, 4, 1, 1], similarity[:, :, 2, 3, 0, 0])
    assert not torch.allclose(similarity[:, :, 0, 0, 2, 3], similarity[:, :, 0, 0, 3, 2], atol=0.01)


@KERNELS
def test_cosine_similarity_equals_its_formula(kernel: str, monkeypatch: pytest.MonkeyPatch):
    use_kernel(kernel, monkeypatch)
    layer = MultiHeadSelfAttention(16, 2, similarity="cosine")
    assert layer.log_scale.exp().flatten().tolist() == pytest.approx([10, 10])
    randomize(layer)
    layer.log_scale.data = torch.tensor([np.log(3.0), 6.0], dtype=torch.float32).view(2, 1, 1)  # the second is bounded
    x = noise(2, 7, 16)
    q, k, v = layer.split_heads(x)
    cosine = F.cosine_similarity(q.unsqueeze(3), k.unsqueeze(2), dim=4)
    expected = (cosine * torch.tensor([3.0, 100.0]).view(2, 1, 1)).softmax(3)
    output, maps = layer.attend(x)
    assert_close(maps, expected, atol=1e-4, rtol=0)
    assert_close(output, layer.combine_heads(expected @ v), atol=1e-4, rtol=0)
    assert_close(layer(x), output, atol=1e-5, rtol=0)
    with torch.no_grad():
        layer.qkv.weight[:32] *= 5
        layer.qkv.bias[:32] *= 5
    assert_close(layer.attend(x)[1], maps, atol=1e-4, rtol=0)  # only directions count


def test_mimetic_attention_begins_near_the_identity():
    """Trockman & Kolter 2023: Wqᵀ Wk near 0.7 Z + 0.7 I of a head's rank, Wproj Wv near 0.4 Z - 0.4 I."""
    torch.manual_seed(0)
    attention = ViT(dim=64, depth=1, heads=4, init="mimetic").layers[0].attention
    q, k, v = attention.qkv.weight.detach().chunk(3)
    through = (attention.proj.weight.detach() @ v).numpy()
    assert np.diag(through).mean() == pytest.approx(-0.4, abs=0.03)
    assert (through - np.diag(np.diag(through))).std() == pytest.approx(0.4 / 8, rel=0.1)
    for head in range(4):
        own = slice(16 * head, 16 * head + 16)
        product = q[own].T @ k[own]
        assert torch.linalg.matrix_rank(product) == 16
        strengths = torch.linalg.svdvals(product)[:16]
        assert strengths.min() > 0.7
        assert strengths.max() < 0.7 * 3.2  # the largest of 0.7 Z + 0.7 I
        assert product.trace() > 5  # of noise alone: about 0


def test_sequence_pool_equals_its_formula():
    pool = SequencePool(16)
    randomize(pool)
    x = noise(2, 7, 16)
    tokens, score = x.double().numpy(), weights_of(pool)
    share = softmax((tokens @ score["score.weight"].T)[:, :, 0])
    expected = np.stack([sum(share[i, t] * tokens[i, t] for t in range(7)) for i in range(2)])
    with torch.no_grad():
        assert_close(pool(x).double(), torch.from_numpy(expected), atol=1e-5, rtol=0)


def test_V3_permuting_the_patches_permutes_the_tokens():
    vit = tiny_vit()
    nn.init.zeros_(vit.position.embedding)
    patches = noise(2, 16, 3, 2, 2)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    seen = []
    for arranged in (patches, patches[:, order]):
        images = torch.cat([torch.cat(row.unbind(1), dim=3) for row in arranged.split(4, dim=1)], dim=2)
        layers = [vit.embed(images)]
        for layer in vit.layers:
            layers.append(layer(layers[-1]))
        seen.append((torch.stack(layers), vit(images)))
    (tokens, logits), (permuted, same_logits) = seen
    assert not torch.allclose(tokens, permuted, atol=0.1)
    assert_close(tokens[:, :, order], permuted, atol=1e-5, rtol=0)
    assert_close(logits, same_logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("patch_size", "dim", "depth", "heads", "published"),
    [
        pytest.param(16, 192, 12, 3, 5_717_416, id="Ti/16"),
        pytest.param(16, 384, 12, 6, 22_050_664, id="S/16"),
        pytest.param(16, 768, 12, 12, 86_567_656, id="B/16"),
        pytest.param(16, 1024, 24, 16, 304_326_632, id="L/16"),
        pytest.param(14, 1280, 32, 16, 632_045_800, id="H/14"),
    ],
)
def test_number_of_parameters_is_the_published_one(patch_size: int, dim: int, depth: int, heads: int, published: int):
    with torch.device("meta"):
        as_published = {"classes": 1000, "pool": "cls", "position": "learned"}
        vit = ViT(image_size=224, patch_size=patch_size, dim=dim, depth=depth, heads=heads, **as_published)
    assert sum(parameter.numel() for parameter in vit.parameters()) == published
