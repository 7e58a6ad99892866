"""One run, one folder."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from vit.runs.cluster import launcher, word_of_the_first
from vit.settings import UserError, show

LONGEST = 100  # characters of a name
UNSAID = {"runs", "resume", "init_from", "device", "devices", "workers", "data.root", "data.url", "compile"}


def run_name(changed: Mapping[str, object], now: float) -> str:
    """When the run began and what was changed, of letters, digits and `-_.` only: 2026-11-30_14-03-12_heads-8."""
    name = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now))
    for key, value in changed.items():
        part = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"_{key}-{show(value)}").rstrip("-.")
        if key not in UNSAID and len(name + part) <= LONGEST:
            name += part
    return name


def claim_folder(parent: Path, changed: Mapping[str, object]) -> Path:
    """Make a new folder for a run; two runs never get the same one. Raises UserError if none can be made."""
    name = run_name(changed, time.time())
    parent = parent.expanduser()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):
            folder = parent / (name if attempt == 1 else f"{name}_{attempt}")
            try:
                folder.mkdir()  # fails if it is there: the claim
                return folder.resolve()
            except FileExistsError:
                continue
    except OSError as error:
        raise UserError(f"runs={parent}: no run folder can be made there ({error.strerror})") from error
    raise UserError(f"runs={parent}: a thousand runs of this second are there already")


def lock_folder(folder: Path) -> FileLock:
    """Keep other processes from training in the folder while the lock lives. Raises UserError if one already does."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"another process is training in {folder}") from None
    return lock


def is_leader() -> bool:
    """False in a process that a leader, or a launcher beside it, has started for a further device."""
    if (environment := launcher()) is not None:
        return environment.global_rank() == 0
    return "VIT_RUN_FOLDER" not in os.environ or os.environ.get("LOCAL_RANK", "0") == "0"


def shared_folder(parent: Path, changed: Mapping[str, object]) -> Path:
    """The same for every process of a run on several devices: the first claims it, the others are told."""
    if (environment := launcher()) is not None:
        return Path(word_of_the_first(environment, lambda: str(claim_folder(parent, changed))))
    if not is_leader():
        return Path(os.environ["VIT_RUN_FOLDER"])
    folder = claim_folder(parent, changed)
    os.environ["VIT_RUN_FOLDER"] = str(folder)
    return folder
