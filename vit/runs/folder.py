"""One run, one folder."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from vit.settings import UserError, show

LONGEST = 100  # characters of a name
UNSAID = {"runs", "resume", "device", "devices", "workers", "data.root", "data.url", "compile"}


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


def shared_folder(parent: Path, changed: Mapping[str, object]) -> Path:
    """The same for every process of a run on several devices: the first claims it, those that it starts are told."""
    told = os.environ.get("VIT_RUN_FOLDER")
    if told is not None and int(os.environ.get("LOCAL_RANK", 0)) > 0:
        return Path(told)
    folder = claim_folder(parent, changed)
    os.environ["VIT_RUN_FOLDER"] = str(folder)
    return folder
