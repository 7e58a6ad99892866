"""Whatever the images, their names or the state of the network: the dashboard never costs the training."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from tests.running import TINY, only_run
from vit.inspection import attention_logger
from vit.inspection.attention_logger import images_that_fit, thumbnails
from vit.inspection.figures import filter_figure, position_figure
from vit.inspection.pictures import printable
from vit.model import ViT

ONE_STEP = ["epochs=1", "batch_size=48"]


def trained(train: Callable, capsys: pytest.CaptureFixture, words: list[str]) -> str:
    """What a run printed that reached its end."""
    assert train(words) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


@pytest.mark.parametrize("size", ["[16,4]", "[4,16]"])
def test_images_that_are_not_square_reach_the_projector(
    size: str, words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    out = trained(train, capsys, [*words, *ONE_STEP, f"image_size={size}", "patch_size=2"])
    assert "could not be drawn" not in out
    with Image.open(only_run(tmp_path / "runs") / "00001" / "features" / "sprite.png") as sprite:
        assert sprite.size == (4 * 32, 4 * 32)  # 16 validation images


def test_thumbnails_are_whole_and_in_place() -> None:
    images = torch.zeros(2, 1, 64, 32, dtype=torch.uint8)
    images[0, 0, :32] = 255
    small = thumbnails(images)
    assert small.shape == (2, 3, 32, 32)
    assert (small[0, :, :16, :16] == 1).all()
    assert (small[0, :, 16:, :16] == 0).all()
    assert (small[:, :, :, 16:] == 1).all()


@pytest.mark.parametrize("names", [("$_$ a", "$x^$"), ("caf\udce9", "two\nlines"), ("<b>x<", "ウサギ" * 20)])
def test_classes_may_have_any_name(
    names: tuple[str, str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    for part in ("train", "test"):
        for grey, name in enumerate(names, start=1):
            folder = tmp_path / "images" / part / name
            os.makedirs(os.fsencode(folder))
            for i in range(24):
                Image.new("RGB", (8, 8), (9 * i, 90 * grey, 0)).save(os.fsdecode(folder / f"{i}.png"))
    places = [f"data.root={tmp_path / 'images'}", f"runs={tmp_path / 'runs'}"]
    out = trained(train, capsys, ["data=folder", *places, *TINY, *ONE_STEP])
    assert "could not be drawn" not in out
    lines = (only_run(tmp_path / "runs") / "00001" / "features" / "metadata.tsv").read_text().splitlines()
    assert len(lines) == 16
    assert set(lines) == {printable(name) for name in names}


def test_figures_of_a_network_that_has_diverged_are_drawn() -> None:
    broken = torch.full((16, 48), float("nan"))
    assert filter_figure(broken, channels=3, patch_size=4).dtype == np.uint8
    assert position_figure(broken, grid=(4, 4)).dtype == np.uint8
    assert position_figure(torch.randn(512, 8), grid=(512, 1)).shape[0] < 2000


def test_a_picture_that_fails_costs_one_line(
    words: list[str], train: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ValueError("a strange\nimage")

    monkeypatch.setattr(attention_logger, "matrix_figure", failing)
    out = trained(train, capsys, [*words, *ONE_STEP])
    assert "attention at step 1 could not be drawn (ValueError: a strange image)" in out
    assert "test accuracy" in out


def test_maps_too_large_for_the_memory_are_not_made(
    words: list[str], train: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with torch.device("meta"):
        assert images_that_fit(ViT()) > 100
        assert images_that_fit(ViT(image_size=224, patch_size=16, depth=12, heads=12)) >= 10
        assert 0 < images_that_fit(ViT(image_size=128, patch_size=4)) < 10
        assert images_that_fit(ViT(image_size=256, patch_size=4)) == 0
    monkeypatch.setattr(attention_logger, "MEMORY", 1000)
    assert "attention is not drawn" in trained(train, capsys, [*words, *ONE_STEP])


def test_thumbnails_of_large_images_are_small() -> None:
    images = torch.full((3, 3, 512, 256), 51, dtype=torch.uint8)
    assert_close(thumbnails(images)[:, :, :, :16], torch.full((3, 3, 32, 16), 0.2))
