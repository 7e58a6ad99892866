"""Ten classes of coloured shapes on textured backgrounds, made by this program."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vit.data.image_set import ImageSet, Split

SIDE = 32  # pixels
SHARDS = 3  # distractors an image
CHUNK = 500  # images painted at a time: some 50 MB of float32


def shapes(seed: int = 0, *, train: int = 10_000, test: int = 2_000) -> ImageSet:
    """The same images, bit for bit, from the same seed. Train and test have a torch.Generator each."""
    return ImageSet(
        description="shapes, 10 classes, made by this program",
        classes=tuple(DISTANCE),
        train=paint_split(train, torch.Generator().manual_seed(2 * seed)),
        test=paint_split(test, torch.Generator().manual_seed(2 * seed + 1)),
    )


def paint_split(count: int, generator: torch.Generator) -> Split:
    labels = torch.randperm(count, generator=generator) % len(DISTANCE)  # balanced, in random order
    images, masks = zip(*(paint(chunk, generator) for chunk in labels.split(CHUNK)), strict=True)
    return Split(torch.cat(images), labels, torch.cat(masks))


def paint(labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Labels (N,) to images uint8 (N,3,32,32) and the objects' masks bool (N,32,32)."""
    count = len(labels)
    row, column = torch.meshgrid(torch.arange(SIDE) - 15.5, torch.arange(SIDE) - 15.5, indexing="ij")

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=generator)

    def ramp() -> Tensor:
        """A coordinate in pixels along a random direction, zero at the image's centre."""
        angle = uniform(0, 2 * math.pi)
        return angle.cos() * column + angle.sin() * row

    def wave(shortest: float, longest: float) -> Tensor:
        return torch.sin(2 * math.pi * (ramp() / uniform(shortest, longest) + uniform(0, 1)))

    def shape(labels: Tensor) -> tuple[Tensor, Tensor]:
        """Signed distance in pixels to a shape at a random place, negative inside, and a point on its rim."""
        size, angle, stretch = uniform(8.5, 12), uniform(-math.pi / 4, math.pi / 4), uniform(0.9, 1.11)
        x = column - uniform(-1, 1) * (15 - size)
        y = uniform(-1, 1) * (15 - size) - row
        along, across = angle.cos() * x + angle.sin() * y, angle.cos() * y - angle.sin() * x
        along, across = along / size * stretch, across / size / stretch
        distance = torch.empty(count, SIDE, SIDE)
        for label, distance_to in enumerate(DISTANCE.values()):
            these = labels == label
            distance[these] = distance_to(along[these], across[these])
        rim = uniform(0, 2 * math.pi)
        from_rim = torch.hypot(along - 0.7 * rim.cos(), across - 0.7 * rim.sin())
        return distance * size, from_rim * size

    # background
    lightness = uniform(0.2, 0.8)
    image = tint(lightness + 0.006 * ramp() + 0.04 * wave(4, 12) + 0.04 * wave(6, 20), uniform(0, 1), 0.12)
    for _ in range(SHARDS):
        others = torch.randint(len(DISTANCE), (count,), generator=generator)
        distance, from_rim = shape(others)
        shard = torch.maximum(distance, from_rim - uniform(2.5, 4.5))
        image = image.lerp(tint(uniform(0.1, 0.9), uniform(0, 1), 0.25), coverage(shard))
    distance, _ = shape(labels)
    away = torch.where(lightness < 0.5, 1, -1) * uniform(0.25, 0.4)
    colour = tint(lightness + away + 0.008 * ramp() + 0.03 * wave(4, 12), uniform(0, 1), 0.25)
    image = image.lerp(colour, coverage(distance))
    image = image + 0.03 * torch.randn(image.shape, generator=generator)
    return (image.clamp(0, 1) * 255).round().to(torch.uint8), distance < 0


def coverage(distance: Tensor) -> Tensor:
    """The part of each pixel that is inside: an edge one pixel wide, so that it looks smooth."""
    return (0.5 - distance).clamp(0, 1)[:, None]


def tint(lightness: Tensor, hue: Tensor, chroma: float) -> Tensor:
    """(N,H,W) to RGB (N,3,H,W) whose mean over the channels is the lightness."""
    third = torch.tensor([0, 1 / 3, 2 / 3]).view(3, 1, 1)
    return lightness[:, None] + chroma * torch.cos(2 * math.pi * (hue[:, None] + third))


def box(x: Tensor, y: Tensor, width: float, height: float) -> Tensor:
    return torch.maximum(x.abs() - width, y.abs() - height)


def star(points: int, inner: float, radius: float, x: Tensor, y: Tensor) -> Tensor:
    """Tips at the radius, notches at inner times it; with inner = cos(π/points) a regular polygon."""
    half = math.pi / points
    reach, angle = torch.hypot(x, y), ((torch.atan2(x, y) + half) % (2 * half) - half).abs()
    normal_x, normal_y = inner * math.sin(half), 1 - inner * math.cos(half)
    along = (reach * angle.cos() - radius) * normal_x + reach * angle.sin() * normal_y
    return along / math.hypot(normal_x, normal_y)


def heart(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.abs(), y + 0.1
    return torch.minimum((x + y.abs()) / 2**0.5 - 0.52, torch.hypot(x - 0.37, y - 0.37) - 0.52)


def crescent(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(torch.hypot(x, y) - 1, 0.75 - torch.hypot(x, y - 0.5))


def horseshoe(x: Tensor, y: Tensor) -> Tensor:
    spine = torch.where(y < 0, torch.hypot(x, y), x.abs())
    return torch.maximum((spine - 0.62).abs() - 0.25, y - 0.85)


def arrow(x: Tensor, y: Tensor) -> Tensor:
    head = torch.maximum((x.abs() + y) / 2**0.5 - 0.73, -0.05 - y)
    return torch.minimum(head, box(x, y + 0.4, 0.28, 0.6))


DISTANCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "circle": lambda x, y: torch.hypot(x, y) - 0.76,
    "ring": lambda x, y: (torch.hypot(x, y) - 0.68).abs() - 0.22,
    "crescent": crescent,
    "heart": heart,
    "triangle": lambda x, y: star(3, 0.5, 1.15, x, y),
    "square": lambda x, y: star(4, 0.5**0.5, 0.98, x, y),
    "star": lambda x, y: star(5, 0.45, 1.1, x, y),
    "cross": lambda x, y: torch.minimum(box(x, y, 0.95, 0.3), box(x, y, 0.3, 0.95)),
    "horseshoe": horseshoe,
    "arrow": arrow,
}
