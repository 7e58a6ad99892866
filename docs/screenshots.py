"""The pictures of docs/pictures.md and docs/tab.md, from a run: python docs/screenshots.py RUN IMAGE LAYER HEAD.

RUN is one of the quick recipe on CIFAR-10; the tab shows its last step: the image, the layer and the head named, each
counted from 1. Needs Chromium.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.browser import Page, tensorboard

DOCS = Path(__file__).resolve().parent
TAB = "data/plugin_entry.html?name=attention#attention"  # the tab alone, as TensorBoard serves it for its frame
DRAWN = "(all => all.length && all.every((one) => one.width != 300))([...document.querySelectorAll('.images canvas')])"
HEADER = 46  # pixels of a sheet above its rows of images; then the height of a row, and below all of them a legend
SHEETS = {"layer_06": (80, 0), "methods": (156, 0), "logit_lens": (80, 52)}
ROWS = 5


def first_rows(sheet: Image.Image, row: int, legend: int) -> Image.Image:
    top, below = HEADER + ROWS * row, sheet.height - legend
    picture = Image.new("RGB", (sheet.width, top + legend), "white")
    picture.paste(sheet.crop((0, 0, sheet.width, top)))
    picture.paste(sheet.crop((0, below, sheet.width, sheet.height)), (0, top))
    return picture


def tab(run: Path, image: int, layer: int, head: str, file: Path) -> None:
    with tempfile.TemporaryDirectory() as profile, tensorboard(run.parent) as address:
        page = Page(Path(profile))
        try:
            page.size(1080, 1260)
            chosen = {"run": run.name, "image": image, "layer": layer, "head": head}
            page.open("&".join([address + TAB, *(f"p.attention.{key}={value}" for key, value in chosen.items())]))
            page.wait(DRAWN)
            page.screenshot(file)
        finally:
            page.close()


def main(run: Path, image: int, layer: int, head: str) -> None:
    for name, (row, legend) in SHEETS.items():
        last = max((run / "pictures").glob(f"step_*_{name}.png"))
        first_rows(Image.open(last).convert("RGB"), row, legend).save(DOCS / f"pictures_{name}.png", optimize=True)
    tab(run, image, layer, head, DOCS / "tab.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
