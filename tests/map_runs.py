"""Runs with attention maps, made without training."""

from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter

from tests.references import noise, randomize, tiny_vit
from vit.inspection import map_record
from vit.inspection.maps import method_matrices
from vit.model import Attention, ViT

Seen = tuple[Attention, torch.Tensor, list[bytes]]


def record(vit: ViT, titles: list[str], *, step: int = 0, classes: tuple[str, ...] = tuple("abcde")) -> Seen:
    """What a network attends to in noise: as seen, its relevance matrices, and packed."""
    height, width = vit.patch_embedding.image_shape[1:]
    images = noise(len(titles), 3, height, width)
    seen = vit.attend(images)
    relevance = method_matrices(seen)["relevance"]
    pixels = ((images + 3) / 6 * 255).clamp(0, 255).to(torch.uint8)
    packed = map_record.pack(seen, relevance, pixels, step=step, grid=vit.grid, titles=titles, classes=classes)
    return seen, relevance, packed


def write_run(folder: Path, vit: ViT, titles: list[str], steps: list[int]) -> dict[int, Seen]:
    """A run folder whose network has other random weights at every step."""
    found = {}
    with SummaryWriter(folder, filename_suffix=".maps") as writer:
        writer.add_scalar("train/loss", 1.0, 0)
        for step in steps:
            randomize(vit, seed=step)
            found[step] = record(vit, titles, step=step)
            map_record.write(writer, found[step][2], step)
    return found


def write_all(folder: Path) -> dict[int, Seen]:
    """A run `a` with class token and register, whose maps are returned, another `b`, and `none` without maps."""
    first = write_run(folder / "a", tiny_vit(pool="cls", registers=1), ["cat", "<b>dog</b>"], [0, 5, 20])
    second = tiny_vit(depth=3, heads=2, image_size=16)
    write_run(folder / "b", second, ["ウサギ", "dog", "ship"], [7])
    with SummaryWriter(folder / "none") as writer:
        writer.add_scalar("train/loss", 1.0, 0)
    return first
