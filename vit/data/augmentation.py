"""What happens to a batch on the device: random changes while training, then normalisation."""

import torch
from torch import Tensor


def crop_and_flip(images: Tensor, *, crop: int, flip: bool) -> Tensor:
    """Shift each image by up to `crop` pixels, its border mirrored, and flip every second one: uint8 (B,C,H,W) → same.

    An own draw for each image, from torch's generator of the images' device. One indexing operation does both. Raises
    ValueError if `crop` is not smaller than the images.
    """
    batch, _, height, width = images.shape
    if crop >= min(height, width):
        raise ValueError(f"crop={crop} must be smaller than the images, {height}×{width}")
    device = images.device
    shift = torch.randint(-crop, crop + 1, (2, batch, 1), device=device)
    flipped = torch.rand(batch, 1, device=device) < (0.5 if flip else 0)
    rows = _mirror(torch.arange(height, device=device) + shift[0], height)  # (B,H): the row that each pixel comes from
    columns = _mirror(torch.arange(width, device=device) + shift[1], width)
    columns = torch.where(flipped, columns.flip(1), columns)
    image = torch.arange(batch, device=device)
    return images[image[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """uint8 (B,C,H,W) → float32, of mean 0 and deviation 1 over the training images in each channel."""
    shape = (1, -1, 1, 1)
    scale = 1 / (255 * torch.tensor(std, device=images.device).view(shape))
    offset = torch.tensor(mean, device=images.device).view(shape) * 255
    return (images - offset) * scale


def _mirror(index: Tensor, size: int) -> Tensor:
    """Indices before 0 or from `size` on, reflected at the border pixel."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)
