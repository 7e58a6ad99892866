"""Parts of an image erased, or mixed with those of another: each image of a batch with a draw of its own."""

import math

import torch
from torch import Tensor
from torch.distributions import Beta


def erase(images: Tensor, *, share: float) -> Tensor:
    """Noise in a random rectangle of a share of the images: uint8 (B,C,H,W) → same.

    2 to 33 % of the area, height over width 0.3 to 3.3, as in torchvision; a longer side than the image's is cut to it.
    Zhong et al. 2020 (arXiv 1708.04896).
    """
    chosen = (torch.rand(len(images)) < share).nonzero().flatten().to(images.device)
    before, size = images.index_select(0, chosen), torch.tensor(images.shape[2:])
    area = uniform(0.02, 0.33, len(before)) * math.prod(images.shape[2:])
    ratio = uniform(math.log(0.3), math.log(3.3), len(before)).exp()
    sides = torch.stack([area * ratio, area / ratio], dim=1).sqrt().round()  # (M,2): height, width
    sides = torch.minimum(sides.clamp(min=1), size)
    corner = (torch.rand(len(before), 2) * (size - sides + 1)).floor()
    erased = images.clone()
    erased[chosen] = before ^ noise(before) * boxes(before, corner, sides)[:, None]  # noise, whatever was there before
    return erased


def mix(images: Tensor, targets: Tensor, *, mixup: float, cutmix: float) -> tuple[Tensor, Tensor]:
    """Mix each image uint8 (B,C,H,W) with another of the batch, and its target (B,K) by the same shares.

    MixUp fades the images by Beta(mixup, mixup): Zhang et al. 2018 (arXiv 1710.09412). CutMix pastes a rectangle whose
    area is 1 - Beta(cutmix, cutmix), less what the border cuts off: Yun et al. 2019 (arXiv 1905.04899). Where both are
    above 0, each image undergoes one of them, by a coin.
    """
    batch, size = len(images), torch.tensor(images.shape[2:])
    cut = torch.rand(batch) < (0.5 if mixup and cutmix else float(cutmix > 0))
    sides = ((1 - beta(cutmix or 1.0, batch)).sqrt()[:, None] * size).round()
    pasted = boxes(images, (torch.rand(batch, 2) * size - sides / 2).round(), sides)
    faded, cut = beta(mixup or 1.0, batch).to(images.device), cut.to(images.device)
    kept = torch.where(cut[:, None, None], (~pasted).float(), faded[:, None, None])  # (B,H,W): the image's own share
    other = torch.randperm(batch).to(images.device)
    mixed = (images * kept[:, None] + images[other] * (1 - kept[:, None])).round().byte()
    share = kept.mean(dim=(1, 2))[:, None]
    return mixed, targets * share + targets[other] * (1 - share)


def noise(images: Tensor) -> Tensor:
    """Random bytes as many as the images', four from each number drawn."""
    words = torch.randint(-(2**31), 2**31 - 1, (images.numel() // 4 + 1,), dtype=torch.int32, device=images.device)
    return words.view(torch.uint8)[: images.numel()].view_as(images)


def uniform(low: float, high: float, count: int) -> Tensor:
    """Numbers drawn on the CPU: (count,)."""
    return low + (high - low) * torch.rand(count)


def beta(alpha: float, count: int) -> Tensor:
    """Numbers between 0 and 1 from Beta(alpha, alpha), drawn on the CPU: (count,)."""
    concentration = torch.full((count,), float(alpha))
    return Beta(concentration, concentration, validate_args=False).sample()


def boxes(images: Tensor, corner: Tensor, sides: Tensor) -> Tensor:
    """True in a rectangle of each image, from the top left corner (B,2) and of sides (B,2) in pixels: bool (B,H,W)."""
    inside = []
    for axis, size in enumerate(images.shape[2:]):
        place = torch.arange(size)
        first = corner[:, axis, None]
        inside.append(((place >= first) & (place < first + sides[:, axis, None])).to(images.device))
    return inside[0][:, :, None] & inside[1][:, None, :]
