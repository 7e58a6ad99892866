"""Can a map be trusted? Patches are covered in its order, and the probability of the true class must follow."""

from collections.abc import Callable

import torch
from torch import Tensor

Classify = Callable[[Tensor], Tensor]  # uint8 (N,C,H,W) → logits (N,K)
STEPS = 16


def cover(images: Tensor, patches: Tensor, grey: Tensor) -> Tensor:
    """Paint patches, true in bool (N,rows,columns), of images uint8 (N,C,H,W) in a colour uint8 (C,)."""
    height, width = (side // count for side, count in zip(images.shape[2:], patches.shape[1:], strict=True))
    pixels = patches.repeat_interleave(height, 1).repeat_interleave(width, 2)
    return torch.where(pixels[:, None], grey[:, None, None], images)


def deletion_and_insertion(
    classify: Classify, images: Tensor, labels: Tensor, maps: Tensor, *, grey: Tensor, steps: int = STEPS
) -> tuple[Tensor, Tensor]:
    """The probability of the true class after each step, from 0 to all patches: 2 × (N,steps+1).

    Patches are covered, or uncovered on a grey image, from the largest value of the map (N,rows,columns) to the
    smallest. A good map makes the first curve fall early and the second rise early: a small and a large area. Petsiuk,
    Das, Saenko 2018 (arXiv 1806.07421). With fewer patches than steps there is a step for each patch.
    """
    rank = maps.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(1).view_as(maps)
    patches = maps[0].numel()
    cuts = [round(patches * step / min(steps, patches)) for step in range(min(steps, patches) + 1)]

    def probability(covered: Tensor) -> Tensor:
        return classify(cover(images, covered, grey)).double().softmax(1).gather(1, labels[:, None])

    insertion = torch.cat([probability(rank >= cut) for cut in cuts], 1)
    inner = [probability(rank < cut) for cut in cuts[1:-1]]
    return torch.cat([insertion[:, -1:], *inner, insertion[:, :1]], 1), insertion


def area(curves: Tensor) -> Tensor:
    """Under each curve (N,steps+1) over 0 to 1: (N,)."""
    return torch.trapezoid(curves, dx=1 / (curves.shape[1] - 1), dim=1)


def baseline_maps(images: Tensor, *, grid: tuple[int, int], seed: int = 0) -> dict[str, Tensor]:
    """What needs no network: chance, the centre, the deviation of a patch's pixels; (N,rows,columns) each."""
    rows, columns = grid
    y, x = (torch.arange(count) - (count - 1) / 2 for count in grid)
    centre = -torch.hypot(y[:, None] / rows, x / columns)
    patches = images.float().unflatten(3, (columns, -1)).unflatten(2, (rows, -1))
    generator = torch.Generator().manual_seed(seed)
    return {
        "random": torch.rand(len(images), rows, columns, generator=generator),
        "centre": centre.expand(len(images), -1, -1),
        "local contrast": patches.std(dim=(3, 5), correction=0).mean(1),
    }
