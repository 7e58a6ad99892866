"""The tutorial says what its code does, in both languages, and its notebook runs."""

import ast
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.running import REPOSITORY
from tests.test_mistakes import MISTAKES
from tests.tutorial_pages import DOCS, PAGES, code_of, run

NOTEBOOK = DOCS / "tutorial.ipynb"
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)\)")


class Tutorial(NamedTuple):
    """A page, and what came of running it."""

    text: str
    printed: str  # the page again, with what its code printed now
    names: dict[str, Any]
    drawn: set[str]


@pytest.fixture(scope="module", params=PAGES)
def tutorial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tutorial:
    text = (DOCS / request.param).read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        printed, names = run(text)
    return Tutorial(text, printed, names, {file.name for file in folder.iterdir()})


def rows_of(text: str, title: str) -> list[list[str]]:
    """The cells of the table that begins with this cell."""
    lines = text[text.index(f"| {title} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def table_of_names(text: str) -> list[list[str]]:
    return rows_of(text, "formula" if "| formula |" in text else "数式")


def attributes(node: ast.ClassDef) -> set[str]:
    """Methods of a class, and what its methods set on self."""
    methods = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)}
    stored = {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self"
    }
    return methods | stored


def test_its_code_prints_what_the_page_says(tutorial: Tutorial) -> None:
    assert tutorial.printed == tutorial.text, "run python -m tests.tutorial_pages"


def test_it_draws_the_pictures_that_it_shows(tutorial: Tutorial) -> None:
    shown = {link for link in LINK.findall(tutorial.text) if link.endswith(".png")}
    assert tutorial.drawn == shown
    assert len(shown) == 3


def test_attention_in_numpy_equals_this_codes(tutorial: Tutorial) -> None:
    names = tutorial.names
    output, maps = names["expected"][0].numpy(), names["expected_maps"][0].numpy()
    assert np.abs(names["out"] - output).max() < 1e-5
    assert np.abs(names["attention"] - maps).max() < 1e-5
    assert output.std() > 0.1  # not zeros, as a fresh network's would be
    assert maps.max() > 0.2  # nor even


def test_each_row_of_the_table_has_its_shape_and_its_place_in_the_code(tutorial: Tutorial) -> None:
    sizes = {"B": 10, "T": 64, "D": 96, "h": 8, "D′": 12, "L": 4, "K": 10, "rows": 8, "columns": 8}
    rows = table_of_names(tutorial.text)
    assert len(rows) == 15
    for _formula, variable, shape, places in rows:
        value = tutorial.names[variable.strip("`")]
        if shape:
            assert tuple(value.shape) == tuple(sizes[letter] for letter in shape.strip("()").split(",")), variable
        named = re.findall(r"\[`([\w.]+)`\]\(([^)]+)\)", places)
        assert named
        for name, link in named:
            found = ast.parse((DOCS / link).read_text(encoding="utf-8")).body
            owner, _, part = name.partition(".")
            (node,) = [n for n in found if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == owner]
            assert not part or (isinstance(node, ast.ClassDef) and part in attributes(node)), name


def test_each_slip_is_one_that_the_tests_reject(tutorial: Tutorial) -> None:
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", tutorial.text[tutorial.text.index("## 10.") :]))
    classes = {mistake.__name__ for mistake in MISTAKES}
    assert classes - named == {"WrongInForwardOnly"}  # no slip of a tutorial
    for test, file in (
        ("test_V2_V3_V4_V5_parity_check_rejects", "test_mistakes.py"),
        ("test_maps_are_those_before_dropout", "test_model.py"),
    ):
        assert f"`{test}`" in tutorial.text
        assert f"def {test}(" in (REPOSITORY / "tests" / file).read_text()


def test_what_it_says_of_tensorboard_is_logged(tutorial: Tutorial) -> None:
    section = tutorial.text[tutorial.text.index("## 11.") : tutorial.text.index("## 12.")]
    logger = (REPOSITORY / "vit" / "inspection" / "attention_logger.py").read_text()
    tags = re.findall(r"`((?:attention|matrix|head)[_/]\w+)`", section)
    assert len(tags) == 5
    for tag in tags:
        assert tag.removesuffix("01") in logger


def test_links_lead_somewhere(tutorial: Tutorial) -> None:
    links = [link for link in LINK.findall(tutorial.text) if "://" not in link]
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_both_pages_have_the_same_code_and_the_same_words() -> None:
    """But for comments."""
    english, japanese = ((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    codes = [[ast.dump(ast.parse(block)) for block in code_of(page)] for page in (english, japanese)]
    assert codes[0] == codes[1]
    assert len(codes[0]) > 15
    for ours, theirs in zip(table_of_names(english), table_of_names(japanese), strict=True):
        assert ours[1:3] == theirs[1:3]
        assert LINK.findall(ours[3]) == LINK.findall(theirs[3])
    words = [row[:2] for row in rows_of(english, "English")]
    assert words == [row[1::-1] for row in rows_of(japanese, "日本語")]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def test_the_notebook_is_whole_and_holds_no_outputs() -> None:
    """The rules of nbformat 4.5, without the package."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"].keys() == {"display_name", "language", "name"}
    identities = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identities)) == len(identities)
    for cell in notebook["cells"]:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert isinstance(cell["metadata"], dict)
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        if cell["cell_type"] == "code":
            assert cell.keys() == {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
        else:
            assert cell["cell_type"] == "markdown"
            assert cell.keys() == {"cell_type", "id", "metadata", "source"}


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """On fewer images: the cell tagged "parameters" is followed by other values, as papermill would do it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    tagged = 0
    for number, cell in enumerate(cells, start=1):
        exec(compile(source(cell), f"cell {number}", "exec"), names)
        if "parameters" in cell["metadata"].get("tags", []):
            tagged += 1
            assert names.keys() >= {"train_images", "epochs", "heads"}
            names |= {"train_images": 96, "epochs": 1}
    assert tagged == 1
    assert names["maps"].shape == (10, 8, 8, 8)  # ten images, eight heads, 8 × 8 patches
    assert names["sheet"].ndim == 3
    assert np.abs(names["attention"] - names["seen"].maps[-1][0].numpy()).max() < 1e-5
    assert not list(tmp_path.iterdir())
    assert "%" in capsys.readouterr().out
