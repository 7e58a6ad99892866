"""Images made worse: covered and shuffled patches, and the corruptions of CIFAR-10-C that need no outside file.

Those are made as by hendrycks/robustness, ImageNet-C/create_c/make_cifar_c.py, at its severities: on 32×32 images they
are milder than ImageNet-C's. Hendrycks & Dietterich 2019 (arXiv 1903.12261). Not bit for bit its files, whose random
numbers are not known; what needs ImageMagick, OpenCV's contours or photographs of frost is left out.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vit.data import Split
from vit.evaluation.faithfulness import cover
from vit.settings import UserError

SEVERITIES = 5
CIFAR_TEST_IMAGES = 10_000


def drop_patches(images: Tensor, share: float, *, grid: tuple[int, int], grey: Tensor, seed: int = 0) -> Tensor:
    """Cover a random share of the patches of uint8 (N,C,H,W). Naseer et al. 2021 (arXiv 2105.10497), section 3.1."""
    drawn = torch.rand(len(images), grid[0] * grid[1], generator=torch.Generator().manual_seed(seed))
    covered = drawn.argsort(1).argsort(1) < round(share * drawn.shape[1])
    return cover(images, covered.view(-1, *grid), grey)


def shuffle_patches(images: Tensor, cells: tuple[int, int], *, seed: int = 0) -> Tensor:
    """Cut uint8 (N,C,H,W) into rows × columns cells and join them in random order. Naseer et al., section 3.3."""
    rows, columns = cells
    parts = images.unflatten(3, (columns, -1)).unflatten(2, (rows, -1)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = torch.rand(parts.shape[:2], generator=torch.Generator().manual_seed(seed)).argsort(1)
    shuffled = parts[torch.arange(len(parts))[:, None], order].unflatten(1, cells)
    return shuffled.permute(0, 3, 1, 4, 2, 5).reshape(images.shape)


def corrupt(images: Tensor, kind: str, severity: int, *, seed: int = 0) -> Tensor:
    """uint8 (N,C,H,W) → the same, corrupted by a kind of CORRUPTIONS at a severity of 1 to 5."""
    change, *severities = CORRUPTIONS[kind]
    generator = torch.Generator().manual_seed(seed)
    changed = [change(part.float() / 255, severities[severity - 1], generator) for part in images.split(1000)]
    return (torch.cat(changed).clamp(0, 1) * 255 + 1e-3).byte()  # truncated, as the published files are


def _noise(x: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    return x + scale * torch.randn(x.shape, generator=generator)


def _shot(x: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    return torch.poisson(x * photons, generator) / photons


def _impulse(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(x.shape, generator=generator)
    return torch.where(drawn < share / 2, 0.0, torch.where(drawn > 1 - share / 2, 1.0, x))


def _speckle(x: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    return x + x * scale * torch.randn(x.shape, generator=generator)


def _gaussian(sigma: float, radius: int) -> Tensor:
    bell = (-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2).exp()
    return torch.outer(bell, bell) / bell.sum() ** 2


def _filter(x: Tensor, kernel: Tensor, border: str) -> Tensor:
    radius = len(kernel) // 2
    padded = F.pad(x, [radius] * 4, mode=border)
    return F.conv2d(padded, kernel.expand(x.shape[1], 1, -1, -1), groups=x.shape[1])


def _blur(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    return _filter(x, _gaussian(sigma, int(4 * sigma + 0.5)), "replicate")


def _defocus(x: Tensor, disk: tuple[float, float], generator: torch.Generator) -> Tensor:
    radius, alias = disk
    across = torch.arange(-3, 4)
    inside = (across[:, None] ** 2 + across**2 <= radius**2).float()
    return _filter(x, _filter((inside / inside.sum())[None, None], _gaussian(alias, 1), "reflect")[0, 0], "reflect")


def _zoom(x: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    size = x.shape[2:]
    total = x.clone()
    for step in range(steps):
        crop = [-int(-side // (1 + step / 100)) for side in size]
        top, left = ((side - inner) // 2 for side, inner in zip(size, crop, strict=True))
        inside = x[:, :, top : top + crop[0], left : left + crop[1]]
        to = [round(inner * (1 + step / 100)) for inner in crop]
        large = F.interpolate(inside, to, mode="bilinear", align_corners=True)
        top, left = ((outer - side) // 2 for outer, side in zip(to, size, strict=True))
        total += large[:, :, top : top + size[0], left : left + size[1]]
    return total / (steps + 1)


def _contrast(x: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    means = x.mean(dim=(2, 3), keepdim=True)
    return (x - means) * factor + means


def _brightness(x: Tensor, more: float, generator: torch.Generator) -> Tensor:
    value = x.amax(1, keepdim=True)  # of hue, saturation and value
    return torch.where(value > 0, x / value, 1.0) * (value + more).clamp(max=1)


def _saturate(x: Tensor, change: tuple[float, float], generator: torch.Generator) -> Tensor:
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    saturation = torch.where(value > 0, (value - low) / value, 0.0)
    red = (torch.arange(x.shape[1]) == 0).float().view(1, -1, 1, 1)  # the hue of what has none
    missing = torch.where(value > low, (value - x) / (value - low), 1 - red)  # 0 at the largest channel, 1 at the least
    return value * (1 - missing * (saturation * change[0] + change[1]).clamp(0, 1))


def _each(x: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """By Pillow, image by image."""
    pictures = (x * 255).round().byte().expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    changed = np.stack([np.asarray(change(Image.fromarray(picture))) for picture in pictures])
    return torch.from_numpy(changed).permute(0, 3, 1, 2)[:, : x.shape[1]].float() / 255


def _jpeg(x: Tensor, quality: int, generator: torch.Generator) -> Tensor:
    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _each(x, change)


def _pixelate(x: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    box = Image.Resampling.BOX
    small = (int(x.shape[3] * scale), int(x.shape[2] * scale))
    return _each(x, lambda image: image.resize(small, box).resize(image.size, box))


# A function, and its argument at the severities 1 to 5.
CORRUPTIONS: dict[str, tuple] = {
    "gaussian_noise": (_noise, 0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (_shot, 500, 250, 100, 75, 50),
    "impulse_noise": (_impulse, 0.01, 0.02, 0.03, 0.05, 0.07),
    "speckle_noise": (_speckle, 0.06, 0.1, 0.12, 0.16, 0.2),
    "gaussian_blur": (_blur, 0.4, 0.6, 0.7, 0.8, 1),
    "defocus_blur": (_defocus, (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "zoom_blur": (_zoom, 7, 12, 16, 21, 26),
    "brightness": (_brightness, 0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": (_contrast, 0.75, 0.5, 0.4, 0.3, 0.15),
    "saturate": (_saturate, (0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    "pixelate": (_pixelate, 0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": (_jpeg, 80, 65, 58, 50, 40),
}


def read_corrupted(folders: Sequence[str], *, shape: tuple[int, ...], classes: int) -> dict[str, list[Split]]:
    """The sets of CIFAR-10-C and CIFAR-10.1 in these folders, with the images still on the disk.

    A file of CIFAR-10-C holds its five severities one after the other, and is split. KIND.npy has its labels in
    labels.npy, and KIND_data.npy in KIND_labels.npy. No code in a file is run. Raises UserError where there is none,
    one cannot be read, two have the same name, or one does not fit images of `shape` (C,H,W) in so many classes.
    """
    found: dict[str, list[Split]] = {}
    for folder in folders:
        files = sorted(Path(folder).expanduser().glob("*.npy"))
        sets = [file for file in files if not file.stem.endswith("labels")]
        if not sets:
            raise UserError(f"{folder} holds no .npy file of CIFAR-10-C or CIFAR-10.1")
        for file in sets:
            name = file.stem.removesuffix("_data")
            if name in found:
                raise UserError(f"corrupted: {name} is in two of the folders")
            beside = file.with_name("labels.npy" if name == file.stem else f"{name}_labels.npy")
            found[name] = _read_set(file, beside, shape=shape, classes=classes)
    return found


def _read_set(file: Path, beside: Path, *, shape: tuple[int, ...], classes: int) -> list[Split]:
    try:
        if not (file.is_file() and beside.is_file()):
            raise ValueError("not both are files")
        images = torch.from_numpy(np.load(file, mmap_mode="c", allow_pickle=False)).permute(0, 3, 1, 2)
        labels = torch.from_numpy(np.load(beside, allow_pickle=False)).long()
    except Exception as error:  # a damaged file raises anything at all
        raise UserError(f"{file} or {beside.name} cannot be read: {' '.join(str(error).split())}") from error
    fits = images.dtype == torch.uint8 and images.shape[1:] == shape and labels.shape == images.shape[:1] != (0,)
    if not fits:
        what = f"{images.dtype} {tuple(images.shape)} and {labels.numel()} labels"
        raise UserError(f"{file} holds {what}, not images {shape}")
    if {*labels.tolist()} != {*range(classes)}:
        raise UserError(f"{file} has {len(labels.unique())} classes, not the {classes} of the network")
    parts = SEVERITIES if len(labels) == SEVERITIES * CIFAR_TEST_IMAGES else 1
    return [Split(*pair) for pair in zip(images.chunk(parts), labels.chunk(parts), strict=True)]
