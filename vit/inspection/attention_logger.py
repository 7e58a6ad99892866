"""Logs what every head attends to while a network learns: pictures, numbers and, at the end, embeddings."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from vit.data import normalize
from vit.data.download import print_flushed
from vit.inspection import map_record
from vit.inspection.figures import filter_figure, matrix_figure, position_figure
from vit.inspection.fonts import drawable
from vit.inspection.log_picture import log_picture, tensorboard_of
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
from vit.inspection.pictures import attention_sheet, headed, lens_sheet, method_sheet, printable
from vit.model import Attention, ViT

TIMES = 10  # TensorBoard keeps ten pictures of a tag unless told otherwise
UNENDING = 1_000_000_000  # steps, at most, over which the ten looks are spread
MEMORY = 2 << 30  # bytes at most that maps may take while they are looked at
LENSES = 6  # layers at most of which the logit lens is drawn
PROJECTED, THUMBNAIL = 1000, 32  # images at most in the projector, and the side of their pictures in pixels

HOW_TO_READ = Path(__file__).with_name("how_to_read.md")


@dataclass(frozen=True)
class Shown:
    """The images that are looked at: uint8 (B,C,H,W), their labels (B,) and the names of all classes.

    Where there are no classes, each image can have a name and a label of its own. mean and std are those of each
    channel, scaled to 0–1, by which a network wants its images normalised. masks: bool (B,H,W), true on the object,
    where it is known. note stands before each title.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    masks: Tensor | None = None
    note: str = ""

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


def measures(
    seen: Attention, maps: Mapping[str, Tensor], masks: Tensor | None, *, grid: tuple[int, int], patch_size: int
) -> dict[str, float]:
    """Numbers of each layer and head; and, where masks are known, of each method."""
    found: dict[str, Tensor] = {}
    prefix_tokens = seen.readout.shape[1] - grid[0] * grid[1]
    for layer, weights in enumerate((w.detach() for w in seen.maps), start=1):
        itself, prefix = attention_shares(weights, prefix_tokens=prefix_tokens)
        by_head = {
            "attention_distance": attention_distance(weights, grid=grid, patch_size=patch_size),
            "attention_entropy": attention_entropy(weights),
            "attention_to_itself": itself,
            **({"attention_to_prefix": prefix} if prefix_tokens else {}),
        }
        for name, values in by_head.items():
            found |= {f"{name}/layer_{layer:02d}_head_{head:02d}": v for head, v in enumerate(values, start=1)}
        found[f"head_similarity/layer_{layer:02d}"] = head_similarity(weights)
    if seen.tokens:
        found["largest_token_norm/last_layer"] = largest_norm(seen.tokens[-1].detach())
    if masks is not None:
        for name, map_of_method in maps.items():
            tag = name.replace(" ", "_")
            found[f"share_on_object/{tag}"] = share_on_object(map_of_method, masks).mean()
            found[f"points_at_object/{tag}"] = points_at_object(map_of_method, masks).float().mean()
        found["share_on_object/chance"] = found["points_at_object/chance"] = masks.float().mean()
    return {tag: float(value) for tag, value in found.items()}


@contextlib.contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """All parts of it, until each is put back into the mode it was in."""
    modes = {part: part.training for part in module.modules()}
    try:
        yield module.eval()  # type: ignore[misc]
    finally:
        for part, training in modes.items():
            part.training = training


def thumbnails(images: Tensor) -> Tensor:
    """uint8 (N,C,H,W) → float32 (N,3,S,S), whole, the shorter side filled up with white."""
    scale = THUMBNAIL / max(images.shape[2:])
    size = [max(1, round(side * scale)) for side in images.shape[2:]]
    small = F.interpolate(images.expand(-1, 3, -1, -1).float() / 255, size, mode="area")
    return F.pad(small, (0, THUMBNAIL - size[1], 0, THUMBNAIL - size[0]), value=1.0)


class AttentionLogger(Callback):
    """Writes pictures and numbers of a few fixed images ten times, to TensorBoard and as PNG files; more at the end.

    Works on any module whose attention can be told:

        attend(module, images) → maps, logits

    images are float32 (B,C,H,W) on the module's device, normalised, and the module is in eval mode.
    maps holds for each layer the weights (B,h,T,T) after softmax, before dropout, queries in rows; the last
    N = rows · columns of the T tokens are the patches row by row. logits are (B,K), or None where there are no classes;
    relevance is drawn where they have a gradient, which must then lead to the maps (else detach them). pool says what
    the network reads in the end: "cls", its first token, or "mean", that of the patches.

    Raises ValueError at the start of the training if that is not what attend returns. What cannot be drawn later costs
    one line, not the training.
    """

    def __init__(
        self,
        attend: Callable[..., Any],
        shown: Shown,
        *,
        grid: tuple[int, int],
        folder: str | Path,
        pool: str = "cls",
        say: Callable[[str], None] = print_flushed,
    ) -> None:
        if shown.images.dtype != torch.uint8:
            raise ValueError(f"the images shown are {shown.images.dtype}, not torch.uint8 from 0 to 255")
        self.attend, self.shown, self.pool = attend, shown, pool
        self.grid, self.patch_size = grid, shown.images.shape[2] // grid[0]
        self.folder, self.say = Path(folder), say
        self.classes = tuple(map(printable, shown.classes))
        self.names = drawable(self.classes, say)  # as pictures can write them
        self.steps: list[int] = []  # at which it is still to look

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.steps = sorted(picture_steps(int(min(trainer.estimated_stepping_batches, UNENDING))))
        images = self.how_many_fit(pl_module)
        if images == 0:
            self.say("attention is not drawn: the maps of one image would take more than 2 GiB; patches are many")
            self.steps = []
            return
        self.shown = self.shown.first(images)
        if self._is_due(trainer.global_step) and trainer.global_step == 0:
            self._log(trainer, pl_module, 0)
            if trainer.is_global_zero and (logger := tensorboard_of(trainer)):
                logger.experiment.add_text("how_to_read", HOW_TO_READ.read_text(), 0)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._is_due(trainer.global_step):
            self._log(trainer, pl_module, trainer.global_step)

    def _is_due(self, step: int) -> bool:
        """Once for each of the ten, also where several batches make a step, or a batch several steps."""
        waiting = len(self.steps)
        self.steps = [later for later in self.steps if later > step]
        return len(self.steps) < waiting

    def how_many_fit(self, module: Any) -> int:
        """As `images_that_fit`, by a look at the first image."""
        with torch.enable_grad(), in_eval_mode(module):
            seen = self.look(module, self._normalized(module)[:1].requires_grad_())
            try:
                method_matrices(seen)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise ValueError("logits with a gradient need maps that led to them: else detach the logits") from error
        return MEMORY // (4 * sum(weights.nbytes for weights in seen.maps))

    def look(self, module: Any, images: Tensor) -> Attention:
        """What the network sees in normalised images (B,C,H,W)."""
        maps, logits = self.attend(module, images)
        self._refuse_unusable(maps, logits, images)
        tokens, patches = maps[0].shape[3], self.grid[0] * self.grid[1]
        start, count = (0, 1) if self.pool == "cls" else (tokens - patches, patches)
        readout = images.new_zeros(len(images), tokens)
        readout[:, start : start + count] = 1 / count
        nothing = images.new_zeros(len(images), 0)
        return Attention(nothing if logits is None else logits, tuple(maps), readout, nothing, ())

    def _refuse_unusable(self, maps: Sequence[Tensor], logits: Tensor | None, images: Tensor) -> None:
        (rows, columns), (count, _, height, width) = self.grid, images.shape
        if self.pool not in ("cls", "mean"):
            raise ValueError(f"pool={self.pool} is unknown; it is one of cls mean")
        if height % rows or width % columns:
            raise ValueError(f"grid={self.grid} does not divide the images, {height}×{width}")
        if len(maps) == 0:
            raise ValueError("attend returned no maps: does the network use a fused kernel, which forms none?")
        tokens, fewest = maps[0].shape[-1], rows * columns + (self.pool == "cls")
        shapes = {tuple(weights.shape) for weights in maps}
        if shapes != {(count, maps[0].shape[1], tokens, tokens)} or tokens < fewest:
            raise ValueError(
                f"attend returned maps of {sorted(shapes)}; all must be ({count},h,T,T), T at least {fewest}"
            )
        if max(float((weights.detach().sum(dim=3) - 1).abs().max()) for weights in maps) > 0.02:
            raise ValueError("the rows of the maps do not sum to 1: they are wanted after softmax and before dropout")
        if logits is not None and logits.shape != (count, len(self.classes)):
            raise ValueError(f"attend returned logits {tuple(logits.shape)} for {len(self.classes)} classes")

    def _normalized(self, module: Any) -> Tensor:
        return normalize(self.shown.images.to(module.device), self.shown.mean, self.shown.std)

    def _log(self, trainer: Trainer, module: Any, step: int) -> None:
        if not trainer.is_global_zero:
            return
        try:
            with in_eval_mode(module):
                self._look(trainer, module, step)
        except OSError:
            raise  # a full disk is no matter of one picture
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            self.say(f"attention at step {step} could not be drawn ({type(error).__name__}: {reason})")

    def _look(self, trainer: Trainer, module: Any, step: int) -> None:
        with torch.enable_grad():
            # the images too, so that relevance has its gradients where all weights are frozen
            seen = self.look(module, self._normalized(module).requires_grad_())
            matrices = {name: matrix.float() for name, matrix in method_matrices(seen).items()}
        with torch.no_grad():
            seen = seen._replace(maps=tuple(weights.detach().float() for weights in seen.maps))
            maps = read_matrices(matrices, seen.readout, grid=self.grid)
            if logger := tensorboard_of(trainer):
                masks = None if self.shown.masks is None else self.shown.masks.to(module.device)
                found = measures(seen, maps, masks, grid=self.grid, patch_size=self.patch_size)
                logger.log_metrics(found, step=step)
                blobs = map_record.pack(
                    seen,
                    matrices.get("relevance"),
                    self.shown.images,
                    step=step,
                    grid=self.grid,
                    titles=self._titles(self.classes),
                    classes=self.classes,
                )
                map_record.write(logger.experiment, blobs, step)
            for tag, picture in self.pictures(seen, maps, step):
                name = tag.removeprefix("attention/").replace("/", "_")
                once = tag.startswith(("matrix", "embedding"))
                file = self.folder / (f"{name}.png" if once else f"step_{step:06d}_{name}.png")
                log_picture(trainer, file, tag=tag, picture=picture, step=step)
            if not self.steps:
                self.log_end(trainer, module, step)

    def _titles(self, names: Sequence[str]) -> list[str]:
        return [self.shown.note + names[int(label)] for label in self.shown.labels]

    def pictures(self, seen: Attention, maps: dict[str, Tensor], step: int) -> Iterator[tuple[str, np.ndarray]]:
        """What is drawn, by tag: at each look, and at the last also the matrices of one image."""
        shown, depth = self.shown, len(seen.maps)
        true = titles = self._titles(self.names)
        for layer, weights in enumerate(seen.maps, start=1):
            drawn = attention_sheet(shown.images, readout_maps(weights, seen.readout, grid=self.grid), true)
            title = f"layer {layer} of {depth}, step {step:,}: what the pooled vector attends to through each head"
            yield f"attention/layer_{layer:02d}", headed(drawn, title, scale=True)
        if seen.logits.shape[1]:
            share, found = seen.logits.softmax(dim=1).max(dim=1)
            titles = [
                f"true: {self.names[int(label)]}\nfound: {self.names[int(k)]} {100 * float(part):.0f} %"
                for label, k, part in zip(shown.labels, found, share, strict=True)
            ]
        title = f"{shown.note}all layers, step {step:,}: where the network looked"
        title += "; relevance is for the class found" if "relevance" in maps else ""
        yield "attention/methods", headed(method_sheet(shown.images, maps, titles), title, scale=True)
        if self.steps:
            return
        before = seen.readout.shape[1] - self.grid[0] * self.grid[1]
        read = int((seen.readout[0, :before] > 0).sum())
        prefix = ["class token"] * read + [f"register {i + 1}" for i in range(before - read)]
        for layer in sorted({1, depth}):
            title = f"{true[0]}, layer {layer}, step {step}"
            figure = matrix_figure(seen.maps[layer - 1][0], title=title, prefix=prefix, grid=self.grid)
            yield f"matrix/layer_{layer:02d}", figure

    def log_end(self, trainer: Trainer, module: Any, step: int) -> None:
        """What is logged once, at the end, beside pictures."""


class ViTLogger(AttentionLogger):
    """Of this project's own network also what takes its insides: logit lens, filters, positions and the projector.

    `unseen` are further images and their labels for the projector.
    """

    def __init__(
        self,
        vit: ViT,
        shown: Shown,
        unseen: tuple[Tensor, Tensor],
        *,
        folder: Path,
        say: Callable[[str], None] = print_flushed,
    ) -> None:
        super().__init__(vit.attend, shown, grid=vit.grid, folder=folder, say=say)
        self.vit, self.unseen = vit, unseen

    def how_many_fit(self, module: Any) -> int:
        return images_that_fit(self.vit)

    def look(self, module: Any, images: Tensor) -> Attention:
        return self.vit.attend(images)

    def pictures(self, seen: Attention, maps: dict[str, Tensor], step: int) -> Iterator[tuple[str, np.ndarray]]:
        yield from super().pictures(seen, maps, step)
        depth = len(seen.maps)
        lenses = np.linspace(1, depth, min(LENSES, depth)).round().astype(int).tolist()
        read = {f"layer {layer}": logit_lens(self.vit, seen.tokens[layer - 1]) for layer in lenses}
        title = f"logit lens, step {step:,}: the class that each patch is taken for; the paler, the less sure"
        drawn = lens_sheet(self.shown.images, read, self._titles(self.names), self.names)
        yield "logit_lens", headed(drawn, title)
        if self.steps:
            return
        embedding, channels = self.vit.patch_embedding, self.vit.patch_embedding.image_shape[0]
        if channels in (1, 3):
            weight = embedding.projection.weight
            yield "embedding/patch_filters", filter_figure(weight, channels=channels, patch_size=embedding.patch_size)
        if (positions := getattr(self.vit.position, "embedding", None)) is not None:
            yield "embedding/positions", position_figure(positions[0, -self.grid[0] * self.grid[1] :], grid=self.grid)

    def log_end(self, trainer: Trainer, module: Any, step: int) -> None:
        if (logger := tensorboard_of(trainer)) is None or not len(self.unseen[0]):
            return
        images, labels = (part[:PROJECTED] for part in self.unseen)
        features = [
            self.vit.features(normalize(batch.to(module.device), self.shown.mean, self.shown.std)).float().cpu()
            for batch in images.split(256)
        ]
        writer = logger.experiment
        shutil.rmtree(Path(writer.log_dir) / f"{step:05d}" / "features", ignore_errors=True)  # of a run that was killed
        writer.add_embedding(
            torch.cat(features),
            metadata=[self.classes[int(label)] for label in labels],
            label_img=thumbnails(images),
            global_step=step,
            tag="features",
        )
