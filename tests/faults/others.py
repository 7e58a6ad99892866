"""Faults other than kills: what a training stands on breaks. Each returns what was lost, in words."""

import contextlib
import ctypes
import math
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from torch import Tensor

from tests.faults.training import Bench, Ended, Moment, Training, new_run
from tests.running import only_run
from tests.same_runs import differences
from tests.test_cifar import ARCHIVE, Tiny
from vit.data import cifar
from vit.training.checkpoint import LAST
from vit.training.classifier import Classifier

SAVES_AN_EPOCH = 3  # metrics.csv, last.ckpt, and best.ckpt in the first one


class NotPossibleError(Exception):
    """This machine does not let the fault be tried."""


def refused(ended: Ended) -> list[str]:
    """What is wrong with a refusal: it should be one line and an exit status."""
    lines = ended.err.strip().splitlines()
    if ended.status == 1 and len(lines) == 1 and lines[0].startswith("error: "):
        return []
    return [f"exit status {ended.status} with {len(lines)} lines: {ended.err.strip()[-300:]}"]


def goes_on(bench: Bench, run: Path) -> list[str]:
    """What is lost when the run is resumed."""
    ended = bench.train([f"resume={run}"])
    return differences(bench.reference, run) if ended.status == 0 else [f"no resume: {ended.err.strip()[-300:]}"]


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def file_size_limit(bench: Bench, save: int) -> list[str]:
    """From the middle of a save on, no file may grow beyond 20 kB, a tenth of a checkpoint."""
    runs = bench.place()
    ended = bench.train(new_run(runs), until=Moment("half a file", save), then=partial(limit_files, 20_000))
    run = only_run(runs)
    before = bench.stands_at(run)
    lost = refused(ended) + [f"{file.name} is left behind" for file in run.rglob("*.part")]
    if save > SAVES_AN_EPOCH and before is None:
        lost.append("the checkpoint before")
    return lost + goes_on(bench, run)


def mount_small(place: Path, size: int) -> None:
    """A file system of so many bytes, for this process and its children only. Raises NotPossibleError."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    new_user, new_mounts = 0x10000000, 0x00020000
    if libc.unshare((new_user if user else 0) | new_mounts):
        raise NotPossibleError(f"unshare: {os.strerror(ctypes.get_errno())}")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if libc.mount(b"none", b"/", None, (1 << 18) | (1 << 14), None) or libc.mount(  # private, recursively
        b"tmpfs", str(place).encode(), b"tmpfs", 0, f"size={size}".encode()
    ):
        raise NotPossibleError(f"mount: {os.strerror(ctypes.get_errno())}")


def small_file_system(bench: Bench) -> list[str]:
    """The disk is full in the third epoch or so; the run is saved to another one, and goes on there."""
    size = sum(file.stat().st_size for file in bench.reference.rglob("*")) // 2
    small, large = bench.place("small"), bench.place()

    def keep() -> None:
        for run in small.iterdir():
            shutil.copytree(run, large / run.name)

    def first() -> None:
        mount_small(small, size)
        import atexit

        atexit.register(keep)  # the file system ends with the process

    ended = bench.train(new_run(small), first=first)
    if "NotPossibleError" in ended.err:
        raise NotPossibleError(ended.err.strip().splitlines()[-1].partition(": ")[2])
    return refused(ended) + goes_on(bench, only_run(large))


def small_tmpdir(bench: Bench) -> list[str]:
    """16 kB of room for temporary files are enough: all that is large is written in the run's folder."""
    small, runs = bench.place("tmp"), bench.place()
    ended = bench.train(new_run(runs), first=partial(mount_small, small, 16384), environment={"TMPDIR": str(small)})
    if "NotPossibleError" in ended.err:
        raise NotPossibleError(ended.err.strip().splitlines()[-1].partition(": ")[2])
    return differences(bench.reference, only_run(runs)) if ended.status == 0 else [ended.err.strip()[-300:]]


def moved(bench: Bench) -> list[str]:
    """The folder has another name and place when the run is resumed."""
    run = bench.killed(Moment("step", 15))
    return goes_on(bench, run.rename(bench.place("moved") / "another name"))


def same_second(bench: Bench) -> list[str]:
    """Two runs of the same command and second."""
    runs = bench.place()
    both = [bench.start(new_run(runs)) for _ in range(2)]
    ended = [training.wait() for training in both]
    folders = list(runs.iterdir())
    lost = [one.err.strip()[-300:] for one in ended if one.status]
    lost += [] if len(folders) == 2 else [f"{len(folders)} folders"]
    return lost + [what for run in folders for what in differences(bench.reference, run)]


def resumed_twice(bench: Bench) -> list[str]:
    """Two processes resume one run at once: one does, the other is refused."""
    run = bench.copy(bench.interrupted)
    first = bench.start([f"resume={run}"], until=Moment("step", 2), pause=3)
    first.reached()
    lost = refused(bench.train([f"resume={run}"]))
    first.wait()
    return lost + differences(bench.reference, run)


def serve(folder: Path, seconds: float) -> tuple[int, str]:
    """A server in a process of its own, which waits so long before it answers: its number and address."""

    class Slow(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            (folder / "asked").open("a").write("x")
            time.sleep(seconds)
            with contextlib.suppress(ConnectionError):
                super().do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Slow, directory=str(folder)))
    if (pid := os.fork()) == 0:
        try:
            server.serve_forever()
        finally:
            os._exit(0)
    server.server_close()
    return pid, f"http://127.0.0.1:{server.server_port}/archive"


def downloads(bench: Bench, *, kill: bool) -> list[str]:
    """Two runs fetch one archive into one folder at once; if so told, the one that fetches is killed on the way."""
    data, served = bench.place("data"), bench.place("served")
    (served / "archive").write_bytes(ARCHIVE)
    cifar.CIFAR10 = Tiny  # type: ignore[misc]
    server, url = serve(served, 1.0)
    tiny = f"data=cifar10 data.root={data} data.url={url} dim=16 depth=1 epochs=1 batch_size=4 validation=2 device=cpu"
    environment = {"no_proxy": "*"}

    def start() -> Training:
        return bench.start([*tiny.split(), f"runs={bench.place()}"], environment=environment)

    try:
        first = start()
        while not (served / "asked").exists():
            time.sleep(0.01)
        second = start()
        time.sleep(0.3)
        if kill:
            first.send(signal.SIGKILL)
        ended = [first.wait(), second.wait()]
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    lost = [one.err.strip()[-300:] for one in ended[int(kill) :] if one.status]
    if (asked := len((served / "asked").read_text())) != 1 + kill:
        lost.append(f"{asked} downloads")
    return lost


def diverged(bench: Bench, value: float) -> list[str]:
    """The loss is nan or infinite from step 15, in the third epoch, on: the second epoch's file is kept."""
    runs = bench.place()

    def spoil() -> None:
        measure = Classifier.training_step

        def spoilt(self: Classifier, batch: tuple[Tensor, ...], batch_idx: int) -> dict[str, Tensor]:
            found = measure(self, batch, batch_idx)
            return {**found, "loss": found["loss"] * torch.tensor(value)}

        Classifier.training_step = spoilt  # type: ignore[method-assign]

    ended = bench.train(new_run(runs), until=Moment("step", 15), then=spoil)
    facts = bench.stands_at(only_run(runs))
    lost = refused(ended)
    if "by step 18" not in ended.err or "learning rate" not in ended.err:
        lost.append(f"it did not stop within the epoch: {ended.err.strip()[-200:]}")
    if facts is None or facts.epoch != 2:
        lost.append("the last good file")
    return lost


def damaged(bench: Bench, name: str, change: Callable[[bytes], bytes]) -> list[str]:
    """A file of a killed run is damaged: either one line says so and nothing is changed, or all goes on as if not."""
    run = bench.copy(bench.interrupted)
    file = run / name
    file.write_bytes(change(file.read_bytes()))
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != ".lock"}
    ended = bench.train([f"resume={run}"])
    if ended.status == 0:
        return differences(bench.reference, run)
    after = {path: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != ".lock"}
    unlike = [path.name for path in before if path.name not in (name, "settings.json") and after[path] != before[path]]
    return refused(ended) + [f"{one} was changed" for one in unlike]


def flip(share: float) -> Callable[[bytes], bytes]:
    """One bit, at a share of the file's length."""

    def change(content: bytes) -> bytes:
        at = min(len(content) - 1, math.floor(share * len(content)))
        return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]

    return change


def workers(bench: Bench) -> list[str]:
    """The process is killed while workers fetch its batches: none of them stays."""
    training = bench.start([*new_run(bench.place()), "workers=2"], until=Moment("step", 3))
    training.reached()
    training.send(signal.SIGKILL)
    training.wait()
    for _ in range(300):
        try:
            os.killpg(training.pid, 0)
        except ProcessLookupError:
            return []
        time.sleep(0.1)
    os.killpg(training.pid, signal.SIGKILL)
    return ["a worker that was still there after 30 s"]


FAULTS: dict[str, Callable[[Bench], list[str]]] = {
    "RLIMIT_FSIZE in the first save": partial(file_size_limit, save=1),
    "RLIMIT_FSIZE in the third epoch's saves": partial(file_size_limit, save=2 * SAVES_AN_EPOCH + 1),
    "a file system that is full": small_file_system,
    "16 kB in $TMPDIR": small_tmpdir,
    "the run's folder moved": moved,
    "two runs of one second": same_second,
    "one run resumed twice at once": resumed_twice,
    "two downloads at once": partial(downloads, kill=False),
    "two downloads, the first killed": partial(downloads, kill=True),
    "a loss that is nan": partial(diverged, value=math.nan),
    "a loss that is infinite": partial(diverged, value=math.inf),
    "workers left alone": workers,
    **{
        f"{LAST}: a bit at {share:.1%}": partial(damaged, name=LAST, change=flip(share))
        for share in (0.0, 0.02, 0.1, 0.5, 0.9, 0.97, 0.999, 1.0)
    },
    **{
        f"{name}: {what}": partial(damaged, name=name, change=change)
        for name in (LAST, "metrics.csv", "settings.json")
        for what, change in {
            "empty": lambda content: b"",
            "its first half": lambda content: content[: len(content) // 2],
            "zeros": lambda content: bytes(len(content)),
        }.items()
    },
}
