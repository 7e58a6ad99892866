"""Parts of an image erased, or mixed with those of another: each image of a batch with a draw of its own."""

import math

import torch
from torch import Tensor


def erase(images: Tensor, *, share: float) -> Tensor:
    """Noise in a random rectangle of a share of the images: uint8 (B,C,H,W) → same.

    2 to 33 % of the area, height over width 0.3 to 3.3 where that fits in. Zhong et al. 2020 (arXiv 1708.04896).
    """
    area = uniform(0.02, 0.33, images) * images[0, 0].numel()
    ratio = uniform(math.log(0.3), math.log(3.3), images).exp()
    height, width = (
        side.round().clamp(1, size)
        for side, size in zip(((area * ratio).sqrt(), (area / ratio).sqrt()), images.shape[2:], strict=True)
    )
    top, left = (
        (uniform(0, 1, images) * (size - side + 1)).floor()
        for side, size in zip((height, width), images.shape[2:], strict=True)
    )
    box = boxes(images, top=top, left=left, height=height, width=width)
    chosen = torch.rand(len(images), 1, 1, device=images.device) < share
    return torch.where((box & chosen)[:, None], torch.randint_like(images, 256), images)


def mixup(images: Tensor, targets: Tensor, *, alpha: float) -> tuple[Tensor, Tensor]:
    """Each image faded into another of the batch, its target (B,K) likewise. Zhang et al. 2018 (arXiv 1710.09412)."""
    share, other = beta(alpha, images), torch.randperm(len(images), device=images.device)
    kept = share[:, None, None, None]
    mixed = (images * kept + images[other] * (1 - kept)).round().byte()
    return mixed, targets * share[:, None] + targets[other] * (1 - share[:, None])


def cutmix(images: Tensor, targets: Tensor, *, alpha: float) -> tuple[Tensor, Tensor]:
    """In each image a rectangle from another of the batch, in its target (B,K) a share as large.

    The rectangle may be cut off by the border; what counts is what is left. Yun et al. 2019 (arXiv 1905.04899).
    """
    cut = (1 - beta(alpha, images)).sqrt()
    height, width = ((cut * size).round() for size in images.shape[2:])
    top, left = (
        (uniform(0, size, images) - side / 2).round()
        for side, size in zip((height, width), images.shape[2:], strict=True)
    )
    box = boxes(images, top=top, left=left, height=height, width=width)
    other = torch.randperm(len(images), device=images.device)
    share = 1 - box.float().mean((1, 2))[:, None]
    mixed = torch.where(box[:, None], images[other], images)
    return mixed, targets * share + targets[other] * (1 - share)


def uniform(low: float, high: float, images: Tensor) -> Tensor:
    """A number for each image: (B,)."""
    return low + (high - low) * torch.rand(len(images), device=images.device)


def beta(alpha: float, images: Tensor) -> Tensor:
    """A number between 0 and 1 for each image from Beta(alpha, alpha): (B,)."""
    concentration = torch.full((len(images),), alpha, device=images.device)
    return torch.distributions.Beta(concentration, concentration).sample()


def boxes(images: Tensor, *, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """True in one rectangle of each image, given in pixels (B,): bool (B,H,W)."""
    rows, columns = (torch.arange(size, device=images.device) for size in images.shape[2:])
    in_rows = (rows >= top[:, None]) & (rows < (top + height)[:, None])
    in_columns = (columns >= left[:, None]) & (columns < (left + width)[:, None])
    return in_rows[:, :, None] & in_columns[:, None, :]
