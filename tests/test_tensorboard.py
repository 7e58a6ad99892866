"""In a real browser, TensorBoard's own tabs show what a run wrote, and its Attention tab too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Page, tensorboard
from tests.running import TINY, call, only_run

# All elements of a page, those in shadow trees and in frames too.
ELEMENTS = """(function all(root) {
    return [...root.querySelectorAll('*')].flatMap((element) => [
        element,
        ...(element.shadowRoot ? all(element.shadowRoot) : []),
        ...(element.contentDocument ? all(element.contentDocument) : []),
    ]);
})(document)"""
TEXT = f"""{ELEMENTS}.filter((element) => !['SCRIPT', 'STYLE'].includes(element.tagName))
    .flatMap((element) => [...element.childNodes]).filter((node) => node.nodeType === 3)
    .map((node) => node.textContent.trim()).filter(Boolean).join(' | ')"""
PICTURES = f"""{ELEMENTS}.filter((element) => element.tagName === 'IMG' && element.src.includes('individualImage'))
    .map((element) => element.naturalWidth)"""


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    words = ["data=folder", f"data.root={tiny}", f"runs={runs}", *TINY, "epochs=2", "seed=7"]
    with pytest.MonkeyPatch.context() as patch:
        assert call("train", words, patch) == 0
    return only_run(runs)


@pytest.fixture(scope="module")
def host(run: Path) -> Iterator[str]:
    with tensorboard(run.parent) as address:
        yield address


@pytest.fixture
def shown(page: Page, host: str) -> Iterator[Page]:
    """A page of TensorBoard, whose console must have stayed silent, and which asked no other host."""
    yield page
    assert not page.errors
    assert page.hosts == {host.split("/")[2]}


def wait_for(page: Page, *words: str) -> str:
    for word in words:
        page.wait(f"{TEXT}.includes({word!r})")
    return page.run(TEXT)


def test_the_images_tab_shows_the_pictures_at_their_steps(shown: Page, host: str) -> None:
    shown.open(f"{host}#images")
    text = wait_for(shown, "attention/layer_01", "attention/layer_02", "attention/methods", "data/first_batch")
    assert "attention/layer_01 | 16 |" in text.replace("step | ", "")  # the newest
    shown.wait(f"(p => p.length >= 5 && p.every(width => width > 100))({PICTURES})")


def test_the_scalars_tab_shows_the_curves(shown: Page, host: str, run: Path) -> None:
    shown.open(f"{host}#scalars")
    wait_for(shown, "attention_distance/layer_01_head_02", run.name)
    shown.open(f"{host}#scalars&tagFilter=accuracy|loss")
    wait_for(shown, "train/loss", "validation/accuracy", "test/accuracy")


def test_the_text_tab_says_how_to_read_them(shown: Page, host: str) -> None:
    shown.open(f"{host}#text")
    wait_for(shown, "how_to_read", "0: one token; 1: all evenly", "Query by key, as in the textbook")


def test_the_hparams_tab_shows_settings_beside_results(shown: Page, host: str) -> None:
    shown.open(f"{host}#hparams")
    wait_for(shown, "patch_size", "muon_lr", "seed", "validation/accuracy", "test/accuracy")


def test_the_projector_shows_the_features(shown: Page, host: str) -> None:
    shown.open(f"{host}#projector")
    wait_for(shown, "features:00016", "16x16", "2  colors")


def test_the_attention_tab_shows_the_maps(shown: Page, host: str, run: Path) -> None:
    shown.open(f"{host}#attention")
    text = wait_for(shown, "the readout of cat attends most to", "Found:")
    assert "layer 2" in text
    assert run.name in text
