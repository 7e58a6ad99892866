"""A report on the terminal, as one HTML file, as JSON and in TensorBoard."""

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from vit.evaluation.report import Part
from vit.inspection.page import page
from vit.inspection.pictures import png, printable

SCALARS = ("accuracy", "top5", "nll", "ece", "temperature")
STYLES = """body { font: 15px system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid #ccc }
td:first-child, th:first-child { text-align: left } img { max-width: 100% } figure { margin: 1rem 0 }"""


def text(value: Any, digits: int) -> str:
    """A cell of a table."""
    if isinstance(value, float | Tensor):
        return "" if math.isnan(value) else f"{float(value):.{digits}f}"
    if isinstance(value, tuple):
        return " to ".join(text(end, digits) for end in value)
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else printable(value) if value else ""


def cells(part: Part) -> list[list[str]]:
    return [[text(value, part.digits) for value in line.values()] for line in part.table]


def print_part(part: Part, console: Console) -> None:
    table = Table(title=part.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(part.table[0]):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for line in cells(part):
        table.add_row(*line)
    console.print(table)
    console.print(f"{part.note}\n")


def to_json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain(values), indent=1, ensure_ascii=False) + "\n").encode(errors="replace")


def plain(value: Any) -> Any:
    """For JSON: five decimals, so that the size of a batch changes none; null for what is no number."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 5) if math.isfinite(value) else None
    return value


def to_html(title: str, about: Sequence[str], parts: Sequence[Part]) -> bytes:
    body = [f"<h1>{html.escape(printable(title))}</h1>", *(f"<p>{html.escape(line)}</p>" for line in about)]
    for part in parts:
        body.append(f"<h2>{html.escape(part.title)}</h2><p>{html.escape(part.note)}</p><table>")
        for tag, line in [("th", list(part.table[0])), *(("td", line) for line in cells(part))]:
            body.append(f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in line)}</tr>")
        body.append("</table>")
        for name, picture in part.pictures.items():
            source = f"data:image/png;base64,{base64.b64encode(png(picture)).decode()}"
            body.append(f'<figure><img alt="{name}" src="{source}"><figcaption>{name}</figcaption></figure>')
    return page(title, "\n".join(body), styles=STYLES)


def to_tensorboard(folder: Path, parts: Sequence[Part], values: Mapping[str, Any], *, step: int) -> None:
    """The main figures and the pictures as TensorBoard's run `RUN/report`, in place of an earlier report's.

    In a folder of its own: events written beside those of a training that goes on would hide what it writes next.
    """
    from torch.utils.tensorboard import SummaryWriter

    if (folder / "report").is_symlink():
        raise OSError(f"{folder / 'report'} is a link")
    for old in (folder / "report").glob("events.out.tfevents.*"):
        old.unlink()
    with SummaryWriter(str(folder / "report")) as writer:
        for name in SCALARS:
            if values[name] is not None:
                writer.add_scalar(f"report/{name}", values[name], step)
        for part in parts:
            for name, picture in part.pictures.items():
                writer.add_image(f"report/{name.replace(' ', '_')}", picture, step, dataformats="HWC")
