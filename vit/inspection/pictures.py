"""Pictures composed as arrays with a colour table: 0.02 s each, where drawing them as figures takes 0.6 s."""

import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

HEAT = 0.6  # share of the colour in an overlay; the rest is the picture in grey
GAP, TEXT = 4, 12  # pixels between cells, and of a line of text


def to_picture(image: Tensor) -> np.ndarray:
    """uint8 (C,H,W), grey or RGB → uint8 (H,W,3)."""
    return image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()


def overlay(picture: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Lay a map (rows,columns) of 0 to 1 over a picture (H,W,3) in grey: dark is 0 or not a number, bright is 1."""
    grey = picture.mean(axis=2, keepdims=True)
    colours = matplotlib.colormaps["inferno"](np.arange(256), bytes=True)[:, :3]
    colour = colours[np.rint(np.nan_to_num(heat) * 255).astype(np.uint8)]
    height, width = picture.shape[:2]
    spread = colour.repeat(height // heat.shape[0], axis=0).repeat(width // heat.shape[1], axis=1)
    return np.rint(HEAT * spread + (1 - HEAT) * grey).astype(np.uint8)


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
    return sheet(rows, below, above=["", *(f"head {head}" for head in range(1, maps.shape[1] + 1))])


def sheet(
    rows: Sequence[Sequence[np.ndarray]], below: Sequence[Sequence[str]], *, above: Sequence[str], side: int = 64
) -> np.ndarray:
    """Rows of pictures (H,W,3), all of one size, with a line of text below each and one above each column: (H',W',3).

    Small pictures are enlarged to at most `side` pixels, each pixel to a square.
    """
    height, width = rows[0][0].shape[:2]
    scale = max(1, side // max(height, width))
    cell_height, cell_width = height * scale, width * scale
    step_y, step_x = cell_height + TEXT + GAP, cell_width + GAP
    whole = Image.new("RGB", (len(rows[0]) * step_x + GAP, len(rows) * step_y + TEXT + GAP), "white")
    draw = ImageDraw.Draw(whole)
    for column, text in enumerate(above):
        draw.text((GAP + column * step_x, 1), text, "black")
    for row, (pictures, texts) in enumerate(zip(rows, below, strict=True)):
        top = TEXT + GAP + row * step_y
        for column, (picture, text) in enumerate(zip(pictures, texts, strict=True)):
            left = GAP + column * step_x
            whole.paste(Image.fromarray(picture.repeat(scale, axis=0).repeat(scale, axis=1)), (left, top))
            draw.text((left, top + cell_height), text[: cell_width // 6], "black")
    return np.asarray(whole)


def png(picture: np.ndarray) -> bytes:
    """uint8 (H,W,3) → the bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()
