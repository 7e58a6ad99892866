"""TrivialAugment: one random operation of random strength for each image of a batch.

Müller & Hutter 2021 (arXiv 2103.10158), the wide space of its table 3. torchvision's own draws once for a whole batch,
is several times as slow image by image (docs/measurements.md), and moves no masks. Equal to its operations, by test,
but for one grey level in contrast, color and sharpness, whose sums are in another order here, and for exact ties of two
pixels.
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
    change: Change | None  # of colours
    weakest: float
    strongest: float
    signed: bool  # half of the magnitudes are negative
    geometric: bool = False  # moves pixels, as `movements` says: a mask of the image must follow


class Draw(NamedTuple):
    """What happens to each image of a batch. On the CPU, so that a GPU is not waited for."""

    operation: Tensor  # (B,): its place in OPERATIONS
    magnitude: Tensor  # (B,)


def movements(drawn: Draw, height: int, width: int) -> Tensor:
    """Where each pixel of an image comes from, counted from the middle: a matrix (B,2,3) on (column, row, 1).

    Shears are about the upper left corner.
    """

    def of(name: str, magnitude: Tensor) -> Tensor:
        return torch.where(drawn.operation == list(OPERATIONS).index(name), magnitude, 0.0)

    shear_x, shear_y = (of(name, drawn.magnitude) for name in ("shear_x", "shear_y"))
    right, down = (of(name, drawn.magnitude.trunc()) for name in ("translate_x", "translate_y"))
    angle = of("rotate", drawn.magnitude).deg2rad()  # counter-clockwise
    sin, cos = angle.sin(), angle.cos()
    column = torch.stack([cos, shear_x - sin, shear_x * height / 2 - right], dim=1)
    row = torch.stack([shear_y + sin, cos, shear_y * width / 2 - down], dim=1)
    return torch.stack([column, row], dim=1)


def move(images: Tensor, drawn: Draw) -> Tensor:
    """Images uint8 (B,C,H,W) with every pixel from where `movements` says; black where that is outside."""
    height, width = images.shape[2:]
    geometric = torch.tensor([operation.geometric for operation in OPERATIONS.values()])
    moved = geometric[drawn.operation].nonzero().flatten()
    matrix = movements(Draw(drawn.operation[moved], drawn.magnitude[moved]), height, width).to(images.device)
    moved = moved.to(images.device)
    rows, columns = (torch.arange(side, device=images.device) - (side - 1) / 2 for side in (height, width))
    across, down = torch.meshgrid(columns, rows, indexing="xy")
    place = torch.stack([across, down, torch.ones_like(across)]).flatten(1)  # (3,HW)
    column, row = (matrix @ place).unbind(1)  # each (M,HW)
    column, row = (column + (width - 1) / 2).round().long(), (row + (height - 1) / 2).round().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    taken = images[moved].flatten(2).gather(2, index[:, None].expand(-1, images.shape[1], -1))
    result = images.clone()
    result[moved] = (taken * inside[:, None]).unflatten(2, (height, width))
    return result


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
    "identity": Operation(None, 0, 0, False),
    "shear_x": Operation(None, 0, 0.99, True, geometric=True),
    "shear_y": Operation(None, 0, 0.99, True, geometric=True),
    "translate_x": Operation(None, 0, 32, True, geometric=True),  # pixels
    "translate_y": Operation(None, 0, 32, True, geometric=True),
    "rotate": Operation(None, 0, 135, True, geometric=True),  # degrees
    "brightness": Operation(lambda i, m: blend(i, 0.0, m), 0, 0.99, True),
    "color": Operation(lambda i, m: blend(i, grey(i), m) if i.shape[1] == 3 else i, 0, 0.99, True),
    "contrast": Operation(lambda i, m: blend(i, grey(i).mean((1, 2, 3), keepdim=True), m), 0, 0.99, True),
    "sharpness": Operation(lambda i, m: blend(i, blurred(i), m), 0, 0.99, True),
    "posterize": Operation(posterize, 8, 2, False),  # bits
    "solarize": Operation(solarize, 255, 0, False),
    "autocontrast": Operation(lambda i, _: TF.autocontrast(i), 0, 0, False),
    "equalize": Operation(lambda i, _: TF.equalize(i), 0, 0, False),
}


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
    changed = move(images, drawn)
    for number, operation in enumerate(OPERATIONS.values()):
        chosen = (drawn.operation == number).nonzero().flatten()
        if operation.change and len(chosen):
            these = chosen.to(images.device)
            changed[these] = operation.change(images[these], drawn.magnitude[chosen])
    return changed


def follow(masks: Tensor, drawn: Draw) -> Tensor:
    """Masks bool (B,H,W) of these images, moved as their pixels were."""
    return move(masks[:, None].byte(), drawn)[:, 0].bool()
