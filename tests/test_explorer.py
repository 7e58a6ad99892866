"""The explorer is one file, shows what the network attended to in any image, and asks nobody for anything."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Page
from tests.map_runs import Seen, record
from tests.references import tiny_vit
from tests.view import View, received, token
from vit.inspection.explorer import explorer_page
from vit.inspection.page import page as html_page

MARKUP = "<img src=x onerror=window.hurt=1>.jpg"
TITLES = ["cat.jpg", MARKUP, "</script><script>window.hurt=1</script>", "ウサギ (1).png"]
CLASSES = ("ant", "<b>bee</b>", "<script>window.hurt=1</script>", "犬", "eel")


@pytest.fixture(scope="module")
def seen() -> Seen:
    return record(tiny_vit(pool="cls", registers=1), TITLES, step=20, classes=CLASSES)


@pytest.fixture(scope="module")
def file(seen: Seen, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("太郎 & a=b #1") / "explorer.html"
    place.write_bytes(explorer_page("</title><b>a run</b>", seen[2], step=20))
    return place


@pytest.fixture
def explorer(page: Page, file: Path, seen: Seen) -> Iterator[View]:
    """Afterwards the console must have stayed silent, no host been asked, and no markup come alive."""
    yield View(page, file.as_uri() + "#", {20: seen})
    assert not page.errors
    assert not page.hosts
    assert page.run("window.hurt") is None


def test_hovering_shows_where_a_patch_attends_and_leaving_the_readout(explorer: View) -> None:
    explorer.open("layer=1", "head=2")
    explorer.assert_shows("Layer 1, head 2: the readout of cat.jpg", received(explorer, 20, 1, 2, None))
    explorer.page.mouse(*explorer.spot(2, 3))
    explorer.assert_shows("patch row 2, column 3 of cat.jpg", received(explorer, 20, 1, 2, token(2, 3)))
    explorer.page.mouse(1, 1)
    explorer.caption("the readout of cat.jpg")


def test_arrow_keys_move_and_escape_leaves(explorer: View) -> None:
    explorer.open("layer=2", "head=1")
    explorer.focus(".stage")
    explorer.page.press("ArrowUp", "ArrowUp", "ArrowLeft")
    explorer.assert_shows("patch row 2, column 2 of cat.jpg", received(explorer, 20, 2, 1, token(2, 2)))
    assert "patch=2%2C2" in explorer.state()
    explorer.page.press("Escape")
    explorer.caption("the readout of cat.jpg")


@pytest.mark.parametrize("head", ["3", "mean", "rollout", "relevance"])
def test_heads_and_what_joins_them(explorer: View, head: str) -> None:
    explorer.open("layer=1", "patch=3,2")
    explorer.choose("Head", head)
    explorer.assert_shows("patch row 3, column 2 of cat.jpg", received(explorer, 20, 1, head, token(3, 2)))


def test_two_panes_begin_with_the_attention_and_the_relevance(explorer: View) -> None:
    explorer.open("layer=2", "head=1")
    explorer.click(".choices input")
    explorer.assert_shows("Relevance: the readout of cat.jpg", received(explorer, 20, 2, "relevance", None), pane=1)
    explorer.choose("Head", "4", pane=1)
    explorer.page.mouse(*explorer.spot(1, 2))
    for pane, head in enumerate((1, 4)):
        said = f"Layer 2, head {head}: patch row 1, column 2 of cat.jpg"
        explorer.assert_shows(said, received(explorer, 20, 2, head, token(1, 2)), pane)


def test_all_layers_and_heads_open_at_a_click(explorer: View) -> None:
    explorer.open()
    explorer.page.wait("document.querySelectorAll('.cells button').length === 2 * (4 + 1)")
    explorer.click(".cells button:nth-of-type(3)")
    explorer.assert_shows("Layer 1, head 3: the readout of cat.jpg", received(explorer, 20, 1, 3, None))


def test_a_link_restores_what_was_seen(explorer: View) -> None:
    explorer.open("layer=1", "image=4")
    explorer.choose("Head", "2")
    before = explorer.caption("Layer 1, head 2: the readout of ウサギ (1).png")
    link = explorer.page.run("location.href")
    explorer.open()
    explorer.page.open(link)
    assert explorer.caption("Layer 1, head 2") == before


def test_names_of_files_and_classes_are_text(explorer: View, seen: Seen) -> None:
    for number, title in enumerate(TITLES, start=1):
        explorer.open(f"image={number}")
        explorer.caption(f"the readout of {title}")
        found = explorer.page.run("document.querySelector('.found').textContent")
        shares = seen[0].logits[number - 1].detach().softmax(dim=0)
        names = [CLASSES[label] for label in shares.argsort(descending=True)]
        assert found.startswith(f"Found: {names[0]} {100 * float(shares.max()):.0f} %, {names[1]} ")
        assert all(name in found for name in names)
    assert explorer.page.run("document.title") == "Attention of </title><b>a run</b>"
    assert explorer.page.run("document.querySelectorAll('img, .images b, .found b').length") == 0
    labels = explorer.page.wait(
        "(l => l.length && l.map(x => x.title))([...document.querySelectorAll('.images label')])"
    )
    assert labels == TITLES


def test_no_other_script_runs_and_nothing_is_fetched(explorer: View) -> None:
    explorer.open()
    explorer.page.run("document.body.insertAdjacentHTML('beforeend', '<img src=data:, onerror=\"window.hurt = 1\">')")
    explorer.page.run(
        "void fetch('https://example.org').catch(() => (window.refused = true)); "
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hurt = 1'}))"
    )
    explorer.page.wait("window.refused")
    assert len(explorer.page.errors) >= 2  # the policy's own complaints
    assert all("Content Security Policy" in error or "data:," in error for error in explorer.page.errors)
    explorer.page.errors.clear()


def test_the_file_needs_no_other(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    page = re.sub(r'(?s)<script type="application/json".*?</script>', "", text)
    assert not re.search(r"(?i)https?:|//[a-z]+\.|@import|url\(|\bimport ", page)


def test_a_page_holds_its_data_whatever_is_in_it() -> None:
    data = {"</script>": ["<!--", "ウサギ", "\u2028", "\udce9"]}
    text = html_page("a < b", "<p>x</p>", data=data, script="let a = 1 < 2;", styles="p > b {}").decode()
    (found,) = re.findall(r'(?s)<script type="application/json" id="data">(.*?)</script>', text)
    assert json.loads(found) == data
    assert "<title>a &lt; b</title>" in text


@pytest.mark.parametrize("wrong", [{"script": "'</SCRIPT>'"}, {"styles": "</style>"}, {"script": "'<!--'"}])
def test_a_script_that_would_end_early_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="a browser would stop"):
        html_page("title", "", **wrong)
