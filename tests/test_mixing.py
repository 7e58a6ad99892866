"""Every erased or mixed image is, pixel by pixel, what its target says; and what is drawn depends on (seed, step)."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.references import crop_and_flip, tiny_vit
from tests.test_pictures import pixels
from vit.data import Augmentation, Batch
from vit.data.mixing import erase, mix
from vit.training.classifier import Classifier

SIZES = pytest.mark.parametrize("size", [(32, 32), (20, 41)])


def rectangle(changed: Tensor) -> tuple[int, int]:
    """The height and width of the pixels (H,W) that are true, which must be a whole rectangle."""
    rows, columns = changed.any(1).nonzero().flatten(), changed.any(0).nonzero().flatten()
    if not len(rows):
        return 0, 0
    assert changed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
    return int(rows[-1] - rows[0] + 1), int(columns[-1] - columns[0] + 1)


def partner_and_share(target: Tensor, own: int) -> tuple[int, float]:
    """Which other class a target (K,) names, and how much of it; the image itself if there is none."""
    assert target.min() >= 0
    assert target.sum() == pytest.approx(1, abs=1e-6)
    others = target.clone()
    others[own] = 0
    assert (others > 0).sum() <= 1
    return (int(others.argmax()), float(others.max())) if others.any() else (own, 0.0)


def assert_faded(image: Tensor, original: Tensor, other: Tensor, share: float) -> None:
    expected = original.double() * (1 - share) + other.double() * share
    assert (image - expected).abs().max() <= 0.5 + 1e-3


def assert_cut(image: Tensor, original: Tensor, other: Tensor, share: float) -> tuple[int, int]:
    """Returns the height and width of what was pasted."""
    changed = (image != original).any(0)
    assert torch.equal(image, torch.where(changed, other, original))
    height, width = rectangle(changed)
    assert height * width == pytest.approx(share * changed.numel(), abs=1e-3)
    return height, width


@SIZES
def test_erasing_puts_noise_in_one_rectangle_of_a_share_of_the_images(size: tuple[int, int]):
    torch.manual_seed(0)
    images = torch.full((2000, 3, *size), 77, dtype=torch.uint8)
    erased = erase(images, share=0.25)
    assert erased.dtype == torch.uint8
    assert (images == 77).all()
    changed = (erased != images).any(1)
    touched = changed.any(dim=(1, 2))
    assert abs(touched.sum() - 500) < 5 * 375**0.5  # binomial
    noise = erased.permute(0, 2, 3, 1)[changed]
    levels = noise.flatten().bincount(minlength=256).double()
    assert (levels - levels.mean()).abs().max() < 5 * levels.mean().sqrt()
    assert (noise.double().T.corrcoef() - torch.eye(3)).abs().max() < 0.02  # the channels differ
    heights, widths = torch.tensor([rectangle(each) for each in changed[touched]], dtype=torch.float64).unbind(1)
    total = size[0] * size[1]
    assert ((heights + 0.5) * (widths + 0.5)).min() >= 0.02 * total
    assert ((heights - 0.5) * (widths - 0.5)).max() <= 0.33 * total
    fits = (heights < size[0]) & (widths < size[1])
    assert ((heights + 0.5) / (widths - 0.5)).min() >= 0.3
    assert ((heights - 0.5) / (widths + 0.5))[fits].max() <= 3.3
    assert len(torch.stack([heights, widths]).unique(dim=1).T) > 100
    assert (heights * widths / total).mean() == pytest.approx(0.175, abs=0.02)
    assert abs((heights > widths).double().mean() - (heights < widths).double().mean()) < 0.2
    covered = changed[touched].double().mean(0)
    assert min(covered.mean(0).min(), covered.mean(1).min()) > 0.01  # at the border too
    for axis in (0, 1):
        assert_close(covered, covered.flip(axis), atol=0.12, rtol=0)


def test_erasing_none_and_all():
    torch.manual_seed(0)
    images = pixels(300, 3, 16, 16)
    assert torch.equal(erase(images, share=0.0), images)
    assert (erase(images, share=1.0) != images).any(dim=(1, 2, 3)).all()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_mixup_is_the_blend_that_the_target_says(alpha: float):
    torch.manual_seed(0)
    images, targets = pixels(64, 3, 8, 9), torch.eye(64)
    mixed, mixed_targets = mix(images, targets, mixup=alpha, cutmix=0.0)
    assert mixed.dtype == torch.uint8
    partners = []
    for own in range(64):
        other, share = partner_and_share(mixed_targets[own], own)
        assert_faded(mixed[own], images[own], images[other], share)
        partners.append(other)
    assert sum(own != other for own, other in enumerate(partners)) > 50
    assert len(mixed_targets.diagonal().unique()) > 40


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_shares_of_mixup_follow_the_beta_distribution(alpha: float):
    torch.manual_seed(0)
    mixed, shares = mix(pixels(20_000, 1, 1, 1), torch.arange(20_000.0)[:, None] % 2, mixup=alpha, cutmix=0.0)
    assert mixed.shape == (20_000, 1, 1, 1)
    kept = torch.cat([shares[1::2][shares[1::2] < 1], shares[::2][shares[::2] > 0]])  # partners of the other class
    assert kept.mean() == pytest.approx(0.5, abs=0.02)
    assert kept.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


@SIZES
def test_cutmix_is_a_rectangle_as_large_as_the_target_says(size: tuple[int, int]):
    torch.manual_seed(0)
    images, targets = pixels(200, 3, *size), torch.eye(200)
    mixed, mixed_targets = mix(images, targets, mixup=0.0, cutmix=1.0)
    boxes = []
    for own in range(200):
        other, share = partner_and_share(mixed_targets[own], own)
        height, width = assert_cut(mixed[own], images[own], images[other], share)
        changed = (mixed[own] != images[own]).any(0)
        if not (changed[[0, -1]].any() or changed[:, [0, -1]].any()):  # not cut off: as long and wide as the image
            assert abs(height / size[0] - width / size[1]) <= 0.5 / size[0] + 0.5 / size[1]
        boxes.append((height, width))
    assert len(set(boxes)) > 80


def test_boxes_of_cutmix_lie_everywhere_and_their_sizes_follow_the_beta_distribution():
    torch.manual_seed(0)
    images = torch.cat([torch.zeros(2000, 1, 20, 20), torch.ones(2000, 1, 20, 20)]).byte()
    mixed, _ = mix(images, images[:, :, 0, 0].float(), mixup=0.0, cutmix=1.0)
    changed = (mixed != images)[:, 0]
    covered = changed[changed.any(dim=(1, 2))].double().mean(0)
    # A box of share a about a point anywhere holds the pixel in the middle with probability a, a corner with a / 4.
    assert covered[10, 10] == pytest.approx(0.5, abs=0.06)
    for corner in (covered[0, 0], covered[0, -1], covered[-1, 0], covered[-1, -1]):
        assert corner == pytest.approx(0.125, abs=0.04)


def test_with_mixup_and_cutmix_half_of_the_images_undergo_each():
    torch.manual_seed(0)
    images = pixels(400, 3, 8, 8)
    mixed, targets, _ = Augmentation(crop=0, flip=False, mixup=1.0, cutmix=1.0)(images, torch.arange(400), classes=400)
    patchworks = 0
    for own in range(400):
        other, share = partner_and_share(targets[own], own)
        patchwork = (mixed[own] == images[own]).all(0) | (mixed[own] == images[other]).all(0)
        whole_pixels = abs(share * 64 - round(share * 64)) < 1e-3  # a blend with 0.1 % may round to the image itself
        if patchwork.all() and whole_pixels:
            assert_cut(mixed[own], images[own], images[other], share)
            patchworks += 1
        else:
            assert_faded(mixed[own], images[own], images[other], share)
    assert 150 < patchworks < 250


@pytest.mark.parametrize(("mix", "cut"), [(0.5, 0.0), (0.0, 0.5), (1.0, 1.0)])
def test_mixed_images_have_shares_for_targets_and_no_masks(mix: float, cut: float):
    images, labels = pixels(12, 3, 8, 8), torch.arange(12) % 5
    masks = images[:, 0] > 127
    mixed = Augmentation(crop=1, mixup=mix, cutmix=cut)(images, labels, masks, classes=7)
    assert mixed.masks is None
    assert mixed.images.dtype == torch.uint8
    assert mixed.targets.shape == (12, 7)
    assert mixed.targets.dtype == torch.float32
    assert (mixed.targets[:, 5:] == 0).all()
    assert_close(mixed.targets.sum(1), torch.ones(12))


def test_without_strong_there_is_only_crop_and_flip():
    images, labels = pixels(40, 3, 10, 12), torch.arange(40) % 5
    masks = images[:, 0] > 127
    augmentation = Augmentation(crop=3, flip=True, trivial_augment=True, erasing=1.0, mixup=1.0, cutmix=1.0)
    torch.manual_seed(7)
    changed = augmentation(images, labels, masks, classes=5, strong=False)
    torch.manual_seed(7)
    assert torch.equal(changed.images, crop_and_flip(images, crop=3, flip=True))
    torch.manual_seed(7)
    assert torch.equal(changed.masks, crop_and_flip(255 * masks[:, None].byte(), crop=3, flip=True)[:, 0] == 255)
    assert changed.targets.dtype == torch.int64
    assert torch.equal(changed.targets, labels)


def classifier(augmentation: Augmentation, *, until: float = 1.0, seed: int = 0) -> Classifier:
    module = Classifier(
        tiny_vit(), mean=(0.5,) * 3, std=(0.2,) * 3, augmentation=augmentation, augment_until=until, seed=seed
    )
    module.trainer = SimpleNamespace(global_step=0, global_rank=0, estimated_stepping_batches=10)
    return module


def at(module: Classifier, step: int, rank: int = 0) -> Batch:
    module.trainer.global_step, module.trainer.global_rank = step, rank
    torch.rand(step + 1)  # what was drawn before does not matter
    return module.augment((pixels(16, 3, 8, 8), torch.arange(16) % 5))


def test_what_a_step_learns_from_is_a_function_of_seed_step_and_device():
    augmentation = Augmentation(crop=2, trivial_augment=True, erasing=0.5, mixup=1.0, cutmix=1.0)
    module = classifier(augmentation)
    first, other_step, again = at(module, 3), at(module, 4), at(module, 3)
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.targets, again.targets)
    same_seed = at(classifier(augmentation), 3)
    assert torch.equal(first.images, same_seed.images)
    for other in (other_step, at(module, 3, rank=1), at(classifier(augmentation, seed=1), 3)):
        assert not torch.equal(first.images, other.images)
        assert not torch.equal(first.targets, other.targets)


@pytest.mark.parametrize(("until", "strong_steps"), [(0.0, 0), (0.5, 5), (0.75, 8), (1.0, 10)])
def test_the_strong_augmentation_ends_after_its_share_of_the_steps(until: float, strong_steps: int):
    module = classifier(Augmentation(crop=1, mixup=1.0), until=until)
    assert [at(module, step).targets.ndim == 2 for step in range(10)] == [step < strong_steps for step in range(10)]


def test_patches_left_out_fall_evenly_to_none():
    module = Classifier(tiny_vit(), mean=(0.5,) * 3, std=(0.2,) * 3, patch_dropout=0.5)
    kept = []
    for step in range(10):
        module.trainer = SimpleNamespace(global_step=step, global_rank=0, estimated_stepping_batches=10)
        kept.append(module.kept_patches(200))
    assert [patches.shape for patches in kept] == [(200, n) for n in (8, 9, 10, 11, 12, 12, 13, 14, 15, 16)]
    assert all((patches.diff(dim=1) > 0).all() for patches in kept)  # in order, none twice
    counts = kept[0].flatten().bincount(minlength=16)
    assert (counts - 100).abs().max() < 5 * 50**0.5  # each as often as the others


def test_what_is_drawn_is_no_matter_for_autocast():
    """Or bf16 would move pixels of rotated images, and the picture of the first batch would not be what is learned."""
    augmentation = Augmentation(crop=2, trivial_augment=True, erasing=0.5, mixup=1.0, cutmix=1.0)
    module = Classifier(tiny_vit(), mean=(0.5,) * 3, std=(0.2,) * 3, augmentation=augmentation)
    module.trainer = SimpleNamespace(global_step=3, global_rank=0, estimated_stepping_batches=10)
    batch = pixels(128, 3, 8, 8), torch.arange(128) % 5
    expected = module.augment(batch)
    with torch.autocast("cpu", torch.bfloat16):
        found = module.augment(batch)
    assert torch.equal(found.images, expected.images)
    assert torch.equal(found.targets, expected.targets)
