"""The data set `shapes`: reproducible, balanced, masks true, and neither pixels nor colours tell."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vit.data.image_set import ImageSet
from vit.data.shapes import shapes


@pytest.fixture(scope="module")
def data() -> ImageSet:
    return shapes(train=3_000, test=1_000)


def test_same_seed_gives_the_same_bits_on_any_number_of_threads():
    first = shapes(3, train=70, test=30)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        second = shapes(3, train=70, test=30)
    finally:
        torch.set_num_threads(threads)
    for ours, theirs in ((first.train, second.train), (first.test, second.test)):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)
        assert torch.equal(ours.masks, theirs.masks)


def test_making_it_neither_reads_nor_moves_the_global_generator():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = shapes(train=20, test=10)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(shapes(train=20, test=10).train.images, first.train.images)


def test_no_two_images_are_the_same_within_and_across_splits_and_seeds():
    sets = [shapes(seed, train=200, test=200) for seed in range(3)]
    images = torch.cat([split.images for each in sets for split in (each.train, each.test)])
    assert len(torch.unique(images.flatten(1), dim=0)) == 1_200


def test_sizes_and_types(data: ImageSet):
    assert len(data.classes) == len(set(data.classes)) == 10
    for split, count in ((data.train, 3_000), (data.test, 1_000)):
        assert split.images.shape == (count, 3, 32, 32)
        assert split.images.dtype == torch.uint8
        assert split.labels.shape == (count,)
        assert split.labels.dtype == torch.int64
        assert split.masks is not None
        assert split.masks.shape == (count, 32, 32)
        assert split.masks.dtype == torch.bool


def test_sizes_that_ten_does_not_divide():
    odd = shapes(train=105, test=33)
    assert odd.train.labels.bincount().tolist() == [11] * 5 + [10] * 5
    assert odd.test.labels.bincount().tolist() == [4] * 3 + [3] * 7


def test_classes_are_balanced_and_in_random_order(data: ImageSet):
    assert data.train.labels.bincount().tolist() == [300] * 10
    assert data.test.labels.bincount().tolist() == [100] * 10
    followed_by_itself = (data.train.labels[1:] == data.train.labels[:-1]).float().mean()
    assert 0.07 < followed_by_itself < 0.13  # 0.1 by chance; 0 or nearly 1 in an order that is not random


def test_the_object_stands_out_from_what_is_around_it(data: ImageSet):
    images, masks = data.train.images.float() / 255, data.train.masks.float()[:, None]
    near, far = F.max_pool2d(masks, 3, 1, 1), F.max_pool2d(masks, 7, 1, 3)
    around = far - near  # two pixels wide; the pixel at the edge itself is a mixture
    inside = -F.max_pool2d(-masks, 3, 1, 1)
    assert inside.sum((1, 2, 3)).min() > 10
    contrast = (mean_colour(images, inside) - mean_colour(images, around)).norm(dim=1)
    assert contrast.min() > 0.2
    # another image's mask laid over this one, where it misses the object, shows far less: masks are in place
    moved = inside.roll(1, dims=0) * (1 - far)
    enough = moved.sum((1, 2, 3)) > 20
    elsewhere = (mean_colour(images, moved) - mean_colour(images, around)).norm(dim=1)[enough]
    assert contrast.median() > 2.5 * elsewhere.median()


def test_nothing_covers_the_object(data: ImageSet):
    images, masks = data.train.images.float() / 255, data.train.masks.float()[:, None]
    inside = -F.max_pool2d(-masks, 3, 1, 1)
    spread = (images - mean_colour(images, inside)[:, :, None, None]).square() * inside
    deviation = (spread.sum((2, 3)) / inside.sum((2, 3))).sqrt().amax(1)
    assert deviation.max() < 0.1  # texture and noise; with a distractor on top it would be 0.2 and more


def mean_colour(images: Tensor, weights: Tensor) -> Tensor:
    return (images * weights).sum((2, 3)) / weights.sum((2, 3))


def test_every_class_is_found_at_many_places_and_sizes(data: ImageSet):
    masks = data.train.masks.float()
    area = masks.sum((1, 2))
    position = torch.arange(32.0)
    row, column = masks.sum(2) @ position / area, masks.sum(1) @ position / area
    for label in range(10):
        these = data.train.labels == label
        for centre in (row[these], column[these]):
            assert centre.std() > 1.5
            assert centre.max() - centre.min() > 8
        assert area[these].max() > 1.6 * area[these].min()
        assert len(torch.unique(data.train.masks[these].flatten(1), dim=0)) > 290


def test_area_does_not_tell_the_class(data: ImageSet):
    area = data.train.masks.float().sum((1, 2))
    means = torch.stack([area[data.train.labels == label].mean() for label in range(10)])
    assert means.std() < 0.5 * area.std()


# The numbers in the module's docstring come from training by gradient descent on all 10,000 images, which takes
# too long here. Ridge regression has a closed form, fits the same kind of classifier on 3,000, and takes the
# best of three penalties on the test set itself: generous enough to stand in for them.


def best_ridge_accuracy(train: Tensor, test: Tensor, data: ImageSet) -> float:
    mean = train.mean(0)
    train, test = train - mean, test - mean
    targets = F.one_hot(data.train.labels, 10) - 0.1
    kernel = train @ train.T
    accuracies = []
    for penalty in (0.1, 1.0, 10.0):
        ridge = kernel + penalty * kernel.diagonal().mean() * torch.eye(len(train))
        weights = train.T @ torch.cholesky_solve(targets, torch.linalg.cholesky(ridge))
        accuracies.append(((test @ weights).argmax(1) == data.test.labels).float().mean().item())
    return max(accuracies)


def colour_histogram(images: Tensor) -> Tensor:
    """uint8 (N,3,H,W) to the share of pixels (N,216) in each of 6 × 6 × 6 colours."""
    red, green, blue = (images.int() * 6 // 256).flatten(2).unbind(1)
    colour = (36 * red + 6 * green + blue).long()
    return torch.zeros(len(images), 216).scatter_add_(1, colour, torch.full(colour.shape, 1 / colour.shape[1]))


def test_pixels_alone_do_not_tell_the_class(data: ImageSet):
    train, test = data.train.images.flatten(1) / 255, data.test.images.flatten(1) / 255
    assert best_ridge_accuracy(train, test, data) < 0.4


def test_colours_alone_do_not_tell_the_class(data: ImageSet):
    train, test = colour_histogram(data.train.images), colour_histogram(data.test.images)
    assert best_ridge_accuracy(train, test, data) < 0.2
