"""From the name of a source to batches: images held in memory, split, and fetched a whole batch at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from vit.data.cifar import cifar10, cifar100
from vit.data.download import print_flushed
from vit.data.folder import folder
from vit.data.image_set import Choose, ImageSet, Split
from vit.data.shapes import shapes
from vit.settings import UserError

SPLIT_SEED = 20_210_503  # the validation images are the same in every run, whatever its seed


def load_images(
    source: str,
    *,
    root: Path = Path("data"),
    url: str | None = None,
    image_size: tuple[int, int] = (32, 32),
    say: Callable[[str], None] = print_flushed,
    train_rows: Choose | None = None,
) -> ImageSet:
    """Read a source into memory: cifar10, cifar100, folder or shapes; of the training images those of `train_rows`.

    Raises UserError where something is missing.
    """
    sources: dict[str, Callable[[], ImageSet]] = {
        "cifar10": lambda: cifar10(root, url=url, say=say),
        "cifar100": lambda: cifar100(root, url=url, say=say),
        "folder": lambda: folder(root, image_size=image_size, say=say, train_rows=train_rows or torch.arange),
        "shapes": shapes,
    }
    images = sources[source]()
    train = images.train if train_rows is None or source == "folder" else images.train.at(train_rows(len(images.train)))
    return ImageSet(images.description, images.classes, _resized(train, image_size), _resized(images.test, image_size))


def split_rows(total: int, validation: int | None) -> tuple[Tensor, Tensor]:
    """The rows of the training images that are kept aside for validation, and the others: the same in every run.

    None means a tenth, at most 5,000.
    """
    validation = min(5000, total // 10) if validation is None else validation
    order = torch.randperm(total, generator=torch.Generator().manual_seed(SPLIT_SEED))
    return order[:validation].sort().values, order[validation:].sort().values


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel over all pixels of uint8 (N,C,H,W), scaled to 0–1.

    Exact, from counts of the 256 levels. (A copied CIFAR-10 deviation of 0.20 is the mean of the images' own.)
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]).double()
    share = counts / counts.sum(1, keepdim=True)
    mean = share @ levels
    variance = (share * (levels - mean[:, None]) ** 2).sum(1)
    std = variance.sqrt().clamp(min=1 / 255)  # a channel that never changes is left as it is
    return tuple(mean.tolist()), tuple(std.tolist())


def derived_seed(*numbers: int) -> int:
    """A seed of 63 bits for each combination of numbers, such as (seed, step); neighbours have nothing in common."""
    mixed = np.random.SeedSequence((len(numbers), *numbers))  # the length, since zeros at the end change nothing
    return int(mixed.generate_state(1, np.uint64)[0] >> 1)


class InMemory(TensorDataset):
    """Images uint8 (N,C,H,W), labels (N,) and, if known, masks (N,H,W); a batch is one indexing operation."""

    @classmethod
    def of(cls, split: Split, rows: Tensor) -> Self:
        """These rows of a split."""
        masks = [] if split.masks is None else [split.masks[rows]]
        return cls(split.images[rows], split.labels[rows], *masks)

    @property
    def images(self) -> Tensor:
        return self.tensors[0]

    @property
    def labels(self) -> Tensor:
        return self.tensors[1]

    @property
    def masks(self) -> Tensor | None:
        return self.tensors[2] if len(self.tensors) > 2 else None

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        rows = torch.tensor(indices)
        return tuple(part.index_select(0, rows) for part in self.tensors)  # a tenth of the time of part[rows]


def identity_collate(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The batch is whole already. Named here since a lambda cannot reach a spawned worker."""
    return batch


class ImageData(LightningDataModule):
    """Training and validation batches of an image set.

    batch_size counts the images of a step over all devices. `validation` training images are kept aside: see
    `split_rows`. The order of an epoch is a function of (seed, epoch). Raises UserError if no image remains.
    """

    def __init__(
        self,
        image_set: ImageSet,
        *,
        validation: int | None,
        batch_size: int,
        seed: int,
        workers: int = 0,
        pin: bool = False,
    ) -> None:
        super().__init__()
        total = len(image_set.train)
        kept, rest = split_rows(total, validation)
        if not len(rest):
            raise UserError(f"validation={validation} leaves none of the {total:,} training images to train on")
        self.train = InMemory.of(image_set.train, rest)
        self.validation = InMemory.of(image_set.train, kept)
        self.mean, self.std = channel_statistics(self.train.images)
        self.batch_size, self.seed, self.workers, self.pin = batch_size, seed, workers, pin

    def train_dataloader(self) -> DataLoader:
        world, rank = self._world_size_and_rank()
        seed = derived_seed(self.seed)  # to which the sampler adds the epoch
        sampler: DistributedSampler = DistributedSampler(self.train, num_replicas=world, rank=rank, seed=seed)
        return self._loader(self.train, sampler, self.batch_size // world)

    def val_dataloader(self) -> DataLoader:
        world, rank = self._world_size_and_rank()
        share = range(rank, len(self.validation), world)  # unpadded: no image counts twice
        return self._loader(self.validation, share, self.batch_size)

    def _world_size_and_rank(self) -> tuple[int, int]:
        return (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)

    def _loader(self, images: InMemory, sampler: Sequence[int] | DistributedSampler, batch_size: int) -> DataLoader:
        return DataLoader(
            images,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            collate_fn=identity_collate,  # type: ignore[arg-type]
            pin_memory=self.pin,
        )


def _resized(split: Split, image_size: tuple[int, int]) -> Split:
    if split.images.shape[2:] == image_size:
        return split
    chunks = [  # in float, which would not fit all at once
        F.interpolate(chunk.float(), image_size, mode="bicubic", antialias=True).round().clamp(0, 255).byte()
        for chunk in split.images.split(1000)
    ]
    masks = (
        None
        if split.masks is None
        else F.interpolate(split.masks[:, None].byte(), image_size, mode="nearest-exact")[:, 0].bool()
    )
    return Split(torch.cat(chunks), split.labels, masks)
