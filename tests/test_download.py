"""Downloads from a local server that behaves well, badly, or not at all."""

import hashlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vit.data import download as module
from vit.data.download import NoSourceError, download, file_lock
from vit.settings import UserError

BODY = bytes(range(256)) * 400  # 102,400 bytes
MD5 = hashlib.md5(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """The path of the request says how the server behaves."""

    asked: list[str]
    over: threading.Event  # the test, and with it the waiting of a server that says no more

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/missing":
            return self.send_error(404)
        if self.path == "/silent":
            self.over.wait()
            return None
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            return self.end_headers()
        body = b"x" + BODY[1:] if self.path == "/wrong" else BODY
        self.send_response(200)
        if self.path != "/unsized":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path == "/stalls":
            self.wfile.write(body[:1000])
            self.over.wait()
        elif self.path == "/truncated":
            self.wfile.write(body[:1000])
        elif self.path == "/slow":
            for start in range(0, len(body), 10_000):
                self.wfile.write(body[start : start + 10_000])
                time.sleep(0.1)
        else:
            self.wfile.write(body)
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone away is what these tests are about."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(Handler, "asked", [], raising=False)
    monkeypatch.setattr(Handler, "over", threading.Event(), raising=False)
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        Handler.over.set()
        running.shutdown()
        thread.join()


def refused_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/x"


def failure(tmp_path: Path, *urls: str, timeout: float = 20) -> str:
    """The one line of a download that must fail, after which nothing may lie in the folder."""
    with pytest.raises(NoSourceError) as caught:
        download(tmp_path / "a.tar.gz", urls=urls, md5=MD5, timeout=timeout, say=lambda line: None)
    assert list(tmp_path.iterdir()) == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("path", ["/good", "/unsized"])
def test_good(server: str, tmp_path: Path, path: str) -> None:
    lines: list[str] = []
    download(tmp_path / "a.tar.gz", urls=[server + path], md5=MD5, say=lines.append)
    assert (tmp_path / "a.tar.gz").read_bytes() == BODY
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.tar.gz"]
    assert lines[0] == f"downloading a.tar.gz from {server.removeprefix('http://')}"
    assert re.search(r"0\.1 MB in \d+ s", lines[-1])


def test_D1_a_slow_source_is_waited_for_and_says_how_far_it_is(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.25)
    lines: list[str] = []
    download(tmp_path / "a.tar.gz", urls=[server + "/slow"], md5=MD5, timeout=1, say=lines.append)  # takes 1.1 s
    assert (tmp_path / "a.tar.gz").read_bytes() == BODY
    progress = [line for line in lines if "left" in line]
    assert 2 <= len(progress) <= 8
    assert "MB/s; 0.1 MB in all, 0.0 min left" in progress[0]


def test_D1_lines_reach_a_log_file_at_once() -> None:
    assert module.print_flushed.keywords == {"flush": True}


def test_D1_a_terminal_gets_a_bar(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
    lines: list[str] = []
    download(tmp_path / "a.tar.gz", urls=[server + "/slow"], md5=MD5, say=lines.append)
    assert "━" in capsys.readouterr().out
    assert not any("left" in line for line in lines)


def test_D1_the_second_source_is_tried_and_the_first_ones_reason_said(server: str, tmp_path: Path) -> None:
    lines: list[str] = []
    urls = [f"{server}/missing", f"{server}/good", f"{server}/silent"]
    download(tmp_path / "a.tar.gz", urls=urls, md5=MD5, say=lines.append)
    assert (tmp_path / "a.tar.gz").read_bytes() == BODY
    assert Handler.asked == ["/missing", "/good"]
    assert "HTTP 404; downloading" in lines[1]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/silent", "timed out"),
        ("/stalls", "timed out"),
        ("/truncated", "broke off after 0.0 of 0.1 MB"),
        ("/wrong", "wrong md5"),
        ("/missing", "HTTP 404"),
        ("/to/http://example.org/x", "http://example.org is not https"),
        ("/to/ftp://127.0.0.1/x", "ftp://127.0.0.1 is not https"),
    ],
)
def test_D2_a_bad_source_is_named_with_its_reason(server: str, tmp_path: Path, path: str, reason: str) -> None:
    timeout = 0.2 if reason == "timed out" else 20
    assert failure(tmp_path, server + path, timeout=timeout) == (
        f"a.tar.gz could not be downloaded ({server.removeprefix('http://')}: {reason})"
    )


def test_D2_all_sources_are_named_in_one_line(server: str, tmp_path: Path) -> None:
    message = failure(tmp_path, f"{server}/missing", refused_address(), f"{server}/wrong")
    assert "HTTP 404; 127.0.0.1:" in message
    assert "Connection refused; 127.0.0.1:" in message
    assert message.endswith("wrong md5)")


@pytest.mark.parametrize(
    "url", ["http://example.org/x", "http://10.255.255.1/x", "ftp://127.0.0.1/x", "file:///etc/passwd", "nonsense", ""]
)
def test_D2_only_https_is_asked(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("a host was looked for"))
    assert "is not https" in failure(tmp_path, url)


def test_a_malformed_address_is_a_reason_and_no_password_is_shown(tmp_path: Path) -> None:
    assert "Invalid IPv6" in failure(tmp_path, "https://[x/y")
    assert "secret" not in failure(tmp_path, "http://me:secret@example.org/x")


def test_a_redirect_within_the_rules_is_followed(server: str, tmp_path: Path) -> None:
    download(tmp_path / "a.tar.gz", urls=[f"{server}/to/{server}/good"], md5=MD5, say=lambda line: None)
    assert (tmp_path / "a.tar.gz").read_bytes() == BODY


def test_what_a_killed_download_left_is_not_taken_for_the_file(server: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz.part").write_bytes(BODY + b"the rest of something longer")
    download(tmp_path / "a.tar.gz", urls=[f"{server}/good"], md5=MD5, say=lambda line: None)
    assert (tmp_path / "a.tar.gz").read_bytes() == BODY


def test_the_file_has_its_name_only_when_whole(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
    seen: list[set[str]] = []

    def look(line: str) -> None:
        seen.append({entry.name for entry in tmp_path.iterdir()})

    download(tmp_path / "a.tar.gz", urls=[f"{server}/slow"], md5=MD5, say=look)
    assert len(seen) > 5
    assert all(names == {"a.tar.gz.part"} for names in seen)


def test_a_full_disk_is_one_line(server: str, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "a.tar.gz.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"a\.tar\.gz cannot be written: .+$") as caught:
        download(tmp_path / "a.tar.gz", urls=[f"{server}/good"], md5=MD5, say=lambda line: None)
    assert not isinstance(caught.value, NoSourceError)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written: No such file or directory"):
        download(tmp_path / "none" / "a", urls=["https://example.org"], md5=MD5, say=lambda line: None)


# The package vit.data imports torch, which takes longer than this test may: the module is loaded by its path.
PROCESS = """
import sys, pathlib, importlib.util
spec = importlib.util.spec_from_file_location("download", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
file = pathlib.Path(sys.argv[2])
with module.file_lock(file):
    if not file.exists():
        module.download(file, urls=[sys.argv[3]], md5=sys.argv[4])
"""


def test_D4_two_processes_download_once(server: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROCESS, module.__file__, str(tmp_path / "a"), f"{server}/slow", MD5]
    root = Path(module.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = sorted(process.communicate(timeout=30)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0], said
    assert (tmp_path / "a").read_bytes() == BODY
    assert Handler.asked == ["/slow"]
    assert said[0] in ("another process is downloading a; waiting\n", "")  # "": it came when all was done
    assert "downloading a from" in said[1]


def test_D4_the_second_waits_and_says_so(tmp_path: Path) -> None:
    lines: list[str] = []
    order: list[str] = []

    def second() -> None:
        with file_lock(tmp_path / "a", say=lines.append):
            order.append("second")

    with file_lock(tmp_path / "a", say=lines.append):
        thread = threading.Thread(target=second)
        thread.start()
        while not lines:
            time.sleep(0.01)
        order.append("first")
    thread.join(timeout=5)
    assert order == ["first", "second"]
    assert lines == ["another process is downloading a; waiting"]
