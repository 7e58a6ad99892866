"""One file, fetched from the first source that delivers it whole. The md5 decides, not the server."""

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from vit.settings import UserError

SECONDS_BETWEEN_LINES = 15.0

# Python holds back what it prints into a log file, where a download of 40 minutes must not look like a hang.
print_flushed: Callable[[str], None] = partial(print, flush=True)


class NoSourceError(UserError):
    """No source delivered the file."""


def download(
    file: Path, *, urls: Sequence[str], md5: str, timeout: float = 20.0, say: Callable[[str], None] = print_flushed
) -> None:
    """Fetch `file` from the first of `urls` whose body has this md5. Nothing but the whole file gets its name.

    timeout: seconds without a byte after which a source counts as dead; a slow one is waited for.
    Raises NoSourceError, naming every source with its reason, and UserError if the file cannot be written.
    """
    part = file.with_name(file.name + ".part")
    reasons: list[str] = []
    try:
        with part.open("wb") as sink:
            for url in urls:
                host = url.partition("://")[2].partition("/")[0].rpartition("@")[2] or url
                say(f"{reasons[-1] + '; ' if reasons else ''}downloading {file.name} from {host}")
                sink.seek(0)
                sink.truncate()
                try:
                    found = _fetch(url, sink, name=file.name, timeout=timeout, say=say)
                except (OSError, HTTPException, ValueError) as error:
                    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    reasons.append(f"{host}: {_in_few_words(error)}")
                    continue
                if found == md5:
                    break
                reasons.append(f"{host}: wrong md5")
            else:
                raise NoSourceError(f"{file.name} could not be downloaded ({'; '.join(reasons)})")
        os.replace(part, file)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def file_lock(file: Path, *, say: Callable[[str], None] = print_flushed) -> Iterator[None]:
    """Keep other processes out while `file` is looked for, fetched and unpacked. Raises OSError if it cannot."""
    lock = FileLock(file.with_name(file.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is downloading {file.name}; waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(url: str, sink: BinaryIO, *, name: str, timeout: float, say: Callable[[str], None]) -> str:
    """Write the body of `url` into `sink` and onto the disk; returns its md5."""
    _require_https(url)
    digest = hashlib.md5(usedforsecurity=False)
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    console = Console()
    bar = Progress("{task.description}", *columns, console=console, transient=True, disable=not console.is_terminal)
    with build_opener(_HttpsRedirects).open(url, timeout=timeout) as response, bar:
        total: int = response.length or 0  # bytes; 0 if the server does not say
        task = bar.add_task(name, total=total or None)
        done, started = 0, time.monotonic()
        said = started
        # read1 returns what has arrived; read would wait for a full block, and a slow source would show no progress
        while block := response.read1(1 << 16):
            sink.write(block)
            digest.update(block)
            done += len(block)
            bar.update(task, completed=done)
            now = time.monotonic()
            if bar.disable and now - said >= SECONDS_BETWEEN_LINES:
                said, rate = now, done / (now - started)
                rest = f"; {total / 1e6:.1f} MB in all, {(total - done) / rate / 60:.1f} min left" if total else ""
                say(f"{name}: {done / 1e6:.1f} MB, {rate / 1e6:.2f} MB/s{rest}")
    if done < total:
        raise ValueError(f"broke off after {done / 1e6:.1f} of {total / 1e6:.1f} MB")
    sink.flush()
    os.fsync(sink.fileno())
    say(f"{name}: {done / 1e6:.1f} MB in {time.monotonic() - started:.0f} s")
    return digest.hexdigest()


class _HttpsRedirects(HTTPRedirectHandler):
    """urllib by itself follows a redirect from https to http or ftp."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        _require_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_https(url: str) -> None:
    scheme, host = urlsplit(url).scheme, urlsplit(url).hostname
    if scheme != "https" and not (scheme == "http" and host in ("localhost", "127.0.0.1", "::1")):
        raise ValueError(f"{scheme or 'nothing'}://{host or ''} is not https")


def _in_few_words(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"HTTP {error.code}"
    reason = error.reason if isinstance(error, URLError) else error
    words = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return " ".join(words.split()) or type(reason).__name__
