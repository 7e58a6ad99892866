"""Ways to run the two commands, within this process or in one of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
TINY = ["image_size=8", "dim=16", "depth=2", "heads=2", "batch_size=6", "crop=2", "validation=16", "device=cpu"]


def call(program: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    from vit import command_line

    monkeypatch.setattr(sys, "argv", [str(REPOSITORY / "scripts" / f"{program}.py"), *words])
    try:
        getattr(command_line, program)(REPOSITORY / "configs")
    except SystemExit as left:
        return int(left.code or 0)
    return 0


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
