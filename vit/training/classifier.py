"""How the network learns: what happens in a step, and with which optimiser."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from vit.data import Augmentation, Batch, derived_seed, normalize
from vit.model import ViT
from vit.training.optimizer import MuonAdamW, learning_rate_factor, parameter_groups


class Classifier(LightningModule):
    """Trains a ViT on batches of uint8 images (B,C,H,W), labels (B,) and, where they are known, masks (B,H,W).

    mean and std are those of each channel, scaled to 0–1. augment_until is the share of all steps after which only crop
    and flip are left of the augmentation. patch_dropout is the share of its patches that an image lacks in the first
    step (Liu et al. 2022, arXiv 2208.07220); it falls evenly to 0 in the last. muon_lr None means AdamW for everything;
    muon_dtype is the type of Muon's products. body_lr is the share of the rates by which all but the head learns; at 0
    it is frozen.
    """

    def __init__(
        self,
        vit: ViT,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        lr: float = 1e-3,
        muon_lr: float | None = 0.02,
        body_lr: float = 1.0,
        weight_decay: float = 0.05,
        warmup: float = 0.1,
        flat: float = 0.0,
        label_smoothing: float = 0.1,
        augmentation: Augmentation | None = None,
        augment_until: float = 1.0,
        patch_dropout: float = 0.0,
        seed: int = 0,
        muon_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.vit = vit
        self.mean, self.std = mean, std
        self.lr, self.muon_lr, self.weight_decay, self.warmup = lr, muon_lr, weight_decay, warmup
        self.flat = flat
        self.body_lr = body_lr
        if body_lr == 0:
            vit.requires_grad_(False).head.requires_grad_(True)
        self.label_smoothing = label_smoothing
        self.augmentation = augmentation or Augmentation()
        self.augment_until = augment_until
        self.patch_dropout = patch_dropout
        self.seed = seed
        self.muon_dtype = muon_dtype

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> dict[str, Tensor]:
        images, targets, _ = self.augment(batch[:2])
        patches = self.kept_patches(len(images)) if self.patch_dropout else None
        return self._measure("train", images, targets, patches, label_smoothing=self.label_smoothing)

    def kept_patches(self, images: int) -> Tensor:
        """The numbers (B,K), in order, of the patches that each image keeps in this step, drawn at random."""
        total = self.vit.grid[0] * self.vit.grid[1]
        left = 1 - self.global_step / max(1, int(self.trainer.estimated_stepping_batches) - 1)
        kept = max(1, round(total * (1 - self.patch_dropout * left)))
        return torch.rand(images, total, device=self.device).argsort(1)[:, :kept].sort(1).values

    def validation_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        self._measure("validation", batch[0], batch[1])

    def augment(self, batch: tuple[Tensor, ...]) -> Batch:
        """What the network learns from in this step: the same again, whenever it is asked."""
        # What is drawn in a step depends on nothing that came before it, so that a resumed run draws the same.
        torch.manual_seed(derived_seed(self.seed, self.global_step, self.global_rank))
        strong = self.global_step < self.augment_until * int(self.trainer.estimated_stepping_batches)
        with torch.autocast(self.device.type, enabled=False):  # places of pixels are no matter for bf16
            return self.augmentation(*batch, classes=self.vit.head.out_features, strong=strong)

    def _measure(
        self, part: str, images: Tensor, targets: Tensor, patches: Tensor | None = None, label_smoothing: float = 0.0
    ) -> dict[str, Tensor]:
        logits = self.vit(normalize(images, self.mean, self.std), patches).float()
        loss = F.cross_entropy(logits, targets, label_smoothing=label_smoothing)
        labels = targets if targets.ndim == 1 else targets.argmax(1)  # of a mixed image, the larger part
        accuracy = (logits.argmax(1) == labels).float().mean()
        values = {f"{part}/loss": loss.detach(), f"{part}/accuracy": accuracy}
        self.log_dict(values, on_step=False, on_epoch=True, batch_size=len(labels), sync_dist=True, logger=False)
        return {"loss": loss, "accuracy": accuracy}

    def configure_optimizers(self) -> Any:
        groups = parameter_groups(
            self.vit, lr=self.lr, muon_lr=self.muon_lr, weight_decay=self.weight_decay, body_lr=self.body_lr
        )
        optimizer = MuonAdamW(groups, dtype=self.muon_dtype)
        total = int(self.trainer.estimated_stepping_batches)
        factor = partial(learning_rate_factor, total=total, warmup=self.warmup, flat=self.flat)
        schedule = LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Put the rates of this very step in place: after a resume with more epochs those in the checkpoint are old."""
        scheduler = self.lr_schedulers()
        assert isinstance(scheduler, LambdaLR)
        for group, peak, factor in zip(
            scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
        ):
            group["lr"] = peak * factor(scheduler.last_epoch)
