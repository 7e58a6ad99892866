"""The pictures of docs/data.md: python docs/data_pictures.py DATA, a CIFAR-10 folder or zip as for data=folder."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vit.data import Augmentation, load_images
from vit.data.trivial_augment import OPERATIONS, Draw, trivial_augment
from vit.inspection.data_logger import example_sheet, target_name
from vit.inspection.pictures import outlined, sheet, to_picture

HERE = Path(__file__).parent
STEPS = (-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the strongest magnitude


def operations(image: torch.Tensor) -> np.ndarray:
    """A row an operation, from weak to strong; those with a sign also the other way."""
    rows, below = [], []
    for number, (name, operation) in enumerate(OPERATIONS.items()):
        steps = STEPS if operation.signed else tuple(max(step, 0.0) for step in STEPS)
        magnitudes = [operation.weakest + step * (operation.strongest - operation.weakest) for step in steps]
        drawn = Draw(torch.full((len(steps),), number), torch.tensor(magnitudes))
        rows.append([to_picture(changed) for changed in trivial_augment(image.expand(len(steps), -1, -1, -1), drawn)])
        fixed = operation.weakest == operation.strongest
        below.append([name, *("" if fixed else f"{magnitude:g}" for magnitude in magnitudes[1:])])
    return sheet(rows, below, above=["TrivialAugment: each operation, weak to strong"], side=96)


def changes(images: torch.Tensor, labels: torch.Tensor, masks: torch.Tensor | None, classes: tuple) -> np.ndarray:
    """A row for each kind of change, of the same eight images; masks, where they are known, in red."""
    kinds = {
        "as they are": Augmentation(crop=0, flip=False),
        "crop, flip": Augmentation(),
        "TrivialAugment": Augmentation(crop=0, flip=False, trivial_augment=True),
        "erasing=1": Augmentation(crop=0, flip=False, erasing=1.0),
        "mixup=0.8": Augmentation(crop=0, flip=False, mixup=0.8),
        "cutmix=1": Augmentation(crop=0, flip=False, cutmix=1.0),
        "all of them": Augmentation(trivial_augment=True, erasing=0.25, mixup=0.8, cutmix=1.0),
    }
    rows, below = [], []
    for name, change in kinds.items():
        torch.manual_seed(1)
        batch = change(images, labels, masks, classes=len(classes))
        pictures = [to_picture(image) for image in batch.images]
        if batch.masks is not None:
            pictures = [outlined(p, mask.numpy()) for p, mask in zip(pictures, batch.masks, strict=True)]
        rows.append([np.full_like(pictures[0], 255), *pictures])
        below.append([name, *(target_name(target, classes) for target in batch.targets)])
    return sheet(rows, below, above=[], side=96)


def main(root: Path) -> None:
    cifar, shapes = load_images("folder", root=root), load_images("shapes")
    save("cifar10", example_sheet(cifar.train.images, cifar.train.labels, cifar.classes))
    save("shapes", example_sheet(shapes.train.images, shapes.train.labels, shapes.classes))
    first = torch.stack([(cifar.train.labels == label).nonzero()[0, 0] for label in range(8)])
    save("operations", operations(cifar.train.images[first[5]]))
    save("changes", changes(cifar.train.images[first], cifar.train.labels[first], None, cifar.classes))
    drawn = shapes.train
    assert drawn.masks is not None
    save("changes_masks", changes(drawn.images[:8], drawn.labels[:8], drawn.masks[:8], shapes.classes))


def save(name: str, picture: np.ndarray) -> None:
    Image.fromarray(picture).save(HERE / f"data_{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
