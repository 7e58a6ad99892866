"""Maps and measures equal their formulas, written out once more for these tests, and have their known answers."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.references import layer_norm, noise, softmax, tiny_vit, weights_of
from vit.inspection.maps import logit_lens, method_maps, relevance, rollout
from vit.inspection.measures import (
    attention_distance,
    attention_entropy,
    attention_shares,
    head_similarity,
    largest_norm,
    points_at_object,
    share_on_object,
)

IMAGES = noise(3, 3, 8, 8)


def random_maps(*shape: int, seed: int = 0) -> Tensor:
    return (3 * noise(*shape, seed=seed)).softmax(dim=-1)


def test_V11_rollout_equals_its_formula_and_its_rows_sum_to_1() -> None:
    maps = [random_maps(2, 4, 6, 6, seed=layer) for layer in range(3)]
    expected = np.stack([np.eye(6)] * 2)
    for weights in maps:
        for image in range(2):
            half = 0.5 * weights[image].double().numpy().mean(axis=0) + 0.5 * np.eye(6)
            expected[image] = half @ expected[image]
    found = rollout(maps)
    assert_close(found.double(), torch.from_numpy(expected), atol=1e-6, rtol=0)
    assert_close(found.sum(-1), torch.ones(2, 6))


def test_relevance_equals_an_independent_reference_on_two_layers() -> None:
    """Gradients by finite differences through `edit`, the recursion by loops."""
    vit = tiny_vit(heads=2, image_size=4).double()
    image, label, step = noise(1, 3, 4, 4).double(), 3, 1e-5
    seen = vit.attend(image)

    def logit(layer: int, entry: tuple[int, ...], change: float) -> float:
        def edit(index: int, weights: Tensor) -> Tensor:
            if index == layer:
                weights = weights.clone()
                weights[entry] += change
            return weights

        return vit.attend(image, edit).logits[0, label].item()

    joined = np.eye(4)
    for layer in range(2):
        weights = seen.maps[layer].detach().numpy()
        gradient = np.zeros_like(weights)
        for entry in np.ndindex(*weights.shape):
            with torch.no_grad():
                gradient[entry] = (logit(layer, entry, step) - logit(layer, entry, -step)) / (2 * step)
        joined = joined + np.maximum(gradient * weights, 0)[0].mean(axis=0) @ joined
    gradients = torch.autograd.grad(seen.logits[0, label], seen.maps)
    found = relevance([weights.detach() for weights in seen.maps], gradients)
    assert_close(found[0], torch.from_numpy(joined - np.eye(4)), atol=1e-7, rtol=1e-4)
    mapped = method_maps(vit.attend(image), grid=(2, 2), classes=torch.tensor([label]))["relevance"]
    assert_close(mapped[0].flatten(), found[0].mean(0))


@pytest.mark.parametrize("options", [{}, {"pool": "cls", "registers": 2}, {"pool": "sequence"}], ids=str)
def test_method_maps_are_one_map_an_image(options: dict) -> None:
    vit = tiny_vit(image_size=(8, 12), **options)
    found = method_maps(vit.attend(noise(3, 3, 8, 12)), grid=(4, 6))
    assert list(found) == ["last layer", "rollout", "relevance"]
    for maps in found.values():
        assert maps.shape == (3, 4, 6)
        assert maps.min() >= 0
        assert not maps.requires_grad
    assert all(parameter.grad is None for parameter in vit.parameters())
    if not options:  # no prefix token takes a share
        assert_close(found["rollout"].sum((1, 2)), torch.ones(3))


def test_V11_two_looks_at_one_image_are_equal_whatever_came_before() -> None:
    vit = tiny_vit(dropout=0.5, attention_dropout=0.5)
    first, _, again = (method_maps(vit.attend(images), grid=(4, 4)) for images in (IMAGES[:1], IMAGES, IMAGES[:1]))
    for name, maps in first.items():
        assert torch.equal(maps, again[name])


def test_relevance_is_that_of_the_class_found_unless_told() -> None:
    vit = tiny_vit()
    own = vit(IMAGES).argmax(1)
    found, same, other = (
        method_maps(vit.attend(IMAGES), grid=(4, 4), classes=classes)["relevance"]
        for classes in (None, own, (own + 1) % 5)
    )
    assert torch.equal(found, same)
    assert not torch.allclose(found, other)


@pytest.mark.parametrize("options", [{}, {"pool": "cls", "registers": 2}], ids=str)
def test_logit_lens_reads_each_patch_as_the_head_would(options: dict) -> None:
    vit = tiny_vit(**options)
    tokens = vit.attend(IMAGES).tokens[0]
    weights = weights_of(vit)
    with torch.no_grad():
        found = logit_lens(vit, tokens)
    assert found.shape == (3, 5, 4, 4)
    token = tokens[1, vit.prefix_tokens + 4 * 2 + 3].detach().double().numpy()[None]
    normed = layer_norm(token, weights["norm.weight"], weights["norm.bias"])
    expected = softmax(normed @ weights["head.weight"].T + weights["head.bias"])[0]
    assert_close(found[1, :, 2, 3].double(), torch.from_numpy(expected), atol=1e-5, rtol=0)


def test_even_attention_has_the_analytic_distance_and_entropy() -> None:
    even = torch.full((2, 3, 64, 64), 1 / 64)
    assert_close(attention_distance(even, grid=(8, 8), patch_size=4), torch.full((3,), 16.546), atol=1e-3, rtol=0)
    assert_close(attention_entropy(even), torch.ones(3))


def test_distance_of_attention_to_one_place_is_known() -> None:
    maps = torch.zeros(1, 3, 14, 14)  # 2 prefix tokens, 3 × 4 patches
    maps[:, 0] = torch.eye(14)
    maps[:, 1, :, 2] = 1  # all to the first patch
    maps[:, 2, :, 2], maps[:, 2, :, 0] = 0.25, 0.75  # the same, most of it to a prefix token
    found = attention_distance(maps, grid=(3, 4), patch_size=8)
    mean = np.mean([8 * math.hypot(row, column) for row in range(3) for column in range(4)])
    assert_close(found, torch.tensor([0.0, mean, mean], dtype=torch.float32))


def test_entropy_equals_its_formula_and_is_0_for_one_token() -> None:
    maps = random_maps(2, 3, 7, 7)
    rows = maps.double().numpy()
    expected = (-(rows * np.log(rows)).sum(-1)).mean(axis=(0, 2)) / np.log(7)
    assert_close(attention_entropy(maps).double(), torch.from_numpy(expected), atol=1e-6, rtol=0)
    assert attention_entropy(torch.eye(7)[None, None]).item() == 0


def test_shares_on_itself_and_on_prefix_tokens() -> None:
    maps = random_maps(2, 3, 7, 7)
    itself, prefix = attention_shares(maps, prefix_tokens=2)
    rows = maps.numpy()
    for head in range(3):
        own = np.mean([rows[image, head, query, query] for image in range(2) for query in range(2, 7)])
        outside = np.mean([rows[image, head, query, :2].sum() for image in range(2) for query in range(2, 7)])
        assert itself[head].item() == pytest.approx(own)
        assert prefix[head].item() == pytest.approx(outside)
    assert attention_shares(maps, prefix_tokens=0)[1].tolist() == [0, 0, 0]


def test_similarity_of_heads() -> None:
    same = random_maps(2, 1, 6, 6).expand(-1, 4, -1, -1)
    assert head_similarity(same).item() == pytest.approx(1, abs=1e-5)
    apart = torch.zeros(1, 3, 6, 6)
    for head in range(3):
        apart[:, head, :, 2 * head] = 1
    assert head_similarity(apart).item() == pytest.approx(0, abs=1e-5)
    assert head_similarity(random_maps(1, 1, 6, 6)).item() == 1
    maps = random_maps(1, 2, 5, 5)
    p, q = maps[0].double().numpy()
    middle = (p + q) / 2
    divergence = 0.5 * (p * np.log(p / middle)).sum(-1) + 0.5 * (q * np.log(q / middle)).sum(-1)
    assert head_similarity(maps).item() == pytest.approx(1 - divergence.mean() / math.log(2), abs=1e-5)


def test_largest_norm() -> None:
    tokens = torch.zeros(2, 4, 3)
    tokens[0, 1] = torch.tensor([3.0, 4.0, 0.0])
    tokens[1, 3] = torch.tensor([0.0, 0.0, 1.0])
    assert largest_norm(tokens).item() == 3


def test_share_on_the_object_and_pointing_game() -> None:
    masks = torch.zeros(3, 8, 12, dtype=torch.bool)
    masks[:, 2:6, 4:8] = True  # of 4 × 6 patches of 2 × 2 pixels: rows 1 to 2, columns 2 to 3
    maps = torch.zeros(3, 4, 6)
    maps[0, 1, 2] = 1
    maps[1, 0, 0], maps[1, 2, 3] = 3, 1
    maps[2] = 1
    assert share_on_object(maps, masks).tolist() == pytest.approx([1, 0.25, 4 / 24])
    assert points_at_object(maps, masks).tolist() == [True, False, False]
    half = torch.zeros(1, 8, 12, dtype=torch.bool)
    half[0, :, :1] = True  # half of each patch in the first column
    maps = torch.zeros(1, 4, 6)
    maps[0, :, 0] = 1
    assert share_on_object(maps, half).item() == 0.5
