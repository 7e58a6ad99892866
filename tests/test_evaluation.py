"""The report's numbers, against definitions, small cases made by hand, and other libraries."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close
from torchmetrics.functional.classification import multiclass_calibration_error

from tests.references import noise, tiny_vit
from vit.data import Split
from vit.data.shapes import shapes
from vit.evaluation import report
from vit.evaluation.calibration import Reliability, fit_temperature
from vit.evaluation.comparison import difference_of_means, mcnemar, paired_difference, t_quantile
from vit.evaluation.corruption import CORRUPTIONS, corrupt, drop_patches, read_corrupted, shuffle_patches
from vit.evaluation.faithfulness import area, baseline_maps, cover, deletion_and_insertion
from vit.evaluation.heads import each_head, logit_attribution, without
from vit.evaluation.metrics import confident_mistakes, confused_pairs, mean_interval, wilson_interval
from vit.evaluation.report import Subject
from vit.inspection.measures import patch_cover
from vit.settings import UserError


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_the_intervals_are_the_published_ones() -> None:
    """Wilson's from Newcombe 1998 (Statistics in Medicine 17, 857), table I, method 3; the mean's by hand."""
    assert_close(wilson_interval(81, 263), (0.2553, 0.3662), atol=5e-5, rtol=0)
    assert_close(wilson_interval(0, 20), (0.0, 0.1611), atol=5e-5, rtol=0)
    assert_close(wilson_interval(1, 29), (0.0061, 0.1718), atol=5e-5, rtol=0)
    assert_close(mean_interval(torch.tensor([1.0, 2.0, 3.0, 4.0])), (1.2348, 3.7652), atol=5e-5, rtol=0)
    assert math.isnan(mean_interval(torch.tensor([1.0]))[0])


def test_mistakes_of_a_small_case() -> None:
    confusion = torch.tensor([[3, 2, 0], [0, 4, 1], [0, 0, 0]])
    assert confused_pairs(confusion, 5) == [(0, 1, 2), (1, 2, 1)]
    logits = torch.tensor([[3.0, 0, 0], [0, 9, 0], [0, 5, 0], [0, 0, 1]])
    assert confident_mistakes(logits, torch.tensor([0, 0, 2, 1])).tolist() == [1, 2, 3]


def test_the_classes_measures_are_those_of_their_definition() -> None:
    logits, labels = noise(200, 4, seed=1), torch.arange(200) % 3  # no image of the last class
    logits[:, 2] = -9  # and one that is never found
    test = Split(pixels(200, 3, 8, 8), labels)
    found = report.classes(logits, test, "abcd", "abcd").values
    guess = logits.argmax(1)
    for number, line in enumerate(found["per_class"]):
        right = int(((guess == number) & (labels == number)).sum())
        there, taken = int((labels == number).sum()), int((guess == number).sum())
        assert line["n"] == there
        expected = [right / taken if taken else math.nan, right / there if there else math.nan]
        expected.append(2 * right / (taken + there))
        assert_close([line["precision"], line["recall"], line["f1"]], expected, equal_nan=True, atol=1e-6, rtol=0)
    assert found["confusion"][0, 1] == int(((labels == 0) & (guess == 1)).sum())


def test_calibration_error_is_torchmetrics() -> None:
    logits, labels = 2 * noise(500, 10, seed=2), torch.arange(500) % 10
    expected = float(multiclass_calibration_error(logits, labels, 10, n_bins=15))
    assert Reliability.of(logits, labels).error == pytest.approx(expected, abs=1e-6)
    sure = torch.tensor([[100.0, 0], [100.0, 0]])
    assert Reliability.of(sure, torch.tensor([0, 1])).error == pytest.approx(0.5)


def test_a_planted_temperature_is_found() -> None:
    true = noise(100_000, 5, seed=3)
    labels = torch.multinomial(true.softmax(1), 1, generator=torch.Generator().manual_seed(0)).squeeze(1)
    assert fit_temperature(2 * true, labels) == pytest.approx(2, abs=0.03)
    assert Reliability.of(true, labels).error < 0.01 < Reliability.of(2 * true, labels).error
    assert fit_temperature(true, true.argmax(1)) is None  # all right: the surer the better
    part = report.calibration(true, true.argmax(1), "trained with validation=0")
    assert part.values["temperature"] is None
    assert part.values["temperature_reason"] == "trained with validation=0"


def test_paired_differences() -> None:
    """p of McNemar's exact test and Student's quantiles as tables have them."""
    assert mcnemar(1, 8) == pytest.approx(0.0390625)  # 2 · (1 + 9) / 2^9
    assert mcnemar(5, 5) == 1
    for freedom, expected in ((1, 12.706), (2, 4.303), (4, 2.776), (30, 2.042)):
        assert t_quantile(0.95, freedom) == pytest.approx(expected, abs=1e-3)
    one = torch.zeros(1000, dtype=torch.bool)
    one[:600] = True
    better, same = one.clone(), one.roll(20)
    better[600:640] = True
    assert not paired_difference(one, same).shown
    found = paired_difference(better, one)
    assert found.shown
    assert found.value == pytest.approx(0.04)
    assert found.low < 0.04 < found.high
    few = torch.tensor([True] * 4 + [False] * 12)
    assert not paired_difference(few, torch.zeros(16, dtype=torch.bool)).shown  # p is 0.125


def test_seeds_are_compared_by_welch() -> None:
    """With equal variances and numbers it is Student's interval, here of 4 degrees of freedom: t is 2.776."""
    found = difference_of_means([0.71, 0.72, 0.73], [0.70, 0.71, 0.72])
    half = 2.776 * 0.01 * math.sqrt(2 / 3)
    assert (found.low, found.high) == pytest.approx((0.01 - half, 0.01 + half), abs=1e-5)
    assert not found.shown
    assert difference_of_means([0.7, 0.71], [0.5, 0.51]).shown
    one_varies = difference_of_means([0.7, 0.7], [0.5, 0.52])  # 1 degree: 12.706
    assert one_varies.high - one_varies.low == pytest.approx(2 * 12.706 * 0.01, abs=1e-4)


def test_covering_shuffling_and_dropping_move_whole_patches() -> None:
    images, grey = pixels(6, 3, 8, 8), torch.tensor([1, 2, 3], dtype=torch.uint8)
    patches = torch.zeros(6, 4, 4, dtype=torch.bool)
    patches[0, 1, 2] = True
    covered = cover(images, patches, grey)
    assert (covered[0, :, 2:4, 4:6] == grey[:, None, None]).all()
    assert int((covered != images).any(1).sum()) == 4
    dropped = drop_patches(images, 0.25, grid=(4, 4), grey=grey)
    assert ((dropped == grey[:, None, None]).all(1).sum(dim=(1, 2)) == 4 * 4).all()
    shuffled = shuffle_patches(images, (4, 4))
    cells = [
        part.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(1, 2) for part in (images, shuffled)
    ]
    assert not torch.equal(*cells)
    for before, after in zip(*cells, strict=True):
        assert sorted(cell.tolist() for cell in before) == sorted(cell.tolist() for cell in after)


def test_deletion_and_insertion_of_a_network_that_is_known() -> None:
    """It counts white patches: covering them first makes the smallest area, and the true map beats chance."""
    data = shapes(train=1, test=100)
    masks = data.test.masks
    assert masks is not None
    images = masks[:, None].expand(-1, 3, -1, -1).byte() * 255

    def classify(batch: Tensor) -> Tensor:
        white = (batch.float().mean(dim=(1, 2, 3)) / 20).clamp(max=9)
        return torch.stack([white, torch.full_like(white, 2)], 1)

    labels, grey = torch.zeros(100, dtype=torch.long), torch.zeros(3, dtype=torch.uint8)
    maps = baseline_maps(images, grid=(8, 8)) | {"object": patch_cover(masks, (8, 8))}
    areas = {}
    for name, heat in maps.items():
        deletion, insertion = deletion_and_insertion(classify, images, labels, heat, grey=grey)
        assert deletion.shape == insertion.shape == (100, 17)
        whole, empty = (classify(part).double().softmax(1)[:, 0] for part in (images, torch.zeros_like(images)))
        assert_close(deletion[:, 0], whole)
        assert_close(deletion[:, -1], empty)
        assert_close(insertion[:, 0], empty)
        areas[name] = area(deletion).mean(), area(insertion).mean()
    assert areas["object"][0] < areas["random"][0] - 0.05
    assert areas["object"][1] > areas["random"][1] + 0.05
    assert_close(areas["random"][0] + 0, areas["random"][1], atol=0.03, rtol=0)  # order by chance: the same, reversed
    assert float(area(torch.linspace(0, 1, 17)[None])) == pytest.approx(0.5)


@pytest.mark.parametrize("pool", ["mean", "cls", "sequence"])
def test_the_contributions_sum_to_the_logit(pool: str) -> None:
    vit = tiny_vit(pool=pool, registers=1, similarity="cosine", depth=3)
    images, labels = noise(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 4])
    seen = vit.attend(images)
    parts = logit_attribution(vit, images, labels, seen)
    assert parts.heads.shape == (5, 3, 4)
    assert_close(parts.sum(), vit(images).gather(1, labels[:, None]).squeeze(1), atol=1e-5, rtol=0)
    with torch.no_grad():  # a head adds as much as the logit loses where it alone, in the last layer, adds nothing
        vit.layers[2].mlp.fc2.weight.zero_()
    seen = vit.attend(images)
    assert logit_attribution(vit, images, labels, seen).mlps[:, 2].abs().max() < 0.2


def test_a_head_whose_values_are_zero_is_not_missed() -> None:
    vit = tiny_vit()
    with torch.no_grad():
        vit.layers[0].attention.qkv.weight[2 * 16 + 4 : 2 * 16 + 8] = 0  # values of head 2 of 4
        vit.layers[0].attention.qkv.bias[2 * 16 + 4 : 2 * 16 + 8] = 0
    images = noise(3, 3, 8, 8)
    silent, other = list(each_head(2, 4))[1:3]
    assert_close(vit.attend(images, without(silent)).logits, vit(images), atol=1e-6, rtol=0)
    assert (vit.attend(images, without(other)).logits - vit(images)).abs().max() > 1e-3
    data = Split(pixels(40, 3, 8, 8), torch.arange(40) % 5)
    part = report.heads(Subject(vit, (0.5,) * 3, (0.25,) * 3), data, data)
    assert part.values["heads"]["lost"][0, 1] == 0
    assert len(part.values["heads"]["ranking"]) == 8
    unranked = report.heads(Subject(vit, (0.5,) * 3, (0.25,) * 3), data, "no validation")
    assert unranked.values["heads"]["ranking"] is None


def by_definition(image: np.ndarray, kind: str, severity: int) -> np.ndarray:
    """make_cifar_c.py for one image (H,W,3) of 0 to 255, in the kinds that draw nothing, pixel by pixel."""
    x, number = image / 255, CORRUPTIONS[kind][severity]
    if kind == "contrast":
        means = x.mean(axis=(0, 1), keepdims=True)
        x = (x - means) * number + means
    elif kind in ("brightness", "saturate"):
        import colorsys

        def change(r: float, g: float, b: float) -> tuple[float, float, float]:
            h, s, v = colorsys.rgb_to_hsv(r, g, b)
            if kind == "brightness":
                return colorsys.hsv_to_rgb(h, s, min(1, v + number))
            return colorsys.hsv_to_rgb(h, min(1, s * number[0] + number[1]), v)

        x = np.array([[change(*pixel) for pixel in row] for row in x.tolist()])
    elif kind == "jpeg_compression":
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=number)
        x = np.asarray(Image.open(file)) / 255
    elif kind == "gaussian_blur":
        radius = int(4 * number + 0.5)
        weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / 2 / number**2)
        padded = np.pad(x, ((radius, radius), (radius, radius), (0, 0)), mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * radius + 1,) * 2, axis=(0, 1))
        x = np.einsum("hwcij,i,j->hwc", windows, weights / weights.sum(), weights / weights.sum())
    return np.clip(x, 0, 1) * 255


@pytest.mark.parametrize("kind", ["contrast", "brightness", "saturate", "jpeg_compression", "gaussian_blur"])
def test_corruptions_are_those_of_their_definition(kind: str) -> None:
    images = pixels(2, 3, 32, 32, seed=5)
    images[0, :, :4] = 77  # grey has no hue
    images[0, :, 4:6] = 0
    for severity in (1, 3, 5):
        for image, found in zip(images, corrupt(images, kind, severity), strict=True):
            expected = by_definition(image.permute(1, 2, 0).numpy(), kind, severity)
            assert np.abs(found.permute(1, 2, 0).numpy() - expected).max() <= 1.01  # cut off, not rounded


def test_every_corruption_grows_and_is_the_same_again() -> None:
    images = shapes(train=1, test=20).test.images
    for kind in CORRUPTIONS:
        change = [(corrupt(images, kind, level).float() - images.float()).abs().mean() for level in (1, 5)]
        assert 0 < change[0] < 40
        assert change[1] > 0.9 * change[0]
        assert torch.equal(corrupt(images, kind, 3), corrupt(images, kind, 3))
        assert corrupt(images[:, :1], kind, 2).shape == (20, 1, 32, 32)
    flat = torch.full((200, 3, 32, 32), 128, dtype=torch.uint8)
    assert corrupt(flat, "gaussian_noise", 1).float().std() == pytest.approx(0.04 * 255, rel=0.02)
    assert corrupt(flat, "shot_noise", 5).float().std() == pytest.approx(math.sqrt(0.502 / 50) * 255, rel=0.03)
    assert (corrupt(flat, "impulse_noise", 5) != 128).float().mean() == pytest.approx(0.07, abs=0.005)
    assert corrupt(flat, "speckle_noise", 2).float().std() == pytest.approx(0.1 * 128, rel=0.03)
    for kind in ("defocus_blur", "zoom_blur", "pixelate"):
        assert (corrupt(flat, kind, 5).int() - 128).abs().max() <= 1


def test_files_of_cifar_10_c_are_read_and_no_code_in_them_is_run(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "fog.npy", images)
    np.save(tmp_path / "labels.npy", np.arange(20) % 10)
    np.save(tmp_path / "cifar10.1_v6_data.npy", images[:10])
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.arange(10))
    found = read_corrupted([str(tmp_path)], shape=(3, 32, 32), classes=10)
    assert list(found) == ["cifar10.1_v6", "fog"]
    assert np.array_equal(found["fog"][0].images.permute(0, 2, 3, 1).numpy(), images)
    assert found["cifar10.1_v6"][0].labels.tolist() == list(range(10))
    with pytest.raises(UserError, match="10 classes, not the 100"):
        read_corrupted([str(tmp_path)], shape=(3, 32, 32), classes=100)
    with pytest.raises(UserError, match="not images"):
        read_corrupted([str(tmp_path)], shape=(3, 8, 8), classes=10)
    np.save(tmp_path / "snow.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"snow\.npy .* cannot be read: .*Python objects"):
        read_corrupted([str(tmp_path)], shape=(3, 32, 32), classes=10)
    with pytest.raises(UserError, match="holds no"):
        read_corrupted([str(tmp_path / "elsewhere")], shape=(3, 32, 32), classes=10)
