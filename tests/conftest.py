"""A data set of 64 small images, and ways to run the two commands within this process or in one of their own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: the same sums in every process, and two can run at once

REPOSITORY = Path(__file__).resolve().parent.parent
TINY = ["image_size=8", "dim=16", "depth=2", "heads=2", "batch_size=6", "crop=2", "validation=16", "device=cpu"]


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


@pytest.fixture
def words(tiny: Path, tmp_path: Path) -> list[str]:
    """The words of a training run of about a second, into tmp_path/runs."""
    return ["data=folder", f"data.root={tiny}", f"runs={tmp_path / 'runs'}", *TINY]


def _call(program: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    from vit import command_line

    monkeypatch.setattr(sys, "argv", [str(REPOSITORY / "scripts" / f"{program}.py"), *words])
    try:
        getattr(command_line, program)(REPOSITORY / "configs")
    except SystemExit as left:
        return int(left.code or 0)
    return 0


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], int]:
    """scripts/train.py within this process: words → exit status."""
    return lambda words: _call("train", words, monkeypatch)


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], int]:
    """scripts/evaluate.py within this process: words → exit status."""
    return lambda words: _call("evaluate", words, monkeypatch)


def only_run(parent: Path) -> Path:
    """The one run folder in parent."""
    (folder,) = [place for place in parent.iterdir() if place.is_dir()]
    return folder


def start(words: list[str], *, before: str = "") -> subprocess.Popen:
    """scripts/train.py in a process of its own; `before` is code that it executes first, e.g. to die at a step."""
    code = f"""{before}
from pathlib import Path
from vit.command_line import train
train(Path({str(REPOSITORY / "configs")!r}))
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "waited in vain"
        time.sleep(0.02)
