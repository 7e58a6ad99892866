"""Going on with a run where its last finished epoch ended."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.settings import TrainSettings, UserError, show
from vit.training.checkpoint import LAST, Facts, find_checkpoint, read_checkpoint, read_facts, write_atomically

SETTINGS = "settings.json"
PLACES = ("data.root", "data.url", "runs", "resume")  # are never in a checkpoint


@dataclass(frozen=True)
class Resumed:
    """Where the earlier run stands. Without a finished epoch there is no checkpoint, and it begins again."""

    folder: Path
    checkpoint: Path | None
    facts: Facts | None

    @property
    def epoch(self) -> int:
        return self.facts.epoch if self.facts else 0

    @property
    def step(self) -> int:
        return self.facts.step if self.facts else 0


def resume(settings: TrainSettings, typed: Mapping[str, object]) -> tuple[TrainSettings, Resumed]:
    """The run's own settings, and where it stands.

    Of what was typed only keys that may change in a resumed run count; raises UserError if another contradicts the run.
    """
    assert settings.resume is not None
    place = Path(settings.resume).expanduser()
    folder = (place if place.is_dir() else place.parent).resolve()
    written = _read_settings(folder)
    resumed = Resumed(folder, None, None)
    if place.is_file() or (folder / LAST).exists():
        checkpoint = find_checkpoint(place)
        resumed = Resumed(folder, checkpoint, read_facts(read_checkpoint(checkpoint)))
        if checkpoint.name != LAST and not _is_whole(folder / LAST):
            write_atomically(folder / LAST, checkpoint.read_bytes())
    own: dict[str, Any] = dict(resumed.facts.settings if resumed.facts else written)
    own["data.root"] = written.get("data.root")  # kept in the run folder only
    for key, value in typed.items():
        if key in TrainSettings.resumable():
            own[key] = value
        elif own.get(key) != value:
            raise UserError(
                f"{key}={show(value)} contradicts the run, which has {key}={show(own.get(key))}; leave it out to resume"
            )
    return TrainSettings.from_values({**own, "resume": str(folder)}), resumed


def _is_whole(checkpoint: Path) -> bool:
    try:
        read_checkpoint(checkpoint)
    except UserError:
        return False
    return True


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return content
    except FileNotFoundError:
        raise UserError(f"resume={folder} is no run folder: it has no {SETTINGS}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error})") from error
    raise UserError(f"{path} is broken: it should hold one object of settings")
