"""How good a network is on images that it has not seen."""

from dataclasses import dataclass

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
    per_class: tuple[float, ...]  # nan for a class without an image
    n: int

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
    labels, classes = split.labels, logits.shape[1]
    hits = (logits.argmax(1) == labels).float()
    counts = torch.bincount(labels, minlength=classes)
    per_class = torch.bincount(labels, hits, minlength=classes) / counts
    top5 = multiclass_accuracy(logits, labels, classes, average="micro", top_k=min(5, classes))
    return Score(
        accuracy=int(hits.sum()) / len(labels),
        top5=float(top5),
        loss=float(F.cross_entropy(logits, labels)),
        per_class=tuple(per_class.tolist()),
        n=len(labels),
    )


@torch.inference_mode()
def predict_logits(
    vit: ViT, images: Tensor, *, mean: tuple[float, ...], std: tuple[float, ...], device: str, batch_size: int
) -> Tensor:
    """uint8 (N,C,H,W) → float32 logits (N,K) on the CPU."""
    vit.eval().to(device)
    batches = images.split(batch_size)
    return torch.cat([vit(normalize(batch.to(device), mean, std)).cpu() for batch in batches])
