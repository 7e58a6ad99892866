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


class Draw(NamedTuple):
    """What happens to each image of a batch. On the CPU, so that a GPU is not waited for."""

    operation: Tensor  # (B,): its place in OPERATIONS
    magnitude: Tensor  # (B,)


Change = Callable[[Tensor, Draw], Tensor]  # images uint8 (M,C,H,W), what was drawn for them → images


class Operation(NamedTuple):
    change: Change | None
    weakest: float
    strongest: float
    signed: bool  # half of the magnitudes are negative

    @property
    def geometric(self) -> bool:
        """Moves pixels, as `movements` says: a mask of the image must follow."""
        return self.change is move


def movements(drawn: Draw, height: int, width: int) -> Tensor:
    """Where each pixel of an image comes from, counted from the middle: a matrix (B,2,3) on (column, row, 1).

    Shears are about the upper left corner.
    """
    shear_x, shear_y, right, down, angle = torch.where(drawn.operation == GEOMETRIC[:, None], drawn.magnitude, 0.0)
    right, down, angle = right.trunc(), down.trunc(), angle.deg2rad()  # counter-clockwise
    sin, cos = angle.sin(), angle.cos()
    column = torch.stack([cos, shear_x - sin, shear_x * height / 2 - right], dim=1)
    row = torch.stack([shear_y + sin, cos, shear_y * width / 2 - down], dim=1)
    return torch.stack([column, row], dim=1)


def move(images: Tensor, drawn: Draw) -> Tensor:
    """Images uint8 (B,C,H,W) with every pixel from where `movements` says; black where that is outside."""
    height, width = images.shape[2:]
    columns, rows = (torch.arange(side, device=images.device) - (side - 1) / 2 for side in (width, height))
    by_column, by_row, offset = movements(drawn, height, width).to(images.device)[..., None, None].unbind(2)
    column, row = (by_column * columns + by_row * rows[:, None] + offset).unbind(1)  # each (B,H,W)
    column = (column + (width - 1) / 2).round_().clamp_(-1, width)
    row = (row + (height - 1) / 2).round_().clamp_(-1, height)
    framed = F.pad(images, (1, 1, 1, 1))  # in black, which all that is outside comes from
    index = column.add_(row, alpha=width + 2).add_(width + 3).long().flatten(1)  # of (row + 1, column + 1) in the frame
    return framed.flatten(2).gather(2, index[:, None].expand(-1, images.shape[1], -1)).view_as(images)


def blend(images: Tensor, other: Tensor | float, magnitude: Tensor) -> Tensor:
    """From the other image towards this one, and as far beyond as the magnitude is positive."""
    factor = (1 + magnitude.to(images.device)).view(-1, 1, 1, 1)
    return (images * factor + other * (1 - factor)).clamp(0, 255).byte()


def grey(images: Tensor) -> Tensor:
    """float (M,1,H,W), the weights of ITU-R 601-2."""
    return images.float() if images.shape[1] == 1 else TF.rgb_to_grayscale(images).float()


def blurred(images: Tensor) -> Tensor:
    """Smoothed by 3 × 3 pixels, the one in the middle counted five times, the border left as it is."""
    smooth = images.float()
    rows = smooth[:, :, :-2] + smooth[:, :, 1:-1] + smooth[:, :, 2:]
    squares = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smooth[:, :, 1:-1, 1:-1] = ((squares + 4 * smooth[:, :, 1:-1, 1:-1]) / 13).round()
    return smooth


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    kept = 256 - 2 ** (8 - bits.round().long())
    return images & kept.byte().view(-1, 1, 1, 1).to(images.device)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    bright = images >= threshold.ceil().byte().view(-1, 1, 1, 1).to(images.device)
    return images ^ bright * images.new_tensor(255)  # 255 - x is x with all bits turned over


OPERATIONS = {
    "identity": Operation(None, 0, 0, False),
    "shear_x": Operation(move, 0, 0.99, True),
    "shear_y": Operation(move, 0, 0.99, True),
    "translate_x": Operation(move, 0, 32, True),  # pixels
    "translate_y": Operation(move, 0, 32, True),
    "rotate": Operation(move, 0, 135, True),  # degrees
    "brightness": Operation(lambda i, d: blend(i, 0.0, d.magnitude), 0, 0.99, True),
    "color": Operation(lambda i, d: blend(i, grey(i), d.magnitude) if i.shape[1] == 3 else i, 0, 0.99, True),
    "contrast": Operation(lambda i, d: blend(i, grey(i).mean((1, 2, 3), keepdim=True), d.magnitude), 0, 0.99, True),
    "sharpness": Operation(lambda i, d: blend(i, blurred(i), d.magnitude), 0, 0.99, True),
    "posterize": Operation(lambda i, d: posterize(i, d.magnitude), 8, 2, False),  # bits
    "solarize": Operation(lambda i, d: solarize(i, d.magnitude), 255, 0, False),
    "autocontrast": Operation(lambda i, _: TF.autocontrast(i), 0, 0, False),
    "equalize": Operation(lambda i, _: TF.equalize(i), 0, 0, False),
}


CHANGES = list(dict.fromkeys(operation.change for operation in OPERATIONS.values()))
CHANGE = torch.tensor([CHANGES.index(operation.change) for operation in OPERATIONS.values()])
GEOMETRIC = torch.tensor([number for number, operation in enumerate(OPERATIONS.values()) if operation.geometric])


def magnitudes(operation: Operation) -> Tensor:
    """All that can be drawn, each as often as any other: (2 · LEVELS,)."""
    levels = operation.weakest + torch.arange(LEVELS) / (LEVELS - 1) * (operation.strongest - operation.weakest)
    return torch.cat([levels, -levels if operation.signed else levels])


MAGNITUDES = torch.stack([magnitudes(operation) for operation in OPERATIONS.values()])


def draw(batch: int) -> Draw:
    """Operation and magnitude of each image, from torch's generator of the CPU."""
    operation = torch.randint(len(OPERATIONS), (batch,))
    return Draw(operation, MAGNITUDES[operation, torch.randint(2 * LEVELS, (batch,))])


def trivial_augment(images: Tensor, drawn: Draw) -> Tensor:
    """uint8 (B,C,H,W), grey or RGB → same."""
    change = CHANGE[drawn.operation]
    order, sizes = change.argsort(), change.bincount(minlength=len(CHANGES)).tolist()
    by_change = images.index_select(0, order.to(images.device))  # so that those of one change are a slice
    parts = (part.split(sizes) for part in (by_change, drawn.operation[order], drawn.magnitude[order]))
    changed = [
        apply(these, Draw(operation, magnitude)) if apply and len(these) else these
        for apply, these, operation, magnitude in zip(CHANGES, *parts, strict=True)
    ]
    return torch.cat(changed).index_select(0, order.argsort().to(images.device))


def follow(masks: Tensor, drawn: Draw) -> Tensor:
    """Masks bool (B,H,W) of these images, moved as their pixels were."""
    return move(masks[:, None].byte(), drawn)[:, 0].bool()
