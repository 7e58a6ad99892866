"""How good a network is on images that it has not seen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy

from vit.data import Split, normalize
from vit.model import ViT


@dataclass(frozen=True)
class Score:
    """Accuracies are shares of 1. loss is the mean cross-entropy in nats, without label smoothing."""

    accuracy: float
    top5: float
    loss: float
    n: int

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Self:
        """Of logits (N,K) and labels (N,)."""
        classes = logits.shape[1]
        return cls(
            accuracy=int((logits.argmax(1) == labels).sum()) / len(labels),
            top5=float(multiclass_accuracy(logits, labels, classes, average="micro", top_k=min(5, classes))),
            loss=float(F.cross_entropy(logits, labels)),
            n=len(labels),
        )

    def __str__(self) -> str:
        return f"{100 * self.accuracy:.2f} % of {self.n:,} (top-5 {100 * self.top5:.2f} %, loss {self.loss:.4f})"


def score(
    vit: ViT,
    split: Split,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: str = "cpu",
    batch_size: int = 256,
) -> Score:
    """Classify every image once, in float32 and in order. The network is left in eval mode on the device."""
    logits = predict_logits(vit, split.images, mean=mean, std=std, device=device, batch_size=batch_size)
    return Score.of(logits, split.labels)


@torch.inference_mode()
def predict_logits(
    vit: ViT,
    images: Tensor,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: str,
    batch_size: int,
    edit: Callable[[int, Tensor], Tensor] | None = None,
    count: Callable[[int], object] = lambda images: None,
) -> Tensor:
    """uint8 (N,C,H,W) → float32 logits (N,K) on the CPU. `edit` changes the attention, as in `ViT.attend`.

    `count` is told of each batch how many images it had.
    """
    vit.eval().to(device)
    logits = []
    for batch in images.split(batch_size):
        normal = normalize(batch.to(device), mean, std)
        logits.append((vit(normal) if edit is None else vit.attend(normal, edit).logits).cpu())
        count(len(batch))
    return torch.cat(logits)
