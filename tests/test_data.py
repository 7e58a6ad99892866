"""From images in memory to batches: split, order, augmentation, statistics."""

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader
from torchvision.transforms.v2 import functional as torchvision

from tests.references import crop_and_flip
from vit.data import ImageData, ImageSet, Split, datamodule, load_images, normalize
from vit.data.datamodule import channel_statistics, derived_seed
from vit.settings import TrainSettings, UserError


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def image_set(count: int = 40) -> ImageSet:
    """Images whose first pixel says which one they are; labels 0 to 2."""
    images = pixels(count, 3, 4, 4)
    images[:, 0, 0, 0] = torch.arange(count)
    split = Split(images, torch.arange(count) % 3)
    return ImageSet("numbered noise", ("a", "b", "c"), train=split, test=split)


def image_data(*, validation: int = 10, batch_size: int = 8, seed: int = 0) -> ImageData:
    return ImageData(image_set(), validation=validation, batch_size=batch_size, seed=seed)


def which(images: Tensor) -> list[int]:
    return images[:, 0, 0, 0].tolist()


def order(loader: DataLoader) -> list[int]:
    return [number for images, _ in loader for number in which(images)]


def crops(image: Tensor, crop: int) -> list[Tensor]:
    """Every slice of the image with its border mirrored, as it is and flipped."""
    height, width = image.shape[1:]
    padded = F.pad(image[None].float(), [crop] * 4, mode="reflect")[0].byte()
    slices = [
        padded[:, top : top + height, left : left + width]
        for top in range(2 * crop + 1)
        for left in range(2 * crop + 1)
    ]
    return [*slices, *(each.flip(2) for each in slices)]


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 5, 9), (1, 9, 5)])
@pytest.mark.parametrize("crop", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_crop_and_flip_gives_slices_of_the_mirrored_image(shape: tuple[int, int, int], crop: int, flip: bool):
    torch.manual_seed(0)
    images = pixels(20, *shape)
    changed = crop_and_flip(images, crop=crop, flip=flip)
    assert changed.dtype == torch.uint8
    assert changed.shape == images.shape
    for before, after in zip(images, changed, strict=True):
        allowed = crops(before, crop)
        allowed = allowed if flip else allowed[: len(allowed) // 2]
        assert any(torch.equal(after, each) for each in allowed)


def test_crop_and_flip_draws_for_each_image_and_every_case_equally():
    torch.manual_seed(0)
    image = pixels(3, 5, 7)
    changed = crop_and_flip(image.expand(1800, -1, -1, -1), crop=1, flip=True)
    counts = [(changed == each).all(dim=(1, 2, 3)).sum().item() for each in map(torch.Tensor.clone, crops(image, 1))]
    assert sum(counts) == 1800
    assert len(counts) == 18
    assert 60 < min(counts) <= max(counts) < 140  # 100 each, of deviation 10


def test_no_crop_and_no_flip_changes_nothing():
    images = pixels(6, 3, 5, 7)
    assert torch.equal(crop_and_flip(images, crop=0, flip=False), images)


def test_crop_and_flip_is_a_function_of_the_seed():
    images, results = pixels(32, 3, 8, 8), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(crop_and_flip(images, crop=2, flip=True))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert torch.equal(images, pixels(32, 3, 8, 8))  # not in place


@pytest.mark.parametrize("channels", [1, 3])
def test_normalize_equals_torchvisions(channels: int):
    images = pixels(4, channels, 5, 7)
    mean, std = (0.4914, 0.4822, 0.4465)[:channels], (0.2470, 0.2435, 0.2616)[:channels]
    normalized = normalize(images, mean, std)
    assert normalized.dtype == torch.float32
    assert_close(normalized, torchvision.normalize(images / 255, list(mean), list(std)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_D12_statistics_are_those_of_all_pixels(channels: int):
    images = pixels(50, channels, 6, 5) // torch.arange(1, 51)[:, None, None, None].byte()  # some dark, some bright
    mean, std = channel_statistics(images)
    array = images.numpy() / 255
    assert mean == pytest.approx(array.mean(axis=(0, 2, 3)), abs=1e-12)
    assert std == pytest.approx(array.std(axis=(0, 2, 3)), abs=1e-12)
    of_each_image = array.std(axis=(2, 3)).mean(axis=0)  # what the copied 0.2023 is
    assert (np.array(std) > of_each_image + 0.03).all()
    assert {type(value) for value in (*mean, *std)} == {float}  # plain facts for the checkpoint


def test_normalize_leaves_its_input_alone():
    images = torch.full((1, 3, 2, 2), 100.0)
    normalize(images, (0.5,) * 3, (0.2,) * 3)
    assert (images == 100).all()


def test_D12_normalized_training_images_have_mean_0_and_deviation_1():
    data = image_data(validation=20)
    normalized = normalize(data.train.images, data.mean, data.std)
    assert_close(normalized.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    assert_close(normalized.std(dim=(0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    assert data.mean == channel_statistics(data.train.images)[0]  # the validation images have no say
    assert data.mean != channel_statistics(image_set().train.images)[0]


def test_D12_a_channel_that_never_changes_is_no_division_by_zero():
    images = pixels(5, 3, 4, 4)
    images[:, 1] = 7
    normalized = normalize(images, *channel_statistics(images))
    assert normalized.isfinite().all()
    assert_close(normalized[:, 1], torch.zeros(5, 4, 4), atol=1e-4, rtol=0)


@pytest.mark.parametrize("validation", [0, 1, 10, 39])
def test_D11_split_is_disjoint_and_complete(validation: int):
    data = image_data(validation=validation)
    train, kept = which(data.train.images), which(data.validation.images)
    assert len(kept) == validation
    assert sorted(train + kept) == list(range(40))
    for part in (data.train, data.validation):
        numbers = torch.tensor(which(part.images), dtype=torch.int64)
        assert torch.equal(part.images, image_set().train.images[numbers])
        assert torch.equal(part.labels, numbers % 3)


def test_D11_split_does_not_depend_on_the_seed():
    torch.manual_seed(1)
    first = image_data(seed=0)
    torch.manual_seed(2)
    second = image_data(seed=1)
    assert which(first.validation.images) == which(second.validation.images)
    assert which(first.validation.images) != list(range(10))  # drawn, for files come sorted by class


def test_D11_validation_images_are_the_same_raw_ones_each_time():
    loader = image_data(batch_size=4).val_dataloader()
    first, second = list(loader), list(loader)
    images = torch.cat([images for images, _ in first])
    assert torch.equal(images, image_set().train.images[which(images)])
    for (images, labels), (same_images, same_labels) in zip(first, second, strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)
    assert [len(labels) for _, labels in first] == [4, 4, 2]


def test_no_validation_images_means_no_batches():
    assert list(image_data(validation=0).val_dataloader()) == []


@pytest.mark.parametrize("validation", [40, 41])
def test_too_large_a_validation_part_is_refused(validation: int):
    with pytest.raises(UserError, match=rf"validation={validation} .* 40 training images"):
        image_data(validation=validation)


def test_order_is_a_function_of_seed_and_epoch():
    orders = {}
    for seed in (0, 1):
        loader = image_data(seed=seed).train_dataloader()
        for epoch in (0, 1):
            loader.sampler.set_epoch(epoch)
            orders[seed, epoch] = order(loader)
    torch.manual_seed(5)  # neither the global generator nor earlier epochs matter
    again = image_data(seed=1).train_dataloader()
    again.sampler.set_epoch(1)
    assert order(again) == orders[1, 1]
    assert len({tuple(each) for each in orders.values()}) == len(orders)  # seed 1 is not seed 0 an epoch later
    for each in orders.values():
        assert sorted(each) == sorted(which(image_data().train.images))  # each image once


def test_the_smaller_last_batch_is_kept():
    loader = image_data(validation=10, batch_size=8).train_dataloader()
    assert len(loader) == 4
    assert [len(labels) for _, labels in loader] == [8, 8, 8, 6]


def test_a_batch_is_the_images_of_its_indices():
    data = image_data()
    loader = data.train_dataloader()
    for (images, labels), indices in zip(loader, loader.batch_sampler, strict=True):
        assert torch.equal(images, data.train.images[indices])
        assert torch.equal(labels, data.train.labels[indices])
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
    one, label = data.train[indices[0]]
    assert torch.equal(one, images[0])
    assert label == labels[0]


def test_D6_what_a_worker_needs_can_be_pickled():
    for loader in (image_data().train_dataloader(), image_data().val_dataloader()):
        dataset, collate = pickle.loads(pickle.dumps((loader.dataset, loader.collate_fn)))
        images, labels = collate(dataset.__getitems__([2, 0]))
        assert torch.equal(images, loader.dataset.images[[2, 0]])
        assert torch.equal(labels, loader.dataset.labels[[2, 0]])


def test_D10_memory_is_pinned_only_when_asked():
    assert not image_data().train_dataloader().pin_memory
    assert not image_data().val_dataloader().pin_memory
    pinned = ImageData(image_set(), validation=10, batch_size=8, seed=0, pin=True)
    assert pinned.train_dataloader().pin_memory


def test_a_shift_as_large_as_the_image_is_refused():
    with pytest.raises(ValueError, match=r"crop=4 must be smaller than the images, 4×6"):
        crop_and_flip(torch.zeros(1, 3, 4, 6, dtype=torch.uint8), crop=4, flip=False)


def test_derived_seeds_have_nothing_in_common():
    numbers = [(), (0,), (0, 0), (1,), (0, 1), (1, 0), (3,), (3, 0), (3, 0, 0), (2**31 - 1, 10**6, 7)]
    assert len({derived_seed(*each) for each in numbers}) == len(numbers)


@pytest.mark.parametrize(("images", "kept"), [(9, 0), (10, 1), (64, 6), (60_000, 5_000)])
def test_a_tenth_is_kept_for_validation_unless_told_otherwise(images: int, kept: int):
    split = Split(torch.zeros(images, 1, 1, 1, dtype=torch.uint8), torch.zeros(images, dtype=torch.int64))
    data = ImageData(ImageSet("zeros", ("a", "b"), split, split), validation=None, batch_size=2, seed=0)
    assert len(data.validation) == kept
    assert len(data.train) == images - kept


def test_D8_D9_batches_come_from_memory_without_processes_and_workers_stay_between_epochs():
    assert TrainSettings().workers == 0
    data = ImageData(image_set(), validation=8, batch_size=8, seed=0)
    assert data.train_dataloader().num_workers == 0
    assert data.train_dataloader().dataset.images.shape == (32, 3, 4, 4)
    data.workers = 1
    assert data.train_dataloader().persistent_workers


def masked(count: int = 40, *size: int) -> ImageSet:
    """Images that are white on the object and black elsewhere: a large box, each at a place of its own."""
    masks = torch.zeros(count, *size, dtype=torch.bool)
    for number, mask in enumerate(masks):
        mask[2 + number // 8 : 12 + number // 8, 2 + number % 8 : 14 + number % 8] = True
    split = Split(255 * masks[:, None].byte().expand(-1, 3, -1, -1), torch.arange(count) % 3, masks)
    return ImageSet("boxes", ("a", "b", "c"), train=split, test=split)


def test_masks_stay_with_their_images_through_the_split_and_into_the_batches():
    data = ImageData(masked(40, 24, 24), validation=10, batch_size=8, seed=0)
    assert [len(part.tensors[2]) for part in (data.train, data.validation)] == [30, 10]
    for loader in (data.train_dataloader(), data.val_dataloader()):
        batches = list(loader)
        assert sum(len(labels) for _, labels, _ in batches) == len(loader.dataset)
        for images, _, masks in batches:
            assert masks.dtype == torch.bool
            assert torch.equal(images, 255 * masks[:, None].byte().expand(-1, 3, -1, -1))


def test_where_the_source_knows_no_masks_a_batch_has_none():
    assert [len(batch) for batch in image_data().train_dataloader()] == [2] * 4


@pytest.mark.parametrize("image_size", [(24, 24), (48, 48), (36, 20), (8, 8)])
def test_masks_are_resized_with_their_images(image_size: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datamodule, "shapes", lambda: masked(40, 24, 24))
    split = load_images("shapes", image_size=image_size).train
    assert split.masks is not None
    assert split.masks.shape == (40, *image_size)
    assert split.masks.dtype == torch.bool
    edge = (split.images[:, 0] > 30) & (split.images[:, 0] < 225)  # a mixture of the two
    white = split.images[:, 0] > 127
    assert torch.equal(split.masks[~edge], white[~edge])
