"""Ways to run the two commands, within this process or in one of their own."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
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


def run_apart(words: list[str], *, before: str = "") -> subprocess.CompletedProcess[str]:
    """As `start`, until it ends; the process is forked from one that has imported torch, which takes seconds."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([__name__, "vit.command_line", "vit.runs.train"])
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("out", "err")]
        process = forks.Process(target=_train, args=(words, before, *said))
        process.start()
        process.join()
        out, err = (file.read_text() for file in said)
    assert process.exitcode is not None
    return subprocess.CompletedProcess(words, process.exitcode, out, err)


def _train(words: list[str], before: str, out: Path, err: Path) -> None:
    from vit.command_line import train

    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["train.py", *words]
    exec(before, {})
    train(REPOSITORY / "configs")
