"""The sheets of what is learned from show the right image, with the right name below it."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from tests.test_pictures import cell, decode, pixels
from vit.data import Batch
from vit.inspection.data_logger import DataLogger, batch_sheet, example_sheet, target_name
from vit.inspection.pictures import GAP, TEXT

NAMES = ["Übergröße", "ウサギ", "a very long name of a class indeed " * 3, "two\nlines", "", "a\x00b", "🐈"]


def picture(image: Tensor) -> np.ndarray:
    return np.broadcast_to(image.permute(1, 2, 0).numpy(), (*image.shape[1:], 3))


def below(sheet: np.ndarray, row: int, column: int, side: int) -> np.ndarray:
    """The strip under a cell of `side` pixels."""
    top, left = TEXT + GAP + row * (side + TEXT + GAP) + side, GAP + column * (side + GAP)
    return sheet[top : top + TEXT + GAP, left : left + side]


def written(text: str, side: int) -> np.ndarray:
    strip = Image.new("RGB", (side, TEXT + GAP), "white")
    ImageDraw.Draw(strip).text((0, 0), text, "black")
    return np.asarray(strip)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_row_of_examples_holds_the_first_ten_images_of_its_class(channels: int):
    images, labels = pixels(60, channels, 8, 8), torch.arange(60) % 4
    labels[labels == 3] = 0
    labels[[7, 40]] = 3  # a class of two
    classes = ["ant", "bee", "cat", "dog"]
    sheet = example_sheet(images, labels, classes)
    for row, name in enumerate(classes):
        expected = [image for image, label in zip(images, labels.tolist(), strict=True) if label == row][:10]
        for column in range(10):
            shown = cell(sheet, row, column, (8, 8), 8)
            if column < len(expected):
                assert np.array_equal(shown, picture(expected[column]))
                assert np.array_equal(below(sheet, row, column, 64), written(name, 64))
            else:
                assert (shown == 255).all()
                assert (below(sheet, row, column, 64) == 255).all()
    assert not np.array_equal(example_sheet(images, labels, classes[::-1]), sheet)
    assert (sheet[:TEXT] < 128).any()


def test_a_class_without_images_leaves_its_row_blank():
    sheet = example_sheet(pixels(3, 3, 8, 8), torch.tensor([0, 2, 2]), ["ant", "bee", "cat"])
    assert (cell(sheet, 1, 0, (8, 8), 8) == 255).all()
    assert np.array_equal(below(sheet, 2, 1, 64), written("cat", 64))


def test_of_many_classes_the_first_hundred_are_shown_and_the_sheet_says_so():
    images, labels = pixels(130, 3, 8, 8), torch.arange(130)
    names = [f"n{number}" for number in range(130)]
    sheet, hundred = (example_sheet(images[:count], labels[:count], names[:count]) for count in (130, 100))
    assert sheet.shape == hundred.shape == (TEXT + GAP + 100 * (64 + TEXT + GAP), GAP + 10 * (64 + GAP), 3)
    assert np.array_equal(cell(sheet, 99, 0, (8, 8), 8), picture(images[99]))
    assert np.array_equal(below(sheet, 99, 0, 64), written("n99", 64))
    assert not np.array_equal(sheet[:TEXT], hundred[:TEXT])
    assert np.array_equal(sheet[TEXT + GAP :], hundred[TEXT + GAP :])


@pytest.mark.parametrize("count", [1, 7, 10, 13, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_first_batch_stands_in_its_order(count: int, channels: int):
    batch = Batch(pixels(count, channels, 8, 8), torch.arange(count) % 3, None)
    sheet = batch_sheet(batch, ["ant", "bee", "cat"])
    columns, shown = min(10, count), min(40, count)
    rows = -(-shown // columns)
    assert sheet.shape == (TEXT + GAP + rows * (96 + TEXT + GAP), GAP + columns * (96 + GAP), 3)
    for place in range(rows * columns):
        row, column = divmod(place, columns)
        inside = place < shown
        expected = picture(batch.images[place]) if inside else np.full((8, 8, 3), 255)
        assert np.array_equal(cell(sheet, row, column, (8, 8), 12), expected)
        name = ["ant", "bee", "cat"][place % 3] if inside else ""
        assert np.array_equal(below(sheet, row, column, 96), written(name, 96))


def test_masks_are_outlined_in_red_at_the_rim_only():
    images = pixels(12, 1, 8, 8)
    masks = torch.zeros(12, 8, 8, dtype=torch.bool)
    masks[0, 2:6, 3:7] = True
    masks[1] = True
    masks[2:11] = pixels(9, 8, 8) > 60  # and one without an object
    sheet = batch_sheet(Batch(images, torch.zeros(12).long(), masks), ["ant"])
    for place in range(12):
        expected = picture(images[place]).copy()
        for row in range(8):
            for column in range(8):
                near = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
                whole = all(0 <= r < 8 and 0 <= c < 8 and masks[place, r, c] for r, c in near)
                if masks[place, row, column] and not whole:
                    expected[row, column] = (255, 0, 0)
        assert np.array_equal(cell(sheet, *divmod(place, 10), (8, 8), 12), expected)
    assert np.array_equal(images, pixels(12, 1, 8, 8))


def test_a_target_is_called_by_its_class_or_by_its_two_largest_shares():
    classes = ["airplane", "bee", "cat"]
    assert target_name(torch.tensor(1), classes) == "bee"
    assert target_name(torch.tensor([0.0, 1.0, 0.0]), classes) == "bee"
    assert target_name(torch.tensor([0.3, 0.0, 0.7]), classes) == "cat 70% airpl"
    assert target_name(torch.tensor([0.7, 0.3, 0.0]), classes) == "airpl 70% bee"


def test_the_first_batch_names_the_shares_of_mixed_images():
    batch = Batch(pixels(2, 3, 8, 8), torch.tensor([[0.25, 0.75], [1.0, 0.0]]), None)
    sheet = batch_sheet(batch, ["ant", "bee"])
    assert np.array_equal(below(sheet, 0, 0, 96), written("bee 75% ant", 96))
    assert np.array_equal(below(sheet, 0, 1, 96), written("ant", 96))


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_class_can_be_shown(name: str):
    images = pixels(3, 3, 8, 8)
    plain = example_sheet(images, torch.zeros(3).long(), ["ant", "bee"])
    sheet = example_sheet(images, torch.zeros(3).long(), [name, name])
    assert sheet.shape == plain.shape
    for column in range(3):
        assert np.array_equal(cell(sheet, 0, column, (8, 8), 8), cell(plain, 0, column, (8, 8), 8))
    batch_sheet(Batch(images, torch.tensor([[0.4, 0.6]]).expand(3, -1), None), [name, "bee"])


@pytest.mark.parametrize(("step", "first_device"), [(0, True), (1, True), (0, False)])
def test_both_sheets_are_written_before_the_first_step_only(tmp_path: Path, step: int, first_device: bool):
    images, labels, classes = pixels(6, 3, 8, 8), torch.arange(6) % 2, ["ant", "bee"]
    augmented = Batch(255 - images, labels, None)
    trainer = SimpleNamespace(global_step=step, is_global_zero=first_device, loggers=[])
    module = SimpleNamespace(augment=lambda batch: Batch(255 - batch[0], batch[1], None))
    DataLogger(images, labels, classes, folder=tmp_path / "run").on_train_batch_start(
        trainer, module, (images, labels), 0
    )
    if step > 0 or not first_device:
        assert not list(tmp_path.iterdir())
        return
    shown = {file.name: decode(file.read_bytes()) for file in (tmp_path / "run").iterdir()}
    assert shown.keys() == {"data_examples.png", "data_first_batch.png"}
    assert np.array_equal(shown["data_examples.png"], example_sheet(images, labels, classes))
    assert np.array_equal(shown["data_first_batch.png"], batch_sheet(augmented, classes))
