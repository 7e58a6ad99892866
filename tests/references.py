"""What the network is compared with, written only for the tests and as plainly as possible; and small helpers."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vit.data.augmentation import draw_crop_and_flip, take
from vit.model import MultiHeadSelfAttention, ViT, attention

Weights = Mapping[str, np.ndarray]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def randomize(network: nn.Module, seed: int = 0) -> None:
    """Give weights large enough to show a mistake: at a deviation of 0.02 every map is nearly even, right or wrong."""
    with torch.no_grad():
        for index, parameter in enumerate(network.parameters(), start=1000 * seed):
            value = noise(*parameter.shape, seed=index)
            if parameter.ndim > 1:
                parameter.copy_(value / math.sqrt(parameter[0].numel()))
            else:
                parameter.add_(0.1 * value)  # biases near 0, norms near 1


def tiny_vit(**changes: object) -> ViT:
    """Sixteen patches, two layers, random weights, in evaluation mode."""
    sizes: dict = {"image_size": 8, "patch_size": 2, "dim": 16, "depth": 2, "heads": 4, "mlp_ratio": 2, "classes": 5}
    vit = ViT(**sizes | changes)
    randomize(vit)
    return vit.eval()


def crop_and_flip(images: Tensor, *, crop: int, flip: bool) -> Tensor:
    """What augmentation does by default."""
    return take(images, *draw_crop_and_flip(images, crop=crop, flip=flip))


def use_kernel(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have attention computed by the 'explicit' or the 'fused' kernel, whatever the number of tokens."""
    monkeypatch.setitem(attention.EXPLICIT_TOKENS, torch.float32, {"explicit": 10_000, "fused": 0}[kernel])


def weights_of(network: nn.Module) -> Weights:
    return {name: value.double().numpy() for name, value in network.state_dict().items()}


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def self_attention(x: np.ndarray, weights: Weights, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (T,D) of one image → the layer's output (T,D) and the map of each head (h,T,T)."""
    dim = x.shape[1]
    width = dim // heads
    projected = x @ weights["qkv.weight"].T + weights["qkv.bias"]
    q, k, v = projected[:, :dim], projected[:, dim : 2 * dim], projected[:, 2 * dim :]
    maps, mixed = [], []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        maps.append(softmax(q[:, own] @ k[:, own].T / math.sqrt(width)))
        mixed.append(maps[-1] @ v[:, own])
    return np.concatenate(mixed, axis=1) @ weights["proj.weight"].T + weights["proj.bias"], np.stack(maps)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6) * weight + bias


def encoder_layer(x: np.ndarray, weights: Weights, heads: int) -> np.ndarray:
    """Tokens (T,D) of one image → (T,D): attention and MLP, each on normalised tokens and added."""
    inner = {name.removeprefix("attention."): value for name, value in weights.items()}
    normalized = layer_norm(x, weights["norm1.weight"], weights["norm1.bias"])
    x = x + self_attention(normalized, inner, heads)[0]
    normalized = layer_norm(x, weights["norm2.weight"], weights["norm2.bias"])
    hidden = normalized @ weights["mlp.fc1.weight"].T + weights["mlp.fc1.bias"]
    hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))  # GELU
    return x + hidden @ weights["mlp.fc2.weight"].T + weights["mlp.fc2.bias"]


def assert_equals_torchs_layer(layer: MultiHeadSelfAttention) -> None:
    """With the same random weights: the output and the map of each head are those of `nn.MultiheadAttention`.

    In training mode, as it comes, so that dropout nobody asked for shows.
    """
    randomize(layer)
    dim = layer.proj.in_features
    reference = nn.MultiheadAttention(dim, layer.heads, batch_first=True)
    names = {"qkv.": "in_proj_", "proj.": "out_proj."}
    reference.load_state_dict(
        {names[name[: name.index(".") + 1]] + name.split(".")[1]: value for name, value in layer.state_dict().items()}
    )
    x = noise(3, 7, dim, seed=1)
    expected, expected_maps = reference(x, x, x, average_attn_weights=False)
    output, maps = layer.attend(x)
    assert_close(maps, expected_maps, atol=1e-5, rtol=0)
    assert_close(output, expected, atol=1e-5, rtol=0)
    assert_close(layer(x), expected, atol=1e-5, rtol=0)
