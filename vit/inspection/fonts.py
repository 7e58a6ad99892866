"""Fonts for names in any script, as far as this machine has one."""

import functools
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.font_manager import findSystemFonts
from matplotlib.ft2font import FT2Font
from PIL import ImageFont

SIZE = 10  # pixels
BLANK = ("lastresort", "adobeblank")  # fonts that claim every character and draw none of them
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def font_of(text: str) -> Font:
    """One that has all characters of a text or, where there is none, Pillow's own, which has those of ASCII."""
    file = None if text.isascii() else font_file(text)
    return _opened(file)


@functools.cache
def font_file(text: str) -> str | None:
    """matplotlib's own font if it has all characters of a text, else one of this machine; None where there is none."""
    needed = {ord(letter) for letter in text if not letter.isspace()}
    own = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return next((file for file in (str(own), *_system_fonts()) if needed <= _characters(file)), None)


def fitting(text: str, width: float) -> str:
    """As much of a text, in one line, as the width in pixels takes."""
    text = text.replace("\n", " ")
    font = font_of(text)
    while font.getlength(text) > width:
        text = text[:-1]
    return text


def drawable(names: Sequence[str], say: Callable[[str], None]) -> tuple[str, ...]:
    """The names of classes as pictures can write them; says it if a font is missing for some.

    These become the class's number, counted from 0, and what of the name is ASCII.
    """
    lost = [not name.isascii() and font_file(name) is None for name in names]
    if any(lost):
        told = [f"{name} is class {k}" for k, name in enumerate(names) if lost[k]]
        more = ", …" if len(told) > 5 else ""
        say(f"no font for the pictures: there {', '.join(told[:5])}{more}; the Attention tab shows the names")
    return tuple(_spelled(name, k) if lost[k] else name for k, name in enumerate(names))


def _spelled(name: str, number: int) -> str:
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return " ".join([f"class {number}", *letters.split()])


@functools.cache
def _opened(file: str | None) -> Font:
    return ImageFont.load_default(SIZE) if file is None else ImageFont.truetype(file, SIZE)


@functools.cache
def _system_fonts() -> list[str]:
    files = sorted(map(str, findSystemFonts()))
    return [file for file in files if not Path(file).stem.lower().replace("-", "").startswith(BLANK)]


@functools.cache
def _characters(file: str) -> frozenset[int]:
    try:
        font = FT2Font(file)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError):  # a broken file, or one of pictures
        return frozenset()
