"""Runs the tutorial's Python and writes what it prints and draws into docs/: python -m tests.tutorial_pages."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ("tutorial.md", "tutorial.ja.md")
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL)


def code_of(page: str) -> list[str]:
    """The Python blocks of a page."""
    return [match[1] for match in BLOCK.finditer(page)]


def run(page: str) -> tuple[str, dict[str, Any]]:
    """Execute a page's Python in order: the page with what each block prints below it, and the names left at the end.

    What it draws goes to the current folder.
    """
    names: dict[str, Any] = {}

    def with_output(block: re.Match[str]) -> str:
        line = page.count("\n", 0, block.start(1))  # for tracebacks
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + block[1], "the tutorial", "exec"), names)
        output = f"\n```text\n{printed.getvalue()}```\n" if printed.getvalue() else ""
        return f"```python\n{block[1]}```\n{output}"

    pyplot.switch_backend("agg")
    with np.printoptions():
        try:
            return BLOCK.sub(with_output, page), names
        finally:
            pyplot.close("all")


def main() -> None:
    with contextlib.chdir(DOCS):
        for name in PAGES:
            file = Path(name)
            file.write_text(run(file.read_text(encoding="utf-8"))[0], encoding="utf-8")


if __name__ == "__main__":
    main()
