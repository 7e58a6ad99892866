"""Numbers that say what heads do: pure functions of exact maps, means over the images and the querying patches.

Maps are (B,h,T,T) with queries in rows; the last rows · columns of the T tokens are patches.
"""

import itertools
import math

import torch
from torch import Tensor


def attention_distance(maps: Tensor, *, grid: tuple[int, int], patch_size: int) -> Tensor:
    """Mean distance in pixels between a patch and where it attends to, by head: (h,).

    Between patches only, rows renormalised, the patch itself included. Dosovitskiy et al. 2021, figure 7. Even
    attention on 8×8 patches of 4 gives 16.546.
    """
    count = grid[0] * grid[1]
    between = maps[..., -count:, -count:]
    between = between / between.sum(dim=-1, keepdim=True).clamp(min=1e-12)
    rows, columns = torch.meshgrid(*(torch.arange(side, device=maps.device) for side in grid), indexing="ij")
    place = torch.stack([rows.flatten(), columns.flatten()], dim=1).float() * patch_size
    return (between * torch.cdist(place, place)).sum(dim=-1).mean(dim=(0, 2))


def attention_entropy(maps: Tensor) -> Tensor:
    """Entropy of the rows over its maximum, ln T, by head: (h,). 0 is one token, 1 is all evenly."""
    return _entropy(maps).mean(dim=(0, 2)) / math.log(maps.shape[-1])


def attention_shares(maps: Tensor, *, prefix_tokens: int) -> tuple[Tensor, Tensor]:
    """The share that patches give to themselves and to prefix tokens, by head: (h,), (h,)."""
    patches = maps[..., prefix_tokens:, :]
    itself = patches[..., prefix_tokens:].diagonal(dim1=-2, dim2=-1).mean(dim=(0, 2))
    return itself, patches[..., :prefix_tokens].sum(dim=-1).mean(dim=(0, 2))


def head_similarity(maps: Tensor) -> Tensor:
    """How alike the heads' rows are: (). 1 is all equal, 0 is no overlap.

    The mean of 1 - Jensen–Shannon divergence / ln 2 over all pairs of heads; 1 for a single head.
    """
    entropy = _entropy(maps).mean(dim=(0, 2))  # (h,)
    pairs = list(itertools.combinations(range(maps.shape[1]), 2))
    alike = [
        1 - (_entropy((maps[:, one] + maps[:, other]) / 2).mean() - (entropy[one] + entropy[other]) / 2) / math.log(2)
        for one, other in pairs
    ]
    return torch.stack(alike).mean() if alike else torch.ones((), device=maps.device)


def largest_norm(tokens: Tensor) -> Tensor:
    """The largest Euclidean norm of a token, mean over the images: (B,T,D) → (). Darcet et al. 2023, section 2."""
    return tokens.norm(dim=2).amax(dim=1).mean()


def share_on_object(maps: Tensor, masks: Tensor) -> Tensor:
    """The share of each map (B,rows,columns) that lies on the object, masks bool (B,H,W): (B,).

    By chance it is the object's share of the area.
    """
    cover = patch_cover(masks, maps.shape[1:])
    return (maps * cover).sum(dim=(1, 2)) / maps.sum(dim=(1, 2)).clamp(min=1e-12)


def points_at_object(maps: Tensor, masks: Tensor) -> Tensor:
    """Whether the middle of the brightest patch lies on the object: (B,rows,columns), bool (B,H,W) → bool (B,).

    The pointing game of Zhang et al. 2016 (arXiv 1608.00507), without their tolerance.
    """
    rows, columns = maps.shape[1:]
    brightest = maps.flatten(1).argmax(dim=1)
    height, width = masks.shape[1] // rows, masks.shape[2] // columns
    y = brightest // columns * height + height // 2
    x = brightest % columns * width + width // 2
    return masks[torch.arange(len(masks), device=masks.device), y, x]


def patch_cover(masks: Tensor, grid: tuple[int, int] | torch.Size) -> Tensor:
    """The share of each patch that a mask covers: bool (B,H,W) → (B,rows,columns)."""
    rows, columns = grid
    return masks.float().unflatten(2, (columns, -1)).unflatten(1, (rows, -1)).mean(dim=(2, 4))


def _entropy(rows: Tensor) -> Tensor:
    """In nats: (…,T) → (…)."""
    return -torch.special.xlogy(rows, rows).sum(dim=-1)
