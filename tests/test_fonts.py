"""Names in any script: a font that has them, or a name that can be read, and never boxes."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest

from vit.inspection import fonts
from vit.inspection.fonts import drawable, fitting, font_file, font_of
from vit.inspection.pictures import sheet

CELLS = [[np.zeros((64, 64, 3), np.uint8)]]


@pytest.fixture
def no_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has none of its own."""
    monkeypatch.setattr(fonts, "_system_fonts", list)
    font_file.cache_clear()
    yield
    font_file.cache_clear()


@pytest.mark.usefixtures("no_fonts")
def test_names_without_a_font_become_numbers_and_it_is_said_once() -> None:
    said: list[str] = []
    assert drawable(["cat", "ウサギ", "Übergröße", "猫 2 é"], said.append) == (
        "cat",
        "class 1",
        "Übergröße",
        "class 3 2 e",
    )
    assert said == [
        "no font for the pictures: there ウサギ is class 1, 猫 2 é is class 3; the Attention tab shows the names"
    ]
    drawable(["cat", "Жук"], said.append)
    assert len(said) == 1


def test_a_font_of_the_machine_is_taken_if_it_has_all_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    files = [str(folder / name) for name in ("LICENSE_DEJAVU", "cmr10.ttf", "STIXGeneral.ttf")]
    monkeypatch.setattr(fonts, "findSystemFonts", lambda: [str(folder / "LastResortHE-Regular.ttf"), *files])
    fonts._system_fonts.cache_clear()
    font_file.cache_clear()
    try:
        assert font_file("ウサギ") is None  # the first file claims to have it, and draws boxes
        letter = chr(max(fonts._characters(files[2]) - fonts._characters(str(folder / "DejaVuSans.ttf"))))
        assert font_file(letter + "a") == files[2]
        said: list[str] = []
        assert drawable([letter], said.append) == (letter,)
        assert not said
    finally:
        fonts._system_fonts.cache_clear()
        font_file.cache_clear()


@pytest.mark.parametrize("name", ["Übergröße", "Жук", "λ"])
def test_letters_beyond_ascii_are_drawn_and_no_boxes(name: str) -> None:
    font, box = font_of(name), bytes(font_of(name).getmask("\uffff"))
    assert all(bytes(font.getmask(letter)) != box for letter in name)
    drawn, other = (sheet(CELLS, [[text]], above=[""]) for text in (name, "\uffff" * len(name)))
    assert not np.array_equal(drawn, other)


def test_what_is_too_long_is_cut_where_the_cell_ends() -> None:
    assert fitting("cat", 60) == "cat"
    for text in ("W" * 50, "i" * 50, "Ж" * 50):
        cut = fitting(text, 60)
        assert text.startswith(cut)
        assert 50 < font_of(text).getlength(cut) <= 60
