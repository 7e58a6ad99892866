"""The README's picture, from the pictures that a run left: python docs/heads_picture.py RUN ROW STEP STEP STEP

Takes one image's row out of the sheets of the last layer and stacks it for each of the steps.
"""

import sys
from pathlib import Path

from PIL import Image, ImageDraw

from vit.inspection.pictures import GAP, TEXT

HEADER, ROW_HEIGHT, LABEL = TEXT + GAP, 64 + TEXT + GAP, 76  # images of 32 pixels are shown at twice their size
ROWS = 10  # of a sheet, below its title


def main(run: Path, row: int, steps: list[int]) -> None:
    strips = []
    for step in steps:
        sheet = Image.open(sorted((run / "pictures").glob(f"step_{step:06d}_layer_*.png"))[-1])
        top = sheet.height - (ROWS - row) * ROW_HEIGHT
        strips.append(sheet.crop((0, top, sheet.width, top + ROW_HEIGHT)))
    picture = Image.new("RGB", (strips[0].width + LABEL, HEADER + ROW_HEIGHT * len(strips)), "white")
    picture.paste(
        sheet.crop((0, heads := sheet.height - ROWS * ROW_HEIGHT - HEADER, sheet.width, heads + HEADER)), (LABEL, 0)
    )
    for place, (step, strip) in enumerate(zip(steps, strips, strict=True)):
        picture.paste(strip, (LABEL, HEADER + place * ROW_HEIGHT))
        ImageDraw.Draw(picture).text((4, HEADER + place * ROW_HEIGHT + 28), f"step {step:,}", "black")
    picture.save(Path(__file__).with_name("heads.png"), optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [int(step) for step in sys.argv[3:]])
