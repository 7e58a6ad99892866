"""The machine: its description, its allocator, and the third-party messages that no user needs."""

import ctypes
import logging
import os
import platform
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vit.settings import UserError

# Messages of a default run that ask nothing of its user. Narrow, and all here.
UNNEEDED = (
    ("ignore", r".*does not have many workers.*", UserWarning),  # batches come from memory
    ("ignore", r".*isinstance\(treespec, LeafSpec\).*", FutureWarning),
    ("ignore", r".*LeafSpec.*is deprecated.*", FutureWarning),
    ("ignore", r".*buffer is not writable.*", UserWarning),  # torch 2.9 reading an exported program
    ("ignore", r".*smaller than the logging interval.*", UserWarning),  # this project's logger has its own
)


# A class or a file may be named so that its name would command the terminal.
CONTROL_CHARACTERS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")


class _PlainConsole(Console):
    def print(self, *things: Any, **options: Any) -> None:
        texts = (thing.translate(CONTROL_CHARACTERS) if isinstance(thing, str) else thing for thing in things)
        super().print(*texts, **options)


def plain_console() -> Console:
    """Prints what it is given: a path with brackets is no markup, and long lines are left to the terminal."""
    return _PlainConsole(markup=False, emoji=False, highlight=False, soft_wrap=True)


def silence_unneeded() -> None:
    """Keep hardware summaries, advertisements and the warnings above out of a default run."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    threading.excepthook = _of_other_threads
    for action, message, category in UNNEEDED:
        warnings.filterwarnings(action, message, category)  # type: ignore[arg-type]


def _of_other_threads(error: threading.ExceptHookArgs) -> None:
    """TensorBoard's writer hands a full disk on to the main thread, which says so, and need not say so itself."""
    if type(error.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(error)


def tune_allocator() -> None:
    """On glibc, keep freed blocks instead of handing them back on every step.

    351 → 422 images a second in training (dim 192, depth 6, batch 256, bf16, two cores of an AMD EPYC with
    AVX512-bf16). Must come before the first large tensor. A no-op elsewhere.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # names of malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, mebibytes in ((mmap_threshold, 1024), (trim_threshold, 2047), (top_pad, 256)):
        mallopt(parameter, mebibytes * 2**20)


def hardware(device: str) -> str:
    """In a few words: 'AMD EPYC, 2 threads'."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}" if device == "cpu" else _processor()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


SHORTAGE = ("out of memory", "not enough memory", "can't allocate memory", "alloc_failed")  # in words of torch


@contextmanager
def advise_on_memory(advice: str) -> Iterator[None]:
    """Turn a shortage of memory, of whatever device, into a UserError with advice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in SHORTAGE):
            raise UserError(f"out of memory: {advice}") from error
        raise


def commit() -> str | None:
    """The commit of the code that runs, '+' behind it if files differ; None if it is not in a checkout."""

    def git(*words: str) -> str:
        environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
        options: dict = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "env": environment}
        return subprocess.run(["git", *words], check=True, timeout=10, **options).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # an installed copy may lie in somebody else's checkout
        return git("describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None
