"""A data set of 64 small images, and the two commands as functions."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: the same sums in every process, and two can run at once

import numpy as np
import pytest
from PIL import Image

from tests.browser import CHROMIUM, Page
from tests.running import TINY, call, only_run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 training images (48 without validation: 8 steps of 6) and 16 test images of 8×8 noise around two greys."""
    root = tmp_path_factory.mktemp("tiny")
    draw = np.random.default_rng(0)
    for part, images in (("train", 32), ("test", 8)):
        for name, grey in (("cat", 110), ("dog", 140)):
            folder = root / part / name
            folder.mkdir(parents=True)
            for i in range(images):
                pixels = np.clip(grey + draw.integers(-100, 100, (8, 8, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def small_run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch and one layer, only to be read."""
    runs = tmp_path_factory.mktemp("small")
    words = ["data=folder", f"data.root={tiny}", f"runs={runs}", *TINY, "epochs=1", "depth=1"]
    with pytest.MonkeyPatch.context() as patch:
        assert call("train", words, patch) == 0
    return only_run(runs)


@pytest.fixture
def finished(small_run: Path, tmp_path: Path) -> Path:
    """A copy of that run, for the test to do with as it likes."""
    return Path(shutil.copytree(small_run, tmp_path / "runs" / small_run.name))


@pytest.fixture
def words(tiny: Path, tmp_path: Path) -> list[str]:
    """The words of a training run of about a second, into tmp_path/runs."""
    return ["data=folder", f"data.root={tiny}", f"runs={tmp_path / 'runs'}", *TINY]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], int]:
    """scripts/train.py within this process: words → exit status."""
    return lambda words: call("train", words, monkeypatch)


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], int]:
    """scripts/evaluate.py within this process: words → exit status."""
    return lambda words: call("evaluate", words, monkeypatch)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if not CHROMIUM and not os.environ.get("CI"):
        pytest.skip("there is no Chromium here")
    assert CHROMIUM, "Chromium is needed: on Debian the package chromium"
    page = Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture
def page(browser: Page) -> Page:
    """A headless Chromium's page, with nothing noted yet."""
    browser.open("about:blank")
    browser.mouse(0, 0)
    browser.errors.clear()
    browser.hosts.clear()
    return browser
