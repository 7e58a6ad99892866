"""The view of attention maps in a browser, as the tests use it: what a person does, and what must then be seen."""

import re

import pytest
from torch import Tensor

from tests.browser import Page
from tests.map_runs import Seen
from vit.inspection.maps import rollout

GRID, PREFIX = 4, 2  # of `write_all`'s run `a`


class View:
    """A page with the view, whose state stands in its address, each part after a `name`."""

    def __init__(self, page: Page, address: str, seen: dict[int, Seen], *, name: str = "") -> None:
        self.page, self.address, self.seen, self.name = page, address, seen, name

    def open(self, *state: str) -> None:
        self.page.errors.clear()
        self.page.open("&".join([self.address, *(self.name + one for one in state)]))
        self.page.wait("document.querySelector('.caption').textContent || !document.querySelector('.message').hidden")

    def caption(self, expected: str, pane: int = 0) -> str:
        """The line below a map, once it holds what is expected."""
        text = f"document.querySelectorAll('.caption')[{pane}].textContent"
        self.page.wait(f"{text}.includes({expected!r})")
        return self.page.run(text)

    def message(self, expected: str, pane: int = 0) -> None:
        one = f"document.querySelectorAll('.message')[{pane}]"
        self.page.wait(f"!{one}.hidden && {one}.textContent.includes({expected!r})")

    def choose(self, label: str, value: str, pane: int = 0) -> None:
        """As a person does with a select."""
        found = f"""[...document.querySelectorAll('.pane')[{pane}].querySelectorAll('label')]
            .find(l => l.textContent.startsWith('{label}')).querySelector('select')"""
        self.page.run(f"(s => {{ s.value = '{value}'; s.dispatchEvent(new Event('change')); }})({found})")

    def spot(self, row: int, column: int, frame: int = 0) -> tuple[float, float]:
        """Where on the screen a patch of run `a` lies, counted from 1."""
        box = f"document.querySelectorAll('.frame')[{frame}].getBoundingClientRect()"
        left, top, width, height = self.page.run(f"(b => [b.left, b.top, b.width, b.height])({box})")
        return left + width * (column - 0.5) / GRID, top + height * (row - 0.5) / GRID

    def focus(self, selector: str) -> None:
        self.page.run(f"document.querySelector('{selector}').focus()")

    def click(self, selector: str) -> None:
        self.page.run(f"document.querySelector('{selector}').click()")

    def state(self) -> set[str]:
        hash_part = self.page.run("location.hash")
        return {one.removeprefix(self.name) for one in hash_part.lstrip("#").split("&")}

    def assert_shows(self, said: str, values: Tensor, pane: int = 0) -> None:
        """The caption and the picture name the patch to which these weights (T,) give most."""
        patches = values[PREFIX:]
        best = int(patches.argmax())
        text = self.caption(f"{said} attends most to row {best // GRID + 1}, column {best % GRID + 1}: ", pane)
        numbers = re.search(r"column \d: (\S+), and (\S+) to the tokens beside", text)
        assert numbers
        assert float(numbers[1]) == pytest.approx(float(patches.max()), rel=0.06)
        assert float(numbers[2]) == pytest.approx(float(values[:PREFIX].sum()), rel=0.06, abs=0.005)
        heat = f"""(canvas => {{
            const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            const light = Array.from({{length: pixels.length / 4}}, (_, i) => pixels[4 * i] + pixels[4 * i + 1]);
            return [canvas.width, canvas.height, light.indexOf(Math.max(...light))];
        }})(document.querySelectorAll('.heat')[{pane}])"""
        assert self.page.run(heat) == [GRID, GRID, best]


def received(view: View, step: int, layer: int, head: int | str, token: int | None) -> Tensor:
    """What the readout or a token of run a's first image attends to: (T,)."""
    seen, relevance, _ = view.seen[step]
    matrix = {
        "mean": lambda: seen.maps[layer - 1][0].mean(dim=0),
        "rollout": lambda: rollout(seen.maps)[0],
        "relevance": lambda: relevance[0],
    }.get(str(head), lambda: seen.maps[layer - 1][0, int(head) - 1])()
    return (seen.readout[0] @ matrix if token is None else matrix[token]).detach()


def token(row: int, column: int) -> int:
    return PREFIX + GRID * (row - 1) + column - 1
