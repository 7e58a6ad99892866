"""Pictures composed as arrays with a colour table: 0.02 s each, where drawing them as figures takes 0.6 s."""

import io
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from vit.inspection.fonts import fitting, font_of

HEAT = 0.6  # share of the colour in an overlay; the rest is the picture in grey
GAP, TEXT = 4, 12  # pixels between cells, and of a line of text


def printable(name: str) -> str:
    """A class name in one line of characters that can be written anywhere."""
    line = " ".join(name.encode("utf-8", "replace").decode().split())
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line) or "?"


def to_picture(image: Tensor) -> np.ndarray:
    """uint8 (C,H,W), grey or RGB → uint8 (H,W,3)."""
    return image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()


def overlay(picture: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Lay a map (rows,columns) of 0 to 1 over a picture (H,W,3) in grey: dark is 0 or not a number, bright is 1."""
    grey = picture.mean(axis=2, keepdims=True)
    colour = heat_colours()[np.rint(np.nan_to_num(heat) * 255).astype(np.uint8)]
    height, width = picture.shape[:2]
    spread = colour.repeat(height // heat.shape[0], axis=0).repeat(width // heat.shape[1], axis=1)
    return np.rint(HEAT * spread + (1 - HEAT) * grey).astype(np.uint8)


def heat_colours() -> np.ndarray:
    """Dark to bright: uint8 (256,3)."""
    return matplotlib.colormaps["inferno"](np.arange(256), bytes=True)[:, :3]


def outlined(picture: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """A picture (H,W,3) with the rim of a mask (H,W), true on the object, in red."""
    padded = np.pad(mask, 1)
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    marked = picture.copy()
    marked[mask & ~inner] = (255, 0, 0)
    return marked


def attention_sheet(images: Tensor, maps: Tensor, titles: Sequence[str]) -> np.ndarray:
    """Rows of images, each followed by the overlay of every head: (B,C,H,W) uint8, (B,h,rows,columns) → (H',W',3).

    Each map is scaled to its own maximum, which is written below it.
    """
    rows, below = [], []
    for image, map_of_heads, title in zip(images, maps, titles, strict=True):
        picture = to_picture(image)
        peaks = map_of_heads.amax(dim=(1, 2)).clamp(min=1e-12)
        heats = (map_of_heads / peaks[:, None, None]).cpu().numpy()
        rows.append([picture, *(overlay(picture, heat) for heat in heats)])
        below.append([title, *(f"max {peak:.3f}" for peak in peaks.tolist())])
    return sheet(rows, below, above=["true class", *(f"head {head}" for head in range(1, maps.shape[1] + 1))])


def method_sheet(images: Tensor, maps: Mapping[str, Tensor], titles: Sequence[str], *, side: int = 128) -> np.ndarray:
    """Rows of images, each followed by its map (B,rows,columns) by each method, by its own maximum: (H',W',3).

    Titles, of up to two lines, stand below the images.
    """
    rows, below = [], []
    for number, (image, title) in enumerate(zip(images, titles, strict=True)):
        picture = to_picture(image)
        of_image = [map_of_method[number] for map_of_method in maps.values()]
        peaks = [float(one.max().clamp(min=1e-12)) for one in of_image]
        heats = [(one / peak).cpu().numpy() for one, peak in zip(of_image, peaks, strict=True)]
        rows.append([picture, *(overlay(picture, heat) for heat in heats)])
        below.append([title, *(f"max {peak:.2g}" for peak in peaks)])
    return sheet(rows, below, above=["image", *maps], side=side, lines=2)


def lens_sheet(
    images: Tensor, layers: Mapping[str, Tensor], titles: Sequence[str], classes: Sequence[str]
) -> np.ndarray:
    """Rows of images, each followed by what every patch is taken for after some layers, (B,K,rows,columns): (H',W',3).

    A patch has the colour of its likeliest class, the paler the less likely that is; the legend is below.
    """
    colours = class_colours(len(classes))
    size = images.shape[2:]
    rows = []
    for number, image in enumerate(images):
        cells = [to_picture(image)]
        for probabilities in layers.values():
            share, label = (part.cpu().numpy() for part in probabilities[number].max(dim=0))
            cell = 255 - share[..., None] * (255.0 - colours[label])
            cells.append(
                np.rint(cell.repeat(size[0] // cell.shape[0], 0).repeat(size[1] // cell.shape[1], 1)).astype(np.uint8)
            )
        rows.append(cells)
    found = torch.cat([probabilities.argmax(dim=1).flatten() for probabilities in layers.values()]).unique().tolist()
    below = [[title, *[""] * len(layers)] for title in titles]
    picture = sheet(rows, below, above=["true class", *layers])
    return np.concatenate([picture, legend([(classes[label], colours[label]) for label in found], picture.shape[1])])


def class_colours(classes: int) -> np.ndarray:
    """One for each class: uint8 (K,3)."""
    if classes <= 10:
        return matplotlib.colormaps["tab10"](np.arange(classes), bytes=True)[:, :3]
    return matplotlib.colormaps["turbo"](np.linspace(0, 1, classes), bytes=True)[:, :3]


def legend(entries: Sequence[tuple[str, np.ndarray]], width: int) -> np.ndarray:
    """Coloured squares with their names, in as many rows as the width needs: (H',width,3)."""
    columns = max(1, width // 110)
    whole = Image.new("RGB", (width, -(-len(entries) // columns) * (TEXT + GAP) + GAP), "white")
    draw = ImageDraw.Draw(whole)
    for number, (name, colour) in enumerate(entries):
        left, top = GAP + number % columns * 110, GAP + number // columns * (TEXT + GAP)
        draw.rectangle((left, top, left + TEXT, top + TEXT), tuple(int(level) for level in colour))
        name = fitting(name, 110 - TEXT - 2 * GAP)
        draw.text((left + TEXT + GAP, top), name, "black", font_of(name))
    return np.asarray(whole)


def sheet(
    rows: Sequence[Sequence[np.ndarray]],
    below: Sequence[Sequence[str]],
    *,
    above: Sequence[str],
    side: int = 64,
    lines: int = 1,
) -> np.ndarray:
    """Rows of pictures (H,W,3), all of one size, with lines of text below each and one above each column: (H',W',3).

    Small pictures are enlarged to at most `side` pixels, each pixel to a square, and larger ones are shrunk to it.
    """
    height, width = rows[0][0].shape[:2]
    scale = side // max(height, width) or side / max(height, width)
    cell_height, cell_width = max(1, round(height * scale)), max(1, round(width * scale))
    resample = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    step_y, step_x = cell_height + lines * TEXT + GAP, cell_width + GAP
    whole = Image.new("RGB", (len(rows[0]) * step_x + GAP, len(rows) * step_y + TEXT + GAP), "white")
    draw = ImageDraw.Draw(whole)
    for column, text in enumerate(above):
        draw.text((GAP + column * step_x, 1), text, "black")
    for row, (pictures, texts) in enumerate(zip(rows, below, strict=True)):
        top = TEXT + GAP + row * step_y
        for column, (picture, text) in enumerate(zip(pictures, texts, strict=True)):
            left = GAP + column * step_x
            whole.paste(Image.fromarray(picture).resize((cell_width, cell_height), resample), (left, top))
            for line, words in enumerate(text.split("\n", lines - 1)):
                words = fitting(words, cell_width + GAP / 2)
                draw.text((left, top + cell_height + line * TEXT), words, "black", font_of(words))
    return np.asarray(whole)


def headed(picture: np.ndarray, title: str, *, scale: bool = False) -> np.ndarray:
    """A picture (H,W,3) below a title of as many lines as it needs and, with scale, the colours of a map: (H',W,3)."""
    width = picture.shape[1]
    lines = textwrap.wrap(title, max(20, width // 6))
    whole = Image.new("RGB", (width, (len(lines) + scale) * TEXT + 2 * GAP), "white")
    draw = ImageDraw.Draw(whole)
    for number, line in enumerate(lines):
        draw.text((GAP, GAP + number * TEXT), line, "black", font_of(line))
    if scale:
        top, left = GAP + len(lines) * TEXT, 3 * GAP
        colours = np.broadcast_to(heat_colours()[None, ::3], (TEXT - 4, 86, 3))
        draw.text((GAP, top), "0", "black")
        whole.paste(Image.fromarray(colours), (left, top + 2))
        draw.text((left + 86 + GAP, top), "max, of each map its own", "black")
    return np.concatenate([np.asarray(whole), picture])


def png(picture: np.ndarray) -> bytes:
    """uint8 (H,W,3) → the bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def jpeg(picture: np.ndarray) -> bytes:
    """uint8 (H,W,3) → the bytes of a JPEG file: for a photograph a fifth of a PNG file's, and a little blurred."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=90)
    return file.getvalue()
