"""The report's pictures."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vit.inspection.figures import rendered
from vit.inspection.pictures import sheet, to_picture

LARGEST_NUMBERED = 16  # classes or heads in a row beyond which a matrix shows colours alone


def curves_picture(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str, x: str, y: str, style: str = "o-"
) -> np.ndarray:
    """Named lines of points: (H',W',3)."""
    figure, axes = _axes(title, x, y)
    for name, (across, up) in curves.items():
        axes.plot(across, up, "--" if name == "ideal" else style, label=name, markersize=3)
    if len(curves) > 1:
        axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
    return _picture(figure)


def matrix_picture(
    values: Tensor, *, title: str, x: str, y: str, rows: Sequence[str], columns: Sequence[str], form: str
) -> np.ndarray:
    """Numbers (rows,columns), in colour and where they are few in figures, in the format `form`: (H',W',3)."""
    figure, axes = _axes(title, x, y)
    signed = bool(values.min() < 0)
    largest = float(values.abs().max()) or 1.0
    image = axes.imshow(values.tolist(), cmap="RdBu_r" if signed else "Blues", vmin=-largest * signed, vmax=largest)
    figure.colorbar(image, ax=axes, shrink=0.8)
    if max(values.shape) <= LARGEST_NUMBERED:
        axes.set_xticks(range(len(columns)), columns, fontsize=7, rotation=45, ha="right", parse_math=False)
        axes.set_yticks(range(len(rows)), rows, fontsize=7, parse_math=False)
        for row, line in enumerate(values.tolist()):
            for column, value in enumerate(line):
                dark = abs(value) > 0.6 * largest
                axes.text(column, row, form % value, ha="center", va="center", size=6, color="wk"[not dark])
    return _picture(figure)


def image_rows(images: Tensor, rows: Sequence[Sequence[int]], below: Sequence[Sequence[str]]) -> np.ndarray:
    """Chosen images of uint8 (N,C,H,W), each with a line below it; short rows are filled up: (H',W',3)."""
    width = max(len(row) for row in rows)
    empty = np.full_like(to_picture(images[0]), 255)
    pictures = [[*(to_picture(images[i]) for i in row), *[empty] * (width - len(row))] for row in rows]
    return sheet(pictures, [[*row, *[""] * (width - len(row))] for row in below], above=[""] * width, side=96)


def _axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def _picture(figure: Figure) -> np.ndarray:
    with warnings.catch_warnings():  # the font lacks the letters of many names
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        return rendered(figure)
