"""TrivialAugment does to each image what torchvision's does to it alone; masks move as their images do."""

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import TrivialAugmentWide

from tests.references import crop_and_flip
from tests.test_pictures import pixels
from vit.data import Augmentation, trivial_augment
from vit.data.trivial_augment import LEVELS, OPERATIONS, Draw, draw, follow

TORCHVISION = TrivialAugmentWide()
SPACE = TrivialAugmentWide._AUGMENTATION_SPACE
# Sides both even or both odd: where one is odd, a turn by 90° asks for places half way between two pixels.
SHAPES = pytest.mark.parametrize("shape", [(3, 32, 32), (1, 24, 40), (3, 15, 33)])
EACH = pytest.mark.parametrize("name", OPERATIONS)
GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")


def their_name(name: str) -> str:
    return next(theirs for theirs in SPACE if theirs.lower() == name.replace("_", ""))


def theirs(image: Tensor, name: str, magnitude: float) -> Tensor:
    """One image (C,H,W) by torchvision, whose thresholds are shares and whose bits are whole."""
    scaled = {"solarize": magnitude / 255, "posterize": round(magnitude)}.get(name, magnitude)
    return TORCHVISION._apply_image_or_video_transform(
        image, their_name(name), scaled, interpolation=TORCHVISION.interpolation, fill=TORCHVISION._fill
    )


def drawn_magnitudes(name: str) -> Tensor:
    """Each magnitude that is ever drawn for an operation, in order."""
    torch.manual_seed(0)
    drawn = draw(30_000)
    return drawn.magnitude[drawn.operation == list(OPERATIONS).index(name)].unique()


def every_draw(name: str) -> Draw:
    """An operation at all its magnitudes, at least 60 of them."""
    magnitude = drawn_magnitudes(name)
    magnitude = magnitude.repeat(1 + 60 // len(magnitude))
    return Draw(torch.full((len(magnitude),), list(OPERATIONS).index(name)), magnitude)


def test_the_operations_are_torchvisions():
    assert [their_name(name) for name in OPERATIONS] == list(SPACE)
    assert tuple(name for name, operation in OPERATIONS.items() if operation.geometric) == GEOMETRIC


@EACH
def test_magnitudes_drawn_are_torchvisions_with_both_signs(name: str):
    magnitudes, signed = SPACE[their_name(name)]
    table = magnitudes(31, 32, 32)
    expected = torch.zeros(1) if table is None else table.float() * (255 if name == "solarize" else 1)
    expected = (torch.cat([expected, -expected]) if signed else expected).unique()
    ours = drawn_magnitudes(name)
    if table is not None:
        assert len(ours) == (2 * LEVELS - 1 if signed else LEVELS) == (61 if signed else 31)
    if name == "posterize":
        assert torch.equal(ours.round().unique(), expected)
        assert torch.equal(ours.flip(0).round(), table.float())
    else:
        assert torch.allclose(ours, expected, rtol=1e-6, atol=0)


@EACH
@SHAPES
@pytest.mark.parametrize("contrast", [1, 8])
def test_each_operation_at_each_magnitude_equals_torchvisions(name: str, shape: tuple[int, ...], contrast: int):
    drawn = every_draw(name)
    images = pixels(len(drawn.magnitude), *shape) // contrast + 112 * (contrast > 1)  # each another: none sees the rest
    before = images.clone()
    changed = trivial_augment.trivial_augment(images, drawn)
    expected = torch.stack(
        [theirs(image, name, magnitude) for image, magnitude in zip(images, drawn.magnitude.tolist(), strict=True)]
    )
    assert changed.dtype == torch.uint8
    assert torch.equal(images, before)
    difference = (changed.int() - expected.int()).abs()
    assert difference.max() <= (1 if name in ("color", "sharpness", "contrast") else 0)
    if name == "contrast":  # exact but where the last digit of a sum of all pixels decides
        assert difference.float().mean() < 0.001
    if contrast > 1:
        assert torch.equal(changed, images) == (name == "identity") or (name, shape[0]) == ("color", 1)


@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_flat_channel_is_no_division_by_zero(name: str, channels: int):
    images = pixels(61, channels, 24, 24)
    images[:30, 0] = torch.arange(30, dtype=torch.uint8)[:, None, None] * 8
    images[:10] = 77
    changed = trivial_augment.trivial_augment(images, every_draw(name))
    assert torch.equal(changed, torch.stack([theirs(image, name, 0.0) for image in images]))
    assert torch.equal(changed[:10], images[:10])


def test_operations_levels_and_signs_are_drawn_evenly():
    torch.manual_seed(0)
    drawn = draw(86_800)
    operations = drawn.operation.bincount(minlength=14)
    assert len(operations) == 14
    assert (operations - 6200).abs().max() < 5 * 6200**0.5
    rotated = drawn.magnitude[drawn.operation == list(OPERATIONS).index("rotate")]
    levels = (rotated.abs() / 135 * 30).round().long().bincount(minlength=31)
    assert (levels - 200).abs().max() < 5 * 200**0.5
    assert abs((rotated > 0).sum() - (rotated < 0).sum()) < 5 * 6200**0.5
    solarized = drawn.magnitude[drawn.operation == list(OPERATIONS).index("solarize")]
    assert (solarized >= 0).all()


def test_each_image_has_its_own_draw_and_the_seed_decides():
    images = pixels(3, 16, 16).expand(300, -1, -1, -1)
    augmentation = Augmentation(crop=0, flip=False, trivial_augment=True)
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(augmentation(images, torch.zeros(300).long(), classes=2).images)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert len(results[0].unique(dim=0)) > 150  # of the some 500 that can be


@EACH
@pytest.mark.parametrize("size", [(16, 16), (9, 14)])
def test_a_mask_moves_as_its_image(name: str, size: tuple[int, int]):
    drawn = every_draw(name)
    masks = pixels(len(drawn.magnitude), *size) > 127
    moved = follow(masks, drawn)
    assert moved.dtype == torch.bool
    if name in GEOMETRIC:
        images = 255 * masks[:, None].byte()
        assert torch.equal(moved, trivial_augment.trivial_augment(images, drawn)[:, 0] == 255)
        assert not torch.equal(moved, masks)
    else:
        assert torch.equal(moved, masks)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("trivial", [False, True])
def test_masks_follow_through_the_whole_augmentation(flip: bool, trivial: bool, monkeypatch: pytest.MonkeyPatch):
    """The images are their own masks, and only operations that move pixels are drawn."""
    numbers = torch.tensor([number for number, name in enumerate(OPERATIONS) if name in GEOMETRIC])
    fixed = Draw(numbers.repeat(40), torch.linspace(-30, 30, 200))
    monkeypatch.setattr(trivial_augment, "draw", lambda batch: fixed)
    torch.manual_seed(0)
    masks = pixels(200, 12, 20) > 127
    images = 255 * masks[:, None].byte().expand(-1, 3, -1, -1)
    augmentation = Augmentation(crop=3, flip=flip, trivial_augment=trivial)
    changed = augmentation(images, torch.zeros(200).long(), masks, classes=2)
    assert changed.masks is not None
    assert changed.masks.dtype == torch.bool
    assert changed.masks.shape == masks.shape
    assert torch.equal(changed.images, 255 * changed.masks[:, None].byte().expand(-1, 3, -1, -1))
    assert (changed.masks != masks).any(dim=(1, 2)).float().mean() > 0.9


def test_masks_stay_where_only_tones_change_or_pixels_are_erased(monkeypatch: pytest.MonkeyPatch):
    numbers = torch.tensor([number for number, name in enumerate(OPERATIONS) if name not in GEOMETRIC])
    fixed = Draw(numbers.repeat(10), torch.full((90,), 0.5))
    monkeypatch.setattr(trivial_augment, "draw", lambda batch: fixed)
    masks, results = pixels(90, 12, 20) > 127, []
    for augmentation in (Augmentation(crop=3), Augmentation(crop=3, trivial_augment=True, erasing=0.5)):
        torch.manual_seed(0)
        results.append(augmentation(pixels(90, 3, 12, 20), torch.zeros(90).long(), masks, classes=2))
    assert not torch.equal(results[0].images, results[1].images)
    assert torch.equal(results[0].masks, results[1].masks)
    torch.manual_seed(0)
    assert torch.equal(results[0].masks, crop_and_flip(255 * masks[:, None].byte(), crop=3, flip=True)[:, 0] == 255)


def test_unknown_masks_stay_unknown():
    images = pixels(20, 3, 8, 8)
    assert Augmentation(crop=1, trivial_augment=True)(images, torch.zeros(20).long(), classes=2).masks is None
