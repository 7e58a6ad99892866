"""How long things take, measured so that whatever else slows the machine slows all of them."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Timing(NamedTuple):
    """Seconds: the median, and the quartiles as its spread."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, seconds: list[float]) -> "Timing":
        """Of one number or more."""
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else 3 * seconds
        return cls(statistics.median(seconds), low, high, len(seconds))

    def facts(self, images: int) -> dict[str, float]:
        """Plain values, with the rate at which so many images were done."""
        return {"images_per_second": images / self.median, **self._asdict()}


def take_turns(
    works: Mapping[Name, Callable[[], object]],
    samples: int,
    *,
    finish: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, Timing]:
    """Time each work `samples` times, in turns A B C A B C …, after one run of each that does not count.

    `finish` waits for a device that works in the background. `clock` gives seconds.
    """
    for work in works.values():
        work()
    seconds: dict[Name, list[float]] = {name: [] for name in works}
    for _ in range(samples):
        for name, work in works.items():
            finish()
            began = clock()
            work()
            finish()
            seconds[name].append(clock() - began)
    return {name: Timing.of(taken) for name, taken in seconds.items()}
