"""TrivialAugment: one random operation of random strength for each image of a batch.

Müller & Hutter 2021 (arXiv 2103.10158), the wide space of its table 3. torchvision's own draws once for a whole batch;
image by image it takes six times as long as this, and moves no masks. Equal to its operations, by test, but for one
grey level in contrast, color and sharpness, whose sums are in another order here, and for exact ties of two pixels.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

LEVELS = 31  # strengths, evenly spaced

Change = Callable[[Tensor, Tensor], Tensor]  # images uint8 (M,C,H,W), their magnitudes (M,) → images


class Operation(NamedTuple):
    change: Change
    weakest: float
    strongest: float
    signed: bool  # half of the magnitudes are negative
    geometric: bool  # moves pixels: a mask of the image must follow


def warp(images: Tensor, matrix: Tensor, *, about_middle: bool = True) -> Tensor:
    """Take each pixel from where the matrices (M,2,3), in pixels, say; black where that is outside."""
    height, width = images.shape[2:]
    matrix = matrix.to(images.device)
    rows, columns = torch.meshgrid(
        *(torch.arange(side, device=images.device) for side in (height, width)), indexing="ij"
    )
    middle = torch.tensor([(width - 1) / 2, (height - 1) / 2] if about_middle else [-0.5, -0.5], device=images.device)
    place = torch.stack([columns - middle[0], rows - middle[1], torch.ones_like(rows)]).flatten(1)  # (3,HW)
    source = matrix @ place + middle[:, None]  # (M,2,HW)
    column, row = source.round().long().unbind(1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    taken = images.flatten(2).gather(2, index[:, None].expand(-1, images.shape[1], -1))
    return (taken * inside[:, None]).view_as(images)


def matrices(
    *,
    xx: Tensor | float = 1.0,
    xy: Tensor | float = 0.0,
    dx: Tensor | float = 0.0,
    yx: Tensor | float = 0.0,
    yy: Tensor | float = 1.0,
    dy: Tensor | float = 0.0,
) -> Tensor:
    """(M,2,3) of entries (M,) or the same for all: x ← xx·x + xy·y + dx, y ← yx·x + yy·y + dy."""
    entries = torch.broadcast_tensors(*(torch.as_tensor(entry) for entry in (xx, xy, dx, yx, yy, dy)))
    return torch.stack(entries, dim=1).view(-1, 2, 3)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Counter-clockwise."""
    sin, cos = degrees.deg2rad().sin(), degrees.deg2rad().cos()
    return warp(images, matrices(xx=cos, xy=-sin, yx=sin, yy=cos))


def blend(images: Tensor, other: Tensor | float, magnitude: Tensor) -> Tensor:
    """From the other image towards this one, and as far beyond as the magnitude is positive."""
    factor = (1 + magnitude.to(images.device)).view(-1, 1, 1, 1)
    return (images * factor + other * (1 - factor)).clamp(0, 255).byte()


def grey(images: Tensor) -> Tensor:
    """float (M,1,H,W), the weights of ITU-R 601-2."""
    return images.float() if images.shape[1] == 1 else TF.rgb_to_grayscale(images).float()


def blurred(images: Tensor) -> Tensor:
    """Smoothed by 3 × 3 pixels, the border left as it is."""
    channels = images.shape[1]
    if min(images.shape[2:]) < 3:
        return images.float()
    kernel = torch.full((channels, 1, 3, 3), 1 / 13, device=images.device)
    kernel[:, :, 1, 1] = 5 / 13
    smooth = images.float()
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(images.float(), kernel, groups=channels).round()
    return smooth


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    kept = 256 - 2 ** (8 - bits.round().long())
    return images & kept.byte().view(-1, 1, 1, 1).to(images.device)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(images >= threshold.view(-1, 1, 1, 1).to(images.device), 255 - images, images)


OPERATIONS = {
    "identity": Operation(lambda images, _: images, 0, 0, False, False),
    "shear_x": Operation(lambda i, m: warp(i, matrices(xy=m), about_middle=False), 0, 0.99, True, True),
    "shear_y": Operation(lambda i, m: warp(i, matrices(yx=m), about_middle=False), 0, 0.99, True, True),
    "translate_x": Operation(lambda i, m: warp(i, matrices(dx=-m.trunc())), 0, 32, True, True),  # pixels
    "translate_y": Operation(lambda i, m: warp(i, matrices(dy=-m.trunc())), 0, 32, True, True),
    "rotate": Operation(rotate, 0, 135, True, True),  # degrees
    "brightness": Operation(lambda i, m: blend(i, 0.0, m), 0, 0.99, True, False),
    "color": Operation(lambda i, m: blend(i, grey(i), m) if i.shape[1] == 3 else i, 0, 0.99, True, False),
    "contrast": Operation(lambda i, m: blend(i, grey(i).mean((1, 2, 3), keepdim=True), m), 0, 0.99, True, False),
    "sharpness": Operation(lambda i, m: blend(i, blurred(i), m), 0, 0.99, True, False),
    "posterize": Operation(posterize, 8, 2, False, False),  # bits
    "solarize": Operation(solarize, 255, 0, False, False),
    "autocontrast": Operation(lambda i, _: TF.autocontrast(i), 0, 0, False, False),
    "equalize": Operation(lambda i, _: TF.equalize(i), 0, 0, False, False),
}


class Draw(NamedTuple):
    """What happens to each image of a batch. On the CPU, so that a GPU is not waited for."""

    operation: Tensor  # (B,): its place in OPERATIONS
    magnitude: Tensor  # (B,)


def draw(batch: int) -> Draw:
    """Operation and magnitude of each image, from torch's generator of the CPU."""
    operation = torch.randint(len(OPERATIONS), (batch,))
    strength = torch.randint(LEVELS, (batch,)) / (LEVELS - 1)
    sign = torch.randint(2, (batch,)) * 2.0 - 1
    table = torch.tensor([(op.weakest, op.strongest, op.signed) for op in OPERATIONS.values()])
    weakest, strongest, signed = table[operation].unbind(1)
    return Draw(operation, (weakest + strength * (strongest - weakest)) * torch.where(signed > 0, sign, 1.0))


def trivial_augment(images: Tensor, drawn: Draw) -> Tensor:
    """uint8 (B,C,H,W), grey or RGB → same."""
    return _apply(images, drawn, [True] * len(OPERATIONS))


def follow(masks: Tensor, drawn: Draw) -> Tensor:
    """Masks bool (B,H,W) of these images, moved as their pixels were."""
    return _apply(masks[:, None].byte(), drawn, [operation.geometric for operation in OPERATIONS.values()])[:, 0].bool()


def _apply(images: Tensor, drawn: Draw, wanted: list[bool]) -> Tensor:
    changed = images.clone()
    for number, operation in enumerate(OPERATIONS.values()):
        chosen = (drawn.operation == number).nonzero().flatten()
        if wanted[number] and len(chosen):
            these = chosen.to(images.device)
            changed[these] = operation.change(images[these], drawn.magnitude[chosen])
    return changed
