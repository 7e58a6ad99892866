"""What a picture of attention shows is what was computed, in the right place and readable."""

import io

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

from tests.references import noise, tiny_vit
from vit.inspection.attention_logger import picture_steps
from vit.inspection.maps import readout_maps
from vit.inspection.pictures import GAP, HEAT, TEXT, attention_sheet, headed, method_sheet, overlay, png, to_picture

GRID = (3, 4)
INFERNO = np.array(matplotlib.colormaps["inferno"].colors) * 255  # float (256,3)
READOUTS = {
    "mean": torch.full((1, 12), 1 / 12),
    "cls": torch.eye(13)[:1],
    "sequence": torch.linspace(0, 2 / 12, 12)[None],
}
EACH_READOUT = pytest.mark.parametrize("readout", READOUTS.values(), ids=READOUTS)


def pixels(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def decode(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def cell(sheet: np.ndarray, row: int, column: int, size: tuple[int, int], scale: int) -> np.ndarray:
    """The pixels (H,W,3) that stand in a cell; each must fill a square of its own."""
    height, width = size[0] * scale, size[1] * scale
    top, left = TEXT + GAP + row * (height + TEXT + GAP), GAP + column * (width + GAP)
    grown = sheet[top : top + height, left : left + width]
    small = grown[::scale, ::scale]
    assert np.array_equal(small.repeat(scale, axis=0).repeat(scale, axis=1), grown)
    return small


@EACH_READOUT
def test_readout_map_of_attention_to_one_patch_is_that_patch(readout: Tensor):
    tokens = readout.shape[1]
    for row, column in [(0, 0), (1, 2), (2, 3)]:
        weights = torch.zeros(1, 2, tokens, tokens)
        weights[:, 0, :, tokens - 12 + 4 * row + column] = 1
        weights[:, 1] = torch.eye(tokens)
        maps = readout_maps(weights, readout, grid=GRID)
        expected = torch.zeros(GRID)
        expected[row, column] = 1
        assert maps.shape == (1, 2, *GRID)
        assert_close(maps[0, 0], expected)
        assert_close(maps[0, 1], readout[0, -12:].view(GRID))  # each token to itself: the readout alone is left


@EACH_READOUT
def test_readout_map_of_even_attention_is_even(readout: Tensor):
    tokens = readout.shape[1]
    weights = torch.full((1, 2, tokens, tokens), 1 / tokens)
    assert_close(readout_maps(weights, readout, grid=GRID), torch.full((1, 2, *GRID), 1 / tokens))


def test_readout_map_leaves_out_what_prefix_tokens_received():
    weights = torch.zeros(1, 1, 13, 13)
    weights[..., 0] = 0.75
    weights[..., 5] = 0.25
    maps = readout_maps(weights, READOUTS["cls"], grid=GRID)
    assert maps.sum() == 0.25
    assert maps[0, 0, 1, 0] == 0.25


@pytest.mark.parametrize("pool", ["mean", "cls", "sequence"])
def test_readout_maps_of_a_network(pool: str):
    vit = tiny_vit(pool=pool, image_size=(6, 8))
    seen = vit.attend(noise(2, 3, 6, 8))
    maps = readout_maps(seen.maps[1], seen.readout, grid=vit.grid)
    for image in range(2):
        for head in range(4):
            weighted = [r * row for r, row in zip(seen.readout[image], seen.maps[1][image, head], strict=True)]
            assert_close(maps[image, head].flatten(), torch.stack(weighted).sum(0)[-12:])


@pytest.mark.parametrize("grid", [(2, 2), (4, 2), (8, 12)])
def test_B6_overlay_lights_one_patch_and_nothing_else(grid: tuple[int, int]):
    picture = to_picture(pixels(3, 8, 12))
    grey = picture.mean(axis=2, keepdims=True)
    heat = np.zeros(grid, np.float32)
    heat[1, 0] = 1
    lit = np.zeros((8, 12, 1), bool)
    lit[8 // grid[0] : 2 * 8 // grid[0], : 12 // grid[1]] = True
    expected = np.where(lit, INFERNO[255], INFERNO[0]) * HEAT + grey * (1 - HEAT)
    assert np.abs(overlay(picture, heat) - expected).max() <= 1


def test_overlay_is_brighter_where_there_is_more_attention():
    heat = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
    light = overlay(np.zeros((4, 4, 3), np.uint8), heat).sum(axis=2).flatten()
    assert (np.diff(light.astype(int)) > 0).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("size", "scale"), [((8, 8), 8), ((16, 32), 2), ((64, 64), 1)])
def test_B6_sheet_shows_the_raw_image_and_the_scaled_maps(channels: int, size: tuple[int, int], scale: int):
    images = pixels(2, channels, *size)
    images[1] //= 4  # a dark one stays dark
    maps = torch.full((2, 3, 4, 4), 0.001)  # so faint that unscaled it would be black
    maps[0, 1, 2, 3] = 0.01
    sheet = decode(png(attention_sheet(images, maps, ["cat", "dog"])))
    for row in range(2):
        picture = np.broadcast_to(images[row].permute(1, 2, 0).numpy(), (*size, 3))
        assert np.array_equal(cell(sheet, row, 0, size, scale), picture)
        grey = picture.mean(axis=2, keepdims=True) * (1 - HEAT)
        for head in range(3):
            heat = np.full((*size, 1), 26 if (row, head) == (0, 1) else 255)  # 0.1 of 255, or an even map at its peak
            if (row, head) == (0, 1):
                heat[size[0] // 2 : size[0] * 3 // 4, size[1] * 3 // 4 :] = 255
            expected = grey + HEAT * INFERNO[heat[:, :, 0]]
            assert np.abs(cell(sheet, row, head + 1, size, scale) - expected).max() <= 1


@pytest.mark.parametrize(("size", "shown"), [((80, 80), (64, 64)), ((224, 448), (32, 64))])
def test_large_images_are_shrunk_to_a_cell(size: tuple[int, int], shown: tuple[int, int]):
    images = torch.full((2, 3, *size), 200, dtype=torch.uint8)
    sheet = attention_sheet(images, torch.ones(2, 3, 4, 4), ["cat", "dog"])
    assert sheet.shape == (TEXT + GAP + 2 * (shown[0] + TEXT + GAP), GAP + 4 * (shown[1] + GAP), 3)
    assert (cell(sheet, 1, 0, shown, 1) == 200).all()


def test_sheet_says_which_head_and_how_much():
    images, maps = pixels(1, 3, 8, 8), torch.full((1, 2, 4, 4), 0.125)
    sheet = attention_sheet(images, maps, ["cat"])
    for changed in (attention_sheet(images, maps, ["dog"]), attention_sheet(images, maps / 2, ["cat"])):
        assert changed.shape == sheet.shape
        assert not np.array_equal(changed, sheet)
        different = (changed != sheet).any(axis=(1, 2)).nonzero()[0]
        assert different.min() >= sheet.shape[0] - TEXT - GAP  # the line below the pictures
    assert (sheet[:TEXT, GAP + 64 + GAP :] < 128).any()  # "head 1" above
    assert (sheet[:TEXT, : GAP + 64] < 128).any()  # "true class"


@pytest.mark.parametrize("title", ["", "ウサギ", "Übergröße", "a very long name of a class indeed", "two\nlines"])
def test_sheet_takes_any_name_of_a_class(title: str):
    assert attention_sheet(pixels(1, 3, 8, 8), torch.ones(1, 2, 4, 4), [title]).dtype == np.uint8


def test_sheet_of_a_map_without_attention_is_no_division_by_zero():
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    sheet = attention_sheet(images, torch.zeros(1, 2, 4, 4), ["cat"])
    assert cell(sheet, 0, 1, (8, 8), 8).max() <= 3  # the darkest colour of inferno


@pytest.mark.parametrize("heads", [1, 2, 12])
@pytest.mark.parametrize("rows", [1, 10])
def test_sheet_has_a_cell_for_each_image_and_head(rows: int, heads: int):
    sheet = attention_sheet(pixels(rows, 3, 32, 32), torch.rand(rows, heads, 8, 8), ["cat"] * rows)
    cells_high, cells_wide = rows * (64 + TEXT + GAP), (heads + 1) * (64 + GAP)
    assert sheet.shape == (TEXT + GAP + cells_high, GAP + cells_wide, 3)


@pytest.mark.parametrize("width", [100, 800])
def test_a_title_stands_above_and_the_colours_of_the_scale(width: int):
    picture = pixels(50, width, 3).numpy()
    title = "layer 1 of 6, step 1,408: what the pooled vector attends to"
    plain, scaled = (headed(picture, title, scale=scale) for scale in (False, True))
    for whole in (plain, scaled):
        assert np.array_equal(whole[-50:], picture)
        lines = (whole[:-50] < 128).any(axis=(1, 2))
        assert np.count_nonzero(np.diff(lines.astype(int)) == 1) >= (3 if width == 100 else 1)
    assert not np.array_equal(plain[:-50], headed(picture, title.replace("1,408", "0"))[:-50])
    colours = scaled[plain.shape[0] - 50 + 2, 12 : min(98, width)]
    assert np.abs(colours - INFERNO[::3][: len(colours)]).max() <= 1


def test_sheet_of_methods_says_what_is_true_and_what_was_found():
    images, maps = pixels(2, 3, 32, 32), {"rollout": torch.rand(2, 8, 8), "relevance": torch.rand(2, 8, 8)}
    titles = ["true: cat\nfound: dog 99 %", "true: dog\nfound: dog 51 %"]
    sheet = method_sheet(images, maps, titles)
    assert sheet.shape == (TEXT + GAP + 2 * (128 + 2 * TEXT + GAP), GAP + 3 * (128 + GAP), 3)
    below = sheet[TEXT + GAP + 128 : TEXT + GAP + 128 + 2 * TEXT]
    assert all((below[line : line + TEXT, : GAP + 128] < 128).any() for line in (0, TEXT))
    assert (below[:TEXT, GAP + 132 : GAP + 260] < 128).any()  # "max 0.99"


def test_png_returns_every_pixel():
    picture = pixels(7, 9, 3).numpy()
    assert np.array_equal(decode(png(picture)), picture)


@pytest.mark.parametrize("total", [1, 2, 3, 10, 100, 1560, 39_000, 10**7])
def test_pictures_go_from_the_first_step_to_the_last(total: int):
    steps = sorted(picture_steps(total))
    assert steps[0] == 0
    assert steps[-1] == total
    assert len(steps) == len(set(steps)) <= 10
    assert len(steps) >= min(total + 1, 4)
    assert all(isinstance(step, int) for step in steps)
