"""The report's pictures, uint8 (H',W',3)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from torch import Tensor

from vit.inspection.figures import rendered
from vit.inspection.fonts import font_file
from vit.inspection.pictures import sheet, to_picture

LARGEST_NUMBERED = 16  # rows or columns beyond which a matrix shows colours alone


def curves_picture(x: Sequence[float], curves: Mapping[str, Sequence[float]], *, title: str, axes: str) -> np.ndarray:
    """Named curves over x; `axes` names the two: 'x: y'."""
    figure, drawn = _axes(title, *axes.split(": "))
    for name, y in curves.items():
        drawn.plot(x, y, "--" if name == "ideal" else "o-", label=name, markersize=3)
    if len(curves) > 1:
        drawn.legend(fontsize=7)
    return rendered(figure)


def matrix_picture(values: Tensor, rows: Sequence[str], columns: Sequence[str], *, title: str) -> np.ndarray:
    """Numbers (rows,columns) in colour and, where they are few, in figures."""
    figure, axes = _axes(title, "", "")
    largest = float(values.abs().max()) or 1.0
    signed = bool((values < 0).any())
    image = axes.imshow(values.tolist(), cmap="RdBu_r" if signed else "Blues", vmin=-largest * signed, vmax=largest)
    figure.colorbar(image, ax=axes, shrink=0.8)
    if max(values.shape) <= LARGEST_NUMBERED:
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", parse_math=False)
        axes.set_yticks(range(len(rows)), rows, parse_math=False)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_fontproperties(FontProperties(fname=font_file(label.get_text()), size=7))
        for (row, column), value in np.ndenumerate(values.numpy()):
            color = "white" if abs(value) > 0.6 * largest else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", size=6, color=color)
    return rendered(figure)


def image_rows(images: Tensor, rows: Sequence[Tensor], below: Sequence[Sequence[str]]) -> np.ndarray:
    """Chosen images of uint8 (N,C,H,W), each with two lines below it; short rows are filled up."""
    width = max(map(len, rows))
    empty = np.full_like(to_picture(images[0]), 255)
    pictures = [[*map(to_picture, images[row]), *[empty] * (width - len(row))] for row in rows]
    return sheet(pictures, [[*row, *[""] * (width - len(row))] for row in below], above=[""] * width, side=96, lines=2)


def _axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes
