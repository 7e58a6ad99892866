"""Whether a probability means what it says: of the images that are given 80 %, are 80 % right?"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15
COLDEST, HOTTEST = 0.01, 100.0


class Reliability(NamedTuple):
    """Images sorted into bins of equal width by the probability of the class found. Guo et al. 2017 (1706.04599)."""

    share: Tensor  # of the images in each bin, (bins,)
    confidence: Tensor  # mean probability in it; nan where it is empty
    accuracy: Tensor

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, bins: int = BINS) -> "Reliability":
        """Of logits (N,K) and labels (N,)."""
        confidence, found = logits.double().softmax(1).max(1)
        place = (confidence * bins).ceil().long().clamp(1, bins) - 1  # (0, 1/bins], …
        counts = torch.bincount(place, minlength=bins).double()
        return cls(
            counts / len(labels),
            torch.bincount(place, confidence, minlength=bins) / counts,
            torch.bincount(place, (found == labels).double(), minlength=bins) / counts,
        )

    @property
    def error(self) -> float:
        """Expected calibration error: the mean gap between confidence and accuracy. Guo et al. 2017, equation 3."""
        return float((self.share * (self.confidence - self.accuracy).abs()).nansum())


def fit_temperature(logits: Tensor, labels: Tensor) -> float | None:
    """The T for which the logits (N,K) / T give the least cross-entropy. Guo et al. 2017, section 4.2.

    The loss is convex in 1/T: its slope there, E[z] - z of the true class, is bisected. None if it has no zero between
    0.01 and 100, as where every image is right.
    """
    logits = logits.double()
    true = logits.gather(1, labels[:, None]).squeeze(1)

    def slope(inverse: float) -> float:
        return float(((F.softmax(logits * inverse, 1) * logits).sum(1) - true).mean())

    low, high = 1 / HOTTEST, 1 / COLDEST
    if slope(low) >= 0 or slope(high) <= 0:
        return None
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / middle
