"""Kills at moments of every kind, several in a row for each run, which must then equal the uninterrupted one."""

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults.training import EPOCHS, SAVES, STEPS, VALIDATIONS, Bench, Ended, Moment, new_run
from tests.running import only_run
from tests.same_runs import curves, differences
from vit.settings import UserError
from vit.training.checkpoint import BEST, read_checkpoint
from vit.training.logger import METRICS, read_metrics

ANY_TIME = "any time"
IN_A_ROW = 3
# One after the other, so that each kind meets each signal.
MOMENTS = ("half a file", "step", ANY_TIME, "a whole file", "validation", "a renamed file", "test")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
STATUS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}


@dataclass(frozen=True)
class Kill:
    """A signal in a moment, and how many epochs were saved then."""

    signal: signal.Signals
    moment: str
    saved: int
    lost: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.signal.name:8}{self.moment:20}{self.saved} of {EPOCHS} epochs saved"


def kill_often(bench: Bench, number: int, seed: int) -> Iterator[tuple[list[Kill], list[str]]]:
    """Runs with the kills that they went through, and what was lost in the end."""
    draw = random.Random(seed)
    kinds = zip(itertools.cycle(MOMENTS), itertools.cycle(SIGNALS), strict=False)
    done = 0
    while done < number:
        chain = [next(kinds) for _ in range(min(IN_A_ROW, number - done))]
        chain.sort(key=lambda kind: kind[0] == "test")  # after which no other moment comes
        kills, lost = interrupted_run(bench, chain, draw)
        done += len(kills)
        yield kills, lost


def interrupted_run(
    bench: Bench, chain: list[tuple[str, signal.Signals]], draw: random.Random
) -> tuple[list[Kill], list[str]]:
    reference = bench.reference
    runs = bench.place()
    words, run = new_run(runs), None
    kills: list[Kill] = []
    for name, signum in chain:
        facts = run and bench.stands_at(run)
        left = EPOCHS - (facts.epoch if facts else 0)
        if left == 0 and name != "test":
            continue
        often = {"step": STEPS * left, "validation": VALIDATIONS * left} | dict.fromkeys(SAVES, 2 * left)
        any_time = name == ANY_TIME
        moment = Moment("step") if any_time else Moment(name, draw.randint(1, often.get(name, 1)))
        training = bench.start(words, until=moment, pause=0 if any_time else 0.3)
        in_time = training.reached()
        if any_time:
            time.sleep(draw.uniform(0, 0.8 * bench.seconds))
        if training.running():
            training.send(signum)
        ended = training.wait()
        run = only_run(runs)
        words = [f"resume={run}"]
        if not in_time or (any_time and ended.status == 0):
            continue  # it was quicker
        kills.append(kill_of(bench, run, signum, name if any_time else f"{name} {moment.nth}", ended))
    assert run is not None
    ended = bench.train([f"resume={run}"])
    lost = [f"{kill}: {what}" for kill in kills for what in kill.lost]
    if ended.status != 0:
        return kills, [*lost, f"it cannot be resumed: {ended.err.strip()[-300:]}"]
    parts = [f"{file.name} is left behind" for file in run.rglob("*.part")]
    return kills, lost + differences(reference, run) + parts


def kill_of(bench: Bench, run: Path, signum: signal.Signals, moment: str, ended: Ended) -> Kill:
    """What the killed run must hold already, before it is resumed."""
    lost = []
    if ended.status not in (STATUS[signum], -signum if moment == ANY_TIME else STATUS[signum]):
        lost.append(f"exit status {ended.status}")
    if "Traceback" in ended.err:
        lost.append("a traceback")
    if signum != signal.SIGKILL and "to go on" not in ended.out and ended.status > 0:
        lost.append("no word on how to go on")
    try:
        facts = bench.stands_at(run)
        rows = read_metrics(run / METRICS)
        if (run / BEST).exists():
            read_checkpoint(run / BEST)
    except UserError as error:
        return Kill(signum, moment, 0, (*lost, str(error)))
    epoch, step = (facts.epoch, facts.step) if facts else (0, 0)
    if epoch < len(rows) - 1:
        lost.append("more than one epoch")
    points = [at for at, _ in curves(run).get("validation/accuracy", [])]
    if points[:epoch] != [STEPS * (i + 1) for i in range(epoch)] or step != STEPS * epoch:
        lost.append("points of finished epochs in the event files")
    return Kill(signum, moment, epoch, tuple(lost))


def summary(kills: list[Kill]) -> str:
    """In words: how many, by which signals, in which moments."""
    signals = Counter(kill.signal.name for kill in kills)
    moments = Counter(moment_kind(kill.moment) for kill in kills)
    words = [f"{count} {what}" for counts in (signals, moments) for what, count in counts.most_common()]
    return f"{len(kills)} kills ({', '.join(words)})"


def moment_kind(moment: str) -> str:
    name = moment.rstrip("0123456789 ")
    return {"step": "within a step", "validation": "in validation", "test": "in the final test"}.get(
        name, "within a save" if name in SAVES else f"at {name}"
    )
