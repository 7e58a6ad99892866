"""What a checkpoint takes any image for, and where it looked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vit.data import normalize
from vit.data.folder import SUFFIXES, decode
from vit.inspection.maps import method_maps
from vit.inspection.pictures import method_sheet, png
from vit.model import ViT
from vit.runs.machine import advise_on_memory, plain_console
from vit.settings import PredictSettings, UserError
from vit.training.checkpoint import Facts, find_checkpoint, load, write_atomically
from vit.training.precision import choose_device

LIKELIEST = 5
SIDE = 256  # pixels, about, of a picture
CHUNK = 64  # images at once


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one image, with probabilities, and its maps (rows,columns) by each method."""

    file: Path
    classes: tuple[tuple[str, float], ...]
    maps: dict[str, Tensor]


def predict(settings: PredictSettings) -> list[Prediction]:
    """Print the five likeliest classes of each image, and write a picture of where the network looked.

    Raises UserError where a file is missing or no image.
    """
    assert settings.checkpoint is not None
    console = plain_console()
    path = find_checkpoint(settings.checkpoint)
    vit, facts = load(path)
    files = image_files(settings.images)
    vit.to(choose_device(settings.device))
    console.print(f"checkpoint   {path}: epoch {facts.epoch}, {facts.weights} weights, trained on {facts.images}")
    output = Path(settings.output).expanduser()
    found: list[Prediction] = []
    with advise_on_memory("name fewer or smaller images"):
        for start in range(0, len(files), CHUNK):
            found += classify(vit, facts, files[start : start + CHUNK])
    width = max(len(prediction.file.name) for prediction in found)
    names: set[str] = set()
    for prediction in found:
        likeliest = "  ".join(f"{name} {100 * share:.1f} %" for name, share in prediction.classes)
        console.print(f"{prediction.file.name:{width}}  {likeliest}")
        name = prediction.file.name
        while name in names:  # of another folder
            name = f"_{name}"
        names.add(name)
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"output={output} cannot be made: {error.strerror}") from error
        write_atomically(output / f"{name}.png", png(picture(prediction, vit.patch_embedding.image_shape[1:])))
    console.print(f"pictures     {output.resolve()}")
    return found


def image_files(named: Sequence[str]) -> list[Path]:
    """The files themselves, and the images in folders. Raises UserError where there is none."""
    files: list[Path] = []
    for name in named:
        place = Path(name).expanduser()
        inside = sorted(file for file in place.iterdir() if is_image(file)) if place.is_dir() else [place]
        if not place.exists() or not inside:
            raise UserError(f"images={name} " + ("holds no image" if place.is_dir() else "is not there"))
        files += inside
    return files


def is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and file.is_file()


def classify(vit: ViT, facts: Facts, files: Sequence[Path]) -> list[Prediction]:
    """Decoded, scaled and cut to the network's size as `data=folder` does."""
    channels, *size = vit.patch_embedding.image_shape
    pixels = torch.stack([torch.from_numpy(read(file, (size[0], size[1]))).permute(2, 0, 1) for file in files])
    images = pixels if channels == 3 else pixels.float().mean(1, keepdim=True).byte()
    seen = vit.attend(normalize(images.to(vit.head.weight.device), facts.mean, facts.std))
    maps = method_maps(seen, grid=vit.grid)
    shares, labels = seen.logits.detach().softmax(dim=1).topk(min(LIKELIEST, len(facts.classes)))
    return [
        Prediction(
            file,
            tuple((facts.classes[int(i)], float(share)) for share, i in zip(shares[row], labels[row], strict=True)),
            {name: of_all[row].cpu() for name, of_all in maps.items()},
        )
        for row, file in enumerate(files)
    ]


def picture(prediction: Prediction, size: Sequence[int]) -> np.ndarray:
    """The image, as large as it is useful, and beside it each method's map laid over it: (H',W',3)."""
    scale = max(1, SIDE // max(size))
    shown = torch.from_numpy(read(prediction.file, (size[0] * scale, size[1] * scale))).permute(2, 0, 1)
    title = "  ".join(f"{name} {100 * share:.0f}%" for name, share in prediction.classes[:2])
    return method_sheet(
        shown[None], {name: m[None] for name, m in prediction.maps.items()}, [title], above="image", side=SIDE
    )


def read(file: Path, size: tuple[int, int]) -> np.ndarray:
    """uint8 (H,W,3). Raises UserError if it is no image."""
    try:
        return np.array(decode(file.read_bytes(), size))
    except Exception as error:  # Pillow raises anything at all
        raise UserError(f"{file} cannot be read as an image ({' '.join(str(error).split())[:200]})") from error
