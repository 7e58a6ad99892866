"""What happens to a batch on the device: random changes while training, then normalisation."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.data import trivial_augment
from vit.data.mixing import erase, mix


class Batch(NamedTuple):
    """What the network learns from."""

    images: Tensor  # uint8 (B,C,H,W)
    targets: Tensor  # int64 (B,), or where images were mixed the share of each class, float (B,K)
    masks: Tensor | None  # bool (B,H,W), true on the object; None if the source does not know it, or images were mixed


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a batch, an own draw for each image, from torch's generators of the CPU and the images' device.

    crop: pixels. erasing: share of the images. mixup, cutmix: alpha of the Beta distribution, 0 for none; with both,
    each image undergoes one of them, by a coin.
    """

    crop: int = 4
    flip: bool = True
    trivial_augment: bool = False
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __call__(
        self, images: Tensor, labels: Tensor, masks: Tensor | None = None, *, classes: int, strong: bool = True
    ) -> Batch:
        """Change images uint8 (B,C,H,W); unless `strong`, only crop and flip them.

        Masks bool (B,H,W) follow where pixels move; of what is erased they do not know.
        """
        rows, columns = draw_crop_and_flip(images, crop=self.crop, flip=self.flip)
        images = take(images, rows, columns)
        masks = None if masks is None else take(masks[:, None], rows, columns)[:, 0]
        if strong and self.trivial_augment:
            drawn = trivial_augment.draw(len(images))
            images = trivial_augment.trivial_augment(images, drawn)
            masks = None if masks is None else trivial_augment.follow(masks, drawn)
        if strong and self.erasing:
            images = erase(images, share=self.erasing)
        if strong and (self.mixup or self.cutmix):
            images, labels = mix(images, F.one_hot(labels, classes).float(), mixup=self.mixup, cutmix=self.cutmix)
            masks = None
        return Batch(images, labels, masks)


def draw_crop_and_flip(images: Tensor, *, crop: int, flip: bool) -> tuple[Tensor, Tensor]:
    """The row (B,H) and the column (B,W) that each pixel comes from.

    Shifted by up to `crop` pixels, the border mirrored, and every second image flipped. Raises ValueError if `crop` is
    not smaller than the images.
    """
    batch, _, height, width = images.shape
    if crop >= min(height, width):
        raise ValueError(f"crop={crop} must be smaller than the images, {height}×{width}")
    device = images.device
    shift = torch.randint(-crop, crop + 1, (2, batch, 1), device=device)
    flipped = torch.rand(batch, 1, device=device) < (0.5 if flip else 0)
    rows = _mirror(torch.arange(height, device=device) + shift[0], height)
    columns = _mirror(torch.arange(width, device=device) + shift[1], width)
    return rows, torch.where(flipped, columns.flip(1), columns)


def take(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The images (B,C,H,W) that consist of these rows (B,H) and columns (B,W) of each."""
    height, width = images.shape[2:]
    index = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    return images.flatten(2).gather(2, index[:, None].expand(-1, images.shape[1], -1)).unflatten(2, (height, width))


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """uint8 (B,C,H,W) → float32, of mean 0 and deviation 1 over the training images in each channel."""
    shape = (1, -1, 1, 1)
    scale = 1 / (255 * torch.tensor(std, device=images.device).view(shape))
    offset = torch.tensor(mean, device=images.device).view(shape) * 255
    return images.to(torch.float32, copy=True).sub_(offset).mul_(scale)


def _mirror(index: Tensor, size: int) -> Tensor:
    """Indices before 0 or from `size` on, reflected at the border pixel."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)
