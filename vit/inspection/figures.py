"""Figures with axes and colour bars, drawn once a run: 0.6 s each."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from torch import Tensor

from vit.inspection.fonts import font_file
from vit.inspection.pictures import sheet, to_picture


def matrix_figure(weights: Tensor, *, title: str, prefix: Sequence[str], grid: tuple[int, int]) -> np.ndarray:
    """The attention matrices of a layer's heads for one image: (h,T,T) → (H',W',3).

    prefix: a name for each token before the patches. The axes name these and where each row of patches begins.
    """
    heads = len(weights)
    columns = min(4, heads)
    rows = -(-heads // columns)
    figure = Figure(figsize=(3.2 * columns, 2.9 * rows + 0.4), layout="constrained")
    figure.suptitle(title, parse_math=False, fontproperties=FontProperties(fname=font_file(title), size=12))
    named = list(enumerate(prefix))[:4]
    for row in range(0, grid[0], max(1, grid[0] // 8)):
        named.append((len(prefix) + row * grid[1], f"row {row + 1}"))
    ticks, names = zip(*named, strict=True)
    for head, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        if head >= heads:
            axes.axis("off")
            continue
        drawn = axes.imshow(weights[head].cpu().numpy(), cmap="viridis", vmin=0)
        axes.set_title(f"head {head + 1}", fontsize=9)
        axes.set_xticks(ticks, names, fontsize=6, rotation=90)
        axes.set_yticks(ticks, names, fontsize=6)
        axes.set_xlabel("key (attended to)", fontsize=7)
        axes.set_ylabel("query (attends)", fontsize=7)
        figure.colorbar(drawn, ax=axes).ax.tick_params(labelsize=6)
    return rendered(figure)


def filter_figure(weight: Tensor, *, channels: int, patch_size: int, count: int = 28) -> np.ndarray:
    """The principal components of the patch embedding (D, C · p · p), strongest first: (H',W',3).

    Dosovitskiy et al. 2021, figure 7, left.
    """
    centred = (weight.float() - weight.float().mean(0)).nan_to_num(0, 0, 0)  # of a network that has diverged
    components = torch.linalg.svd(centred, full_matrices=False).Vh[:count].cpu()
    low, high = components.amin(1, keepdim=True), components.amax(1, keepdim=True)
    levels = (255 * (components - low) / (high - low).clamp(min=1e-12)).round().byte()
    cells = [to_picture(part) for part in levels.view(-1, channels, patch_size, patch_size)]
    names = [f"{number}" for number in range(1, len(cells) + 1)]
    rows = range(0, len(cells), 7)
    missing = -len(cells) % 7
    cells += [np.full_like(cells[0], 255)] * missing
    names += [""] * missing
    above = ["principal components of the patch embedding, strongest first"]
    return sheet([cells[row : row + 7] for row in rows], [names[row : row + 7] for row in rows], above=above)


def position_figure(embedding: Tensor, *, grid: tuple[int, int]) -> np.ndarray:
    """Cosine similarity of each patch's position (N,D) with every other's, one small map a patch: (H',W',3).

    Dosovitskiy et al. 2021, figure 7, middle.
    """
    unit = F.normalize(embedding.float(), dim=1)
    similarity = (unit @ unit.T).unflatten(1, grid).unflatten(0, grid)  # (rows,columns,rows,columns)
    framed = F.pad(similarity, (0, 1, 0, 1), value=float("nan"))
    mosaic = framed.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
    figure = Figure(figsize=(6, min(12, max(3, 6 * grid[0] / grid[1]))), layout="constrained")
    axes = figure.subplots()
    axes.set_title("position embeddings: similarity of each patch to all")
    axes.set_xlabel("column of the patch")
    axes.set_ylabel("row of the patch")
    drawn = axes.imshow(mosaic.cpu().numpy(), cmap="viridis", vmax=1)
    step_y, step_x = grid[0] + 1, grid[1] + 1
    axes.set_xticks(
        [step_x * column + grid[1] / 2 - 0.5 for column in range(grid[1])], [str(c + 1) for c in range(grid[1])]
    )
    axes.set_yticks([step_y * row + grid[0] / 2 - 0.5 for row in range(grid[0])], [str(r + 1) for r in range(grid[0])])
    figure.colorbar(drawn, ax=axes, shrink=0.8)
    return rendered(figure)


def rendered(figure: Figure) -> np.ndarray:
    """(H,W,3)."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
