"""What every source of images returns."""

from dataclasses import dataclass

from torch import Tensor


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


@dataclass(frozen=True)
class ImageSet:
    """A data set: training and test images and the names of the classes, in the order of the labels.

    description says in words which images these are; every published number carries it.
    """

    description: str
    classes: tuple[str, ...]
    train: Split
    test: Split
