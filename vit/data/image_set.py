"""What every source of images returns."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Choose = Callable[[int], Tensor]  # from how many images there are to the rows of those that are wanted


@dataclass(frozen=True)
class Split:
    """Decoded images held in memory.

    images: uint8 (N,C,H,W). labels: int64 (N,). masks: bool (N,H,W), true on the object, where the source knows it.
    """

    images: Tensor
    labels: Tensor
    masks: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, rows: Tensor) -> "Split":
        """Some of them, in this order."""
        return Split(self.images[rows], self.labels[rows], None if self.masks is None else self.masks[rows])


def fingerprint(values: Tensor) -> str:
    """Of any tensor, e.g. images (N,C,H,W): the same only for the same values in the same order."""
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()


@dataclass(frozen=True)
class ImageSet:
    """A data set: training and test images and the names of the classes, in the order of the labels.

    description says in words which images these are; every published number carries it.
    """

    description: str
    classes: tuple[str, ...]
    train: Split
    test: Split
