"""From logits (N,K) and labels (N,) to numbers, with intervals that say how far other images would move them."""

import math
from statistics import NormalDist

import torch
from torch import Tensor

Interval = tuple[float, float]
Z = NormalDist().inv_cdf(0.975)  # deviations from the mean within which 95 % lie


def wilson_interval(hits: int, n: int) -> Interval:
    """95 % interval of a share, of `hits` among n. Wilson 1927; Brown, Cai, DasGupta 2001, section 3.1.1."""
    share, spread = hits / n, Z**2 / n
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_interval(values: Tensor) -> Interval:
    """95 % interval of a mean over images, (N,), by the normal approximation; nan for a single one."""
    values = values.double()
    middle = float(values.mean())
    half = Z * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return middle - half, middle + half


def per_class(confusion: Tensor) -> list[list[float]]:
    """[precision, recall, F1] of each class, from counts (K,K) with true classes in rows; nan where they are 0 / 0."""
    hits, found, there = confusion.diagonal(), confusion.sum(0), confusion.sum(1)
    return torch.stack([hits / found, hits / there, 2 * hits / (found + there)], 1).tolist()


def confused_pairs(confusion: Tensor, count: int) -> list[tuple[int, int, int]]:
    """(true class, found class, images) of the `count` most frequent mistakes, from counts (K,K)."""
    mistakes = confusion - confusion.diagonal().diag()
    order = mistakes.flatten().argsort(descending=True, stable=True)[:count].tolist()
    pairs = [divmod(place, len(mistakes)) for place in order]
    return [(true, found, int(mistakes[true, found])) for true, found in pairs if mistakes[true, found]]


def confident_mistakes(logits: Tensor, labels: Tensor) -> Tensor:
    """The images that were taken for another class, the most confident mistake first: (M,)."""
    confidence, found = logits.softmax(1).max(1)
    order = confidence.argsort(descending=True, stable=True)
    return order[(found != labels)[order]]
