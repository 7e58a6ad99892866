"""Logs what every head attends to while the network learns: pictures, numbers and, at the end, embeddings."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from vit.data import normalize
from vit.data.download import print_flushed
from vit.inspection import map_record
from vit.inspection.figures import filter_figure, matrix_figure, position_figure
from vit.inspection.log_picture import log_picture
from vit.inspection.maps import logit_lens, method_matrices, read_matrices, readout_maps
from vit.inspection.measures import (
    attention_distance,
    attention_entropy,
    attention_shares,
    head_similarity,
    largest_norm,
    points_at_object,
    share_on_object,
)
from vit.inspection.pictures import attention_sheet, headed, lens_sheet, method_sheet
from vit.model import Attention, ViT

TIMES = 10  # TensorBoard keeps ten pictures of a tag unless told otherwise
MEMORY = 2 << 30  # bytes at most that maps may take while they are looked at
LENSES = 6  # layers at most of which the logit lens is drawn
PROJECTED, THUMBNAIL = 1000, 32  # images at most in the projector, and the side of their pictures in pixels

HOW_TO_READ = Path(__file__).with_name("how_to_read.md")


@dataclass(frozen=True)
class Shown:
    """The images that are looked at: uint8 (B,C,H,W), labels (B,), where known masks bool (B,H,W).

    names are those of the classes as pictures can write them.
    """

    images: Tensor
    labels: Tensor
    masks: Tensor | None
    classes: tuple[str, ...]
    names: tuple[str, ...]
    note: str = ""  # before each title

    def first(self, count: int) -> "Shown":
        """So many of them."""
        masks = None if self.masks is None else self.masks[:count]
        return dataclasses.replace(self, images=self.images[:count], labels=self.labels[:count], masks=masks)


def images_that_fit(vit: ViT) -> int:
    """How many images' maps, with their gradients and what led to them, take no more than MEMORY."""
    tokens = vit.prefix_tokens + vit.grid[0] * vit.grid[1]
    matrices = sum(layer.attention.heads for layer in vit.layers)  # type: ignore[union-attr, misc]
    return MEMORY // (4 * matrices * 4 * tokens**2)


def picture_steps(total: int) -> set[int]:
    """Up to ten steps from 0, the untrained network, to the last, each about the same factor after the one before."""
    return {0, *np.geomspace(1, max(1, total), TIMES - 1).round().astype(int).tolist()}


def measures(seen: Attention, vit: ViT, maps: dict[str, Tensor], masks: Tensor | None) -> dict[str, float]:
    """Numbers of each layer and head; and, where masks are known, of each method."""
    found: dict[str, Tensor] = {}
    for layer, weights in enumerate((w.detach() for w in seen.maps), start=1):
        itself, prefix = attention_shares(weights, prefix_tokens=vit.prefix_tokens)
        by_head = {
            "attention_distance": attention_distance(weights, grid=vit.grid, patch_size=vit.patch_embedding.patch_size),
            "attention_entropy": attention_entropy(weights),
            "attention_to_itself": itself,
            **({"attention_to_prefix": prefix} if vit.prefix_tokens else {}),
        }
        for name, values in by_head.items():
            found |= {f"{name}/layer_{layer:02d}_head_{head:02d}": v for head, v in enumerate(values, start=1)}
        found[f"head_similarity/layer_{layer:02d}"] = head_similarity(weights)
    found["largest_token_norm/last_layer"] = largest_norm(seen.tokens[-1].detach())
    if masks is not None:
        for name, map_of_method in maps.items():
            tag = name.replace(" ", "_")
            found[f"share_on_object/{tag}"] = share_on_object(map_of_method, masks).mean()
            found[f"points_at_object/{tag}"] = points_at_object(map_of_method, masks).float().mean()
        found["share_on_object/chance"] = found["points_at_object/chance"] = masks.float().mean()
    return {tag: float(value) for tag, value in found.items()}


def thumbnails(images: Tensor) -> Tensor:
    """uint8 (N,C,H,W) → float32 (N,3,S,S), whole, the shorter side filled up with white."""
    scale = THUMBNAIL / max(images.shape[2:])
    size = [max(1, round(side * scale)) for side in images.shape[2:]]
    small = F.interpolate(images.expand(-1, 3, -1, -1).float() / 255, size, mode="area")
    return F.pad(small, (0, THUMBNAIL - size[1], 0, THUMBNAIL - size[0]), value=1.0)


class AttentionLogger(Callback):
    """Writes pictures and numbers of a few fixed images ten times, to TensorBoard and as PNG files; more at the end.

    Works on a module whose `vit` is a ViT and whose `mean` and `std` are those of its images. `unseen` are further
    images and their labels for the projector. What cannot be drawn costs one line, not the training.
    """

    def __init__(
        self,
        shown: Shown,
        unseen: tuple[Tensor, Tensor],
        *,
        folder: Path,
        say: Callable[[str], None] = print_flushed,
    ) -> None:
        self.shown = shown
        self.unseen = unseen
        self.folder = folder
        self.say = say
        self.steps: set[int] = set()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.steps = picture_steps(int(trainer.estimated_stepping_batches))
        images = images_that_fit(pl_module.vit)  # type: ignore[arg-type]
        if images == 0:
            self.say("attention is not drawn: the maps of one image would take more than 2 GiB; patches are many")
            self.steps = set()
            return
        self.shown = self.shown.first(images)
        if trainer.global_step == 0:
            self._log(trainer, pl_module, 0)
            if trainer.is_global_zero and trainer.logger is not None:
                trainer.logger.experiment.add_text("how_to_read", HOW_TO_READ.read_text(), 0)  # type: ignore[attr-defined]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step in self.steps:
            self._log(trainer, pl_module, trainer.global_step)

    def _log(self, trainer: Trainer, module: Any, step: int) -> None:
        if not trainer.is_global_zero:
            return
        training = module.vit.training
        module.vit.eval()
        try:
            self._look(trainer, module, step)
        except OSError:
            raise  # a full disk is no matter of one picture
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            self.say(f"attention at step {step} could not be drawn ({type(error).__name__}: {reason})")
        finally:
            module.vit.train(training)

    def _look(self, trainer: Trainer, module: Any, step: int) -> None:
        vit: ViT = module.vit
        with torch.enable_grad():
            images = normalize(self.shown.images.to(module.device), module.mean, module.std)
            seen = vit.attend(images.requires_grad_())  # for gradients of maps where weights are frozen
            matrices = method_matrices(seen)
        with torch.no_grad():
            maps = read_matrices(matrices, seen.readout, grid=vit.grid)
            for tag, picture in self._pictures(vit, seen, maps, step):
                name = tag.removeprefix("attention/").replace("/", "_")
                file = self.folder / f"step_{step:06d}_{name}.png"
                log_picture(trainer, file, tag=tag, picture=picture, step=step)
            if trainer.logger is not None:
                masks = None if self.shown.masks is None else self.shown.masks.to(module.device)
                trainer.logger.log_metrics(measures(seen, vit, maps, masks), step=step)
                blobs = map_record.pack(
                    seen,
                    matrices["relevance"],
                    self.shown.images,
                    step=step,
                    grid=vit.grid,
                    titles=self._titles(self.shown.classes),
                    classes=self.shown.classes,
                )
                map_record.write(trainer.logger.experiment, blobs, step)  # type: ignore[attr-defined]
            if step == max(self.steps):
                self._log_end(trainer, module, seen, step)

    def _titles(self, names: Sequence[str]) -> list[str]:
        return [self.shown.note + names[int(label)] for label in self.shown.labels]

    def _pictures(
        self, vit: ViT, seen: Attention, maps: dict[str, Tensor], step: int
    ) -> Iterator[tuple[str, np.ndarray]]:
        shown, depth = self.shown, len(seen.maps)
        true = self._titles(shown.names)
        for layer, weights in enumerate(seen.maps, start=1):
            drawn = attention_sheet(shown.images, readout_maps(weights, seen.readout, grid=vit.grid), true)
            title = f"layer {layer} of {depth}, step {step:,}: what the pooled vector attends to through each head"
            yield f"attention/layer_{layer:02d}", headed(drawn, title, scale=True)
        share, found = seen.logits.softmax(dim=1).max(dim=1)
        titles = [
            f"true: {shown.names[int(label)]}\nfound: {shown.names[int(k)]} {100 * float(part):.0f} %"
            for label, k, part in zip(shown.labels, found, share, strict=True)
        ]
        title = f"{shown.note}all layers, step {step:,}: where the network looked; relevance is for the class found"
        yield "attention/methods", headed(method_sheet(shown.images, maps, titles), title, scale=True)
        lenses = np.linspace(1, depth, min(LENSES, depth)).round().astype(int).tolist()
        read = {f"layer {layer}": logit_lens(vit, seen.tokens[layer - 1]) for layer in lenses}
        title = f"logit lens, step {step:,}: the class that each patch is taken for; the paler, the less sure"
        yield "logit_lens", headed(lens_sheet(shown.images, read, true, shown.names), title)

    def _log_end(self, trainer: Trainer, module: Any, seen: Attention, step: int) -> None:
        """What is drawn once, at the end: matrices of one image, filters, positions, the projector."""
        vit: ViT = module.vit
        prefix = ["class token"] * vit.pool.prefix_tokens
        prefix += [f"register {i + 1}" for i in range(vit.prefix_tokens - vit.pool.prefix_tokens)]
        title = self._titles(self.shown.names)[0]
        pictures = {
            f"matrix/layer_{layer:02d}": matrix_figure(
                seen.maps[layer - 1][0], title=f"{title}, layer {layer}, step {step}", prefix=prefix, grid=vit.grid
            )
            for layer in sorted({1, len(seen.maps)})
        }
        channels, size = vit.patch_embedding.image_shape[0], vit.patch_embedding.patch_size
        if channels in (1, 3):
            weight = vit.patch_embedding.projection.weight
            pictures["embedding/patch_filters"] = filter_figure(weight, channels=channels, patch_size=size)
        if (embedding := getattr(vit.position, "embedding", None)) is not None:
            patches = embedding[0, -vit.grid[0] * vit.grid[1] :]
            pictures["embedding/positions"] = position_figure(patches, grid=vit.grid)
        for tag, picture in pictures.items():
            log_picture(trainer, self.folder / f"{tag.replace('/', '_')}.png", tag=tag, picture=picture, step=step)
        if trainer.logger is not None and len(self.unseen[0]):
            self._log_projector(trainer, module, step)

    def _log_projector(self, trainer: Trainer, module: Any, step: int) -> None:
        images, labels = (part[:PROJECTED] for part in self.unseen)
        features = [
            module.vit.features(normalize(batch.to(module.device), module.mean, module.std)).float().cpu()
            for batch in images.split(256)
        ]
        writer = trainer.logger.experiment  # type: ignore[union-attr]
        shutil.rmtree(Path(writer.log_dir) / f"{step:05d}" / "features", ignore_errors=True)  # of a run that was killed
        writer.add_embedding(
            torch.cat(features),
            metadata=[self.shown.classes[int(label)] for label in labels],
            label_img=thumbnails(images),
            global_step=step,
            tag="features",
        )
