"""Going on with a run where its last finished epoch ended."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.settings import TrainSettings, UserError, show
from vit.training.checkpoint import LAST, WEIGHTS_ONLY, Facts, find_checkpoint, read_checkpoint

SETTINGS = "settings.json"


@dataclass(frozen=True)
class Resumed:
    """Where the earlier run stands. Without a finished epoch there is no checkpoint, and it begins again."""

    folder: Path
    command: str  # that began it
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
    if not place.exists():
        raise UserError(f"resume={place} is not there")
    if place.suffix == WEIGHTS_ONLY:
        raise UserError(f"resume={place} has weights only; resume={place.parent} goes on with a run")
    folder = (place if place.is_dir() else place.parent).resolve()
    if links := [path for path in folder.rglob("*") if path.is_symlink()]:
        raise UserError(f"{links[0]} is a link, through which a run that is resumed would write elsewhere: remove it")
    command, own = _read_settings(folder)
    resumed = Resumed(folder, command, None, None)
    if place.is_file() or (folder / LAST).exists():
        checkpoint = find_checkpoint(place)
        facts = read_checkpoint(checkpoint)[1]
        resumed = Resumed(folder, command, checkpoint, facts)
        own = {**facts.settings, "data.root": own.get("data.root")}  # places are kept in the run folder only
    for key, value in typed.items():
        if key in TrainSettings.resumable():
            own[key] = value
        elif own.get(key) != value:
            raise UserError(
                f"{key}={show(value)} contradicts the run, which has {key}={show(own.get(key))}; leave it out to resume"
            )
    settings = TrainSettings.from_values({**own, "resume": None})
    if settings.epochs < resumed.epoch:
        raise UserError(f"epochs={settings.epochs}, but {resumed.epoch} are finished already")
    return settings, resumed


def _read_settings(folder: Path) -> tuple[str, dict[str, Any]]:
    """The command and the settings, but for an address to fetch from: that must be typed."""
    path = folder / SETTINGS
    if not path.is_file():  # a pipe, too, would be waited for without end
        raise UserError(f"resume={folder} is no run folder: it has no {SETTINGS}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return str(content["command"]), {**content["settings"], "data.url": None}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
