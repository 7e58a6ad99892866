"""How long things take, measured so that whatever else slows the machine slows all of them."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Spread(NamedTuple):
    """The median of several numbers, and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of two numbers or more."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


class Timing(NamedTuple):
    """Seconds, a number a turn."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seconds)

    def times(self, other: "Timing") -> Spread:
        """How many times as long as the other it took, turn by turn: what slows one turn slows both."""
        return Spread.of([mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)])

    def facts(self, images: int) -> dict[str, Any]:
        """Plain values, with the rate at which so many images were done."""
        median, low, high = Spread.of(self.seconds)
        quartiles = {"seconds": median, "seconds_low": low, "seconds_high": high}
        return {"images_per_second": images / median, **quartiles, "samples": self.seconds}


def take_turns(
    works: Mapping[Name, Callable[[], object]],
    samples: int,
    *,
    finish: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, Timing]:
    """Time each work `samples` times, in turns A B C, C B A, A B C …, after one run of each that does not count.

    `finish` waits for a device that works in the background. `clock` gives seconds.
    """
    for work in works.values():
        work()
    seconds: dict[Name, list[float]] = {name: [] for name in works}
    for turn in range(samples):
        for name, work in list(works.items())[:: -1 if turn % 2 else 1]:  # so that none always follows the same
            finish()
            began = clock()
            work()
            finish()
            seconds[name].append(clock() - began)
    return {name: Timing(tuple(taken)) for name, taken in seconds.items()}
