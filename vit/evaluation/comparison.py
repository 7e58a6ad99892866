"""Whether one network, or one recipe, is better than another: differences on the same images, with intervals."""

import math
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import numpy as np
from torch import Tensor


class Difference(NamedTuple):
    """The accuracy of one minus that of another, with an interval; shown only where that does not hold zero."""

    value: float
    low: float
    high: float
    p: float = math.nan  # of the exact McNemar test

    @property
    def shown(self) -> bool:
        return self.low > 0 or self.high < 0


def paired_difference(one: Tensor, other: Tensor, *, level: float = 0.95) -> Difference:
    """Between two networks, from which of the same images each got right, bool (N,).

    The interval is that of Bonett & Price 2012 (doi 10.3102/1076998611411915), Wald's with one image added to each kind
    of disagreement; p is that of McNemar's exact test. It is about these two networks, not how they were trained.
    """
    n, first, second = len(one), int((one & ~other).sum()), int((other & ~one).sum())
    wins, losses = (first + 1) / (n + 2), (second + 1) / (n + 2)
    half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt((wins + losses - (wins - losses) ** 2) / (n + 2))
    middle = wins - losses
    return Difference((first - second) / n, middle - half, middle + half, mcnemar(first, second))


def mcnemar(first: int, second: int) -> float:
    """p of the exact test that two networks err equally often, from how many images only one got right."""
    n, few = first + second, min(first, second)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) / 2**n)


def difference_of_means(one: list[float], other: list[float], *, level: float = 0.95) -> Difference:
    """Between two ways to train, from the accuracies of several seeds each: Welch's t interval (Welch 1947)."""
    parts = [stdev(values) ** 2 / len(values) for values in (one, other)]
    value = fmean(one) - fmean(other)
    if sum(parts) == 0:
        return Difference(value, value, value)
    freedom = sum(parts) ** 2 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, (one, other), strict=True))
    half = t_quantile(level, freedom) * math.sqrt(sum(parts))
    return Difference(value, value - half, value + half)


def t_quantile(level: float, freedom: float) -> float:
    """The t within ± which `level` of Student's distribution lies.

    With t = √freedom · tan(angle) its density is cos(angle)^(freedom - 1), which is summed.
    """
    angle = (np.arange(1_000_000) + 0.5) * (math.pi / 2 / 1_000_000)
    mass = np.cumsum(np.cos(angle) ** (freedom - 1))
    return math.sqrt(freedom) * math.tan(np.interp(level * mass[-1], mass, angle))
