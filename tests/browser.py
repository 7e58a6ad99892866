"""A headless Chromium that obeys, over the pipe of its DevTools protocol: nothing but the standard library."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
PATIENCE = 90  # seconds; a busy machine may need some
KEYS = {"ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "Escape": 27, "Enter": 13, "End": 35}


class Page:
    """One page. `errors` holds what its console complained of, and requests to other hosts stand in `hosts`."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM
        (commands, self.write), (self.read, answers) = (tuple(map(_high, os.pipe())) for _ in range(2))
        silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, commands, 3), (os.POSIX_SPAWN_DUP2, answers, 4)]
        arguments = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self.process = os.posix_spawn(CHROMIUM, arguments, os.environ, file_actions=[*silent, *pipes], setpgroup=0)
        os.close(commands)
        os.close(answers)
        self.rest, self.count, self.session = b"", 0, ""
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.size(1400, 1000)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        os.write(
            self.write, json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode() + b"\0"
        )
        while (answer := self._receive()).get("id") != self.count:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], PATIENCE)[0]:
                raise TimeoutError("Chromium is silent")
            self.rest += os.read(self.read, 1 << 20)
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(values["exceptionDetails"]))
        elif (method == "Runtime.consoleAPICalled" and values["type"] == "error") or (
            method == "Log.entryAdded" and values["entry"]["level"] == "error"
        ):
            if "/favicon.ico" not in (complaint := json.dumps(values)):  # which TensorBoard does not have
                self.errors.append(complaint)
        elif method == "Network.requestWillBeSent":
            scheme, _, rest = values["request"]["url"].partition("://")
            self.hosts |= {rest.split("/")[0]} if scheme.startswith("http") else set()

    def size(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, address: str) -> None:
        self.send("Page.navigate", url="about:blank")  # so that a change of the part after # loads the page again too
        self.send("Page.navigate", url=address)

    def run(self, code: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, code: str) -> Any:
        """The value of an expression, once it is truthy and works at all."""
        end, last = time.monotonic() + PATIENCE, None
        while time.monotonic() < end:
            with contextlib.suppress(RuntimeError):
                if last := self.run(code):
                    return last
            time.sleep(0.05)
        raise AssertionError(f"{code} did not come true, but was {last!r}; errors: {self.errors}")

    def mouse(self, x: float, y: float, *, click: bool = False) -> None:
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left" if click else "none", clickCount=1)

    def press(self, *keys: str) -> None:
        for key in keys:
            for kind in ("rawKeyDown", "keyUp"):
                self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.write)
        os.close(self.read)


def _high(number: int) -> int:
    """The same pipe under a number that is neither 3 nor 4."""
    copy = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(number)
    return copy


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """The address of a TensorBoard that looks at a folder."""
    words = ["-m", "tensorboard.main", "--logdir", str(folder), "--port", "0", "--reload_interval", "1"]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        line = next((line for line in process.stderr if "http://" in line), "")
        assert line, "TensorBoard did not start"
        yield "http://" + line.split("http://")[1].split("/")[0].replace(" ", "") + "/"
    finally:
        process.terminate()
        process.communicate()
