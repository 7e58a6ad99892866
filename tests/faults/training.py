"""Real trainings, each in a process of its own, which is watched from here and may be killed at any moment.

A process is forked from this one, so that it need not load torch again: a training takes one second instead of five.
"""

import atexit
import io
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.running import REPOSITORY, only_run
from vit import command_line
from vit.data import datamodule
from vit.data.shapes import shapes
from vit.runs import train as runs_train
from vit.training import checkpoint
from vit.training.checkpoint import LAST, Facts, read_checkpoint
from vit.training.classifier import Classifier

EPOCHS, STEPS, VALIDATIONS = 3, 6, 2  # an epoch has 6 steps and 2 batches of validation
SETTINGS = (
    "data=shapes patch_size=8 dim=16 depth=1 heads=2 batch_size=12 validation=24 epochs=3 device=cpu "
    "ema=0.9 dropout=0.1 trivial_augment=true cutmix=1 runs={runs}"
)
PAUSE = 0.3  # seconds for which a process stays in the moment in which it is to be killed
PATIENCE = 120.0  # seconds after which a process counts as hanging
SAVED = (".ckpt", ".csv", "result.json")
SAVES = ("half a file", "a whole file", "a renamed file")


@dataclass(frozen=True)
class Moment:
    """The nth time that something happens in a process: 'step', 'validation', 'test', or one of SAVES."""

    name: str
    nth: int = 1


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, negative if a signal ended it, and what it printed."""

    status: int
    out: str
    err: str


@dataclass
class Training:
    """A process that trains."""

    pid: int
    pipe: int
    log: Path
    ended: Ended | None = None

    def reached(self) -> bool:
        """Wait until the process is in its moment; False if it ended before."""
        ready, _, _ = select.select([self.pipe], [], [], PATIENCE)
        return bool(ready) and os.read(self.pipe, 1) == b"!"

    def running(self) -> bool:
        """A process that has ended but was not waited for counts as running: a signal to it does nothing."""
        return self.ended is None

    def send(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def wait(self) -> Ended:
        """Until the process has ended, which must not take for ever."""
        deadline = time.monotonic() + PATIENCE
        while (found := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                deadline += PATIENCE
            time.sleep(0.005)
        os.close(self.pipe)
        out, err = ((self.log / name).read_text(errors="replace") for name in ("out", "err"))
        self.ended = Ended(os.waitstatus_to_exitcode(found[1]), out, err)
        return self.ended


@dataclass
class Bench:
    """Where runs are made, and the uninterrupted one that all others must equal. `plant` changes every process."""

    scratch: Path
    plant: Callable[[], None] = lambda: None
    made: Counter = field(default_factory=Counter)
    seconds: float = 0.0  # that the uninterrupted one took

    def __post_init__(self) -> None:
        small = shapes(train=STEPS * 12 + 24, test=24)
        datamodule.shapes = lambda: small  # type: ignore[attr-defined]

    def place(self, name: str = "runs") -> Path:
        """A new empty folder."""
        self.made[name] += 1
        folder = self.scratch / f"{name}_{self.made[name]}"
        folder.mkdir()
        return folder

    @cached_property
    def reference(self) -> Path:
        runs = self.place("reference")
        began = time.monotonic()
        ended = self.train(new_run(runs))
        assert ended.status == 0, ended.err
        self.seconds = time.monotonic() - began
        return only_run(runs)

    @cached_property
    def interrupted(self) -> Path:
        """A run that was killed in the third epoch."""
        return self.killed(Moment("step", 2 * STEPS + 3))

    def killed(self, moment: Moment) -> Path:
        training = self.start(new_run(runs := self.place()), until=moment)
        assert training.reached()
        training.send(signal.SIGKILL)
        training.wait()
        return only_run(runs)

    def train(self, words: Sequence[str], **options: Callable | Mapping[str, str]) -> Ended:
        """A training from beginning to end."""
        return self.start(words, **options).wait()  # type: ignore[arg-type]

    def start(
        self,
        words: Sequence[str],
        *,
        until: Moment | None = None,
        then: Callable[[], None] | None = None,
        pause: float = PAUSE,
        first: Callable[[], None] = lambda: None,
        environment: Mapping[str, str] | None = None,
    ) -> Training:
        """Fork a process that trains. In its moment it reports and pauses, or does what it is told to do then."""
        log = self.place("log")
        read, write = os.pipe()
        sys.stdout.flush(), sys.stderr.flush()
        pid = os.fork()
        if pid:
            os.close(write)
            return Training(pid, read, log)

        status = 70
        try:
            os.close(read)
            os.setsid()
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(log / name, os.O_WRONLY | os.O_CREAT), number)
            os.environ.update(environment or {})
            tempfile.tempdir = None  # so that a $TMPDIR given counts

            def report() -> None:
                os.write(write, b"!")
                time.sleep(pause)

            watch(until, then or report)
            self.plant()
            first()
            sys.argv = [str(REPOSITORY / "scripts" / "train.py"), *words]
            command_line.train(REPOSITORY / "configs")
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:  # as the interpreter would, but without this process's own clearing up
            atexit._run_exitfuncs()
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)

    def stands_at(self, run: Path) -> Facts | None:
        """What the run's last checkpoint says of itself; None if there is none yet."""
        return read_checkpoint(run / LAST)[1] if (run / LAST).exists() else None

    def copy(self, run: Path) -> Path:
        """The same run folder in another place."""
        return Path(shutil.copytree(run, self.place("copy") / run.name))


def new_run(runs: Path) -> list[str]:
    """The words of the training that all are compared with."""
    return SETTINGS.format(runs=runs).split()


def watch(moment: Moment | None, then: Callable[[], None]) -> None:
    """Have this process do something in a moment, by changes of the code around it and none within vit."""
    passed: Counter = Counter()

    def passing(name: str) -> None:
        passed[name] += 1
        if moment == Moment(name, passed[name]):
            then()

    def announced(name: str, function: Callable) -> Callable:
        def announcing(*arguments: object, **keywords: object) -> object:
            passing(name)
            return function(*arguments, **keywords)

        return announcing

    class SlowFile(io.BufferedWriter):
        def write(self, content: bytes | memoryview) -> int:  # type: ignore[override]
            half = len(content) // 2
            super().write(content[:half])
            self.flush()
            passing("half a file")
            return half + super().write(content[half:])

    def slow_open(path: Path, mode: str) -> io.BufferedIOBase:
        is_saved = str(path).removesuffix(".part").endswith(SAVED)
        return SlowFile(io.FileIO(path, mode.replace("b", ""))) if is_saved else open(path, mode)  # type: ignore[return-value]

    replace = os.replace

    def slow_replace(part: Path, path: Path) -> None:
        is_saved = str(path).endswith(SAVED)
        if is_saved:
            passing("a whole file")
        replace(part, path)
        if is_saved:
            passing("a renamed file")

    Classifier.training_step = announced("step", Classifier.training_step)  # type: ignore[method-assign]
    Classifier.validation_step = announced("validation", Classifier.validation_step)  # type: ignore[method-assign]
    runs_train.score = announced("test", runs_train.score)  # type: ignore[attr-defined]
    checkpoint.open = slow_open  # type: ignore[attr-defined]
    os.replace = slow_replace  # type: ignore[assignment]
