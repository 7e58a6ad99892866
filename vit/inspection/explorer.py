"""The Attention tab's view as a page of its own, with its maps in it."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

from vit.inspection.page import page
from vit.inspection.pictures import printable

TAB = Path(__file__).with_name("tab")
LARGEST = 64_000_000  # bytes of maps before compression; in base64 and compressed they make a page of some 50 MB
HINT = (
    "Hover over a patch, tap it, or move with the arrow keys: its map shows where this patch attends. "
    "With no patch chosen it shows what the pooled vector, which is classified, attends to (the readout)."
)


def explorer_page(name: str, blobs: Sequence[bytes], *, step: int) -> bytes:
    """An HTML file that shows what `map_record.pack` packed; `name` is the network's."""
    header, *rest = blobs
    record = {
        "run": printable(name),
        "step": step,
        "header": json.loads(header),
        "blobs": [base64.b64encode(blob).decode() for blob in rest],
    }
    return page(
        f"Attention of {name}",
        f'<p class="hint">{html.escape(HINT)}</p>\n<div id="attention"></div>',
        styles=(TAB / "tab.css").read_text(encoding="utf-8"),
        script="\n".join((TAB / file).read_text(encoding="utf-8") for file in ("view.js", "explorer.js")),
        data=record,
    )
