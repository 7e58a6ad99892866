"""What a checkpoint takes any image for, and where it looked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vit.data import normalize
from vit.data.folder import SUFFIXES, decode, quiet_pillow, read_file
from vit.inspection import explorer, map_record
from vit.inspection.attention_logger import images_that_fit
from vit.inspection.fonts import drawable
from vit.inspection.maps import method_matrices, read_matrices
from vit.inspection.pictures import headed, jpeg, method_sheet, png, printable
from vit.model import Attention, ViT
from vit.runs.machine import advise_on_memory, plain_console
from vit.settings import PredictSettings, UserError
from vit.training.checkpoint import Facts, find_checkpoint, write_atomically
from vit.training.precision import choose_device
from vit.training.pretrained import load

LIKELIEST = 5
SIDE = 256  # pixels, about, of a picture
CHUNK = 64  # images at once, or fewer if their maps are large
EXPLORER = "explorer.html"


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one image, with probabilities, and its maps (rows,columns) by each method."""

    file: Path
    classes: tuple[tuple[str, float], ...]
    maps: dict[str, Tensor]


class Seen(NamedTuple):
    """What was seen in a chunk of images, and their relevance matrices (B,T,T)."""

    attention: Attention
    relevance: Tensor


def predict(settings: PredictSettings) -> list[Prediction]:
    """Print the five likeliest classes of each image, and write a picture of where the network looked.

    With explorer, also a page of all of them. Raises UserError where a file is missing or, when all others are done,
    where one is no image.
    """
    console = plain_console()
    path = find_checkpoint(str(settings.checkpoint))
    vit, facts = load(path, **settings.group("network"))
    files = image_files(settings.images)
    vit.to(choose_device(settings.device))
    about = f"epoch {facts.epoch}, {facts.weights} weights, trained on " if facts.settings else ""
    console.print(f"checkpoint   {path}: {about}{facts.images}")
    output = Path(settings.output).expanduser()
    room = page_room(vit) if settings.explorer else 0
    found: list[Prediction] = []
    kept: list[Seen] = []
    readable = [file for file in files if is_readable(file, console.print)]
    if not readable:
        raise UserError("no image could be read")
    with advise_on_memory("name fewer or smaller images"):
        chunk = min(CHUNK, max(1, images_that_fit(vit)))
        for start in range(0, len(readable), chunk):
            predictions, seen = classify(vit, facts, readable[start : start + chunk])
            found += predictions
            if start < room:
                kept.append(seen)
    width = max(len(prediction.file.name) for prediction in found)
    names = dict(zip(facts.classes, drawable(tuple(map(printable, facts.classes)), console.print), strict=True))
    written: set[str] = set()
    for prediction in found:
        likeliest = "  ".join(f"{name} {100 * share:.1f} %" for name, share in prediction.classes)
        console.print(f"{prediction.file.name:{width}}  {likeliest}")
        name = prediction.file.name
        while name in written:  # of another folder
            name = f"_{name}"
        written.add(name)
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"output={output} cannot be made: {error.strerror}") from error
        write_atomically(output / f"{name}.png", png(picture(prediction, vit, names)))
    console.print(f"pictures     {output.resolve()}")
    if settings.explorer:
        content = explore(vit, facts, path, found[:room], kept)
        write_atomically(output / EXPLORER, content)
        size = f"{len(content) / 1e6:.1f} MB"
        size += f"; it has room for the first {room:,} of {len(found):,} images" if room < len(found) else ""
        console.print(f"explorer     {(output / EXPLORER).resolve()} ({size})")
    if len(readable) < len(files):
        raise UserError(f"{len(files) - len(readable)} of {len(files)} files could not be read; the others are done")
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


def classify(vit: ViT, facts: Facts, files: Sequence[Path]) -> tuple[list[Prediction], Seen]:
    """Decoded, scaled and cut to the network's size as `data=folder` does."""
    channels, *size = vit.patch_embedding.image_shape
    pixels = torch.stack([torch.from_numpy(read(file, (size[0], size[1]))).permute(2, 0, 1) for file in files])
    images = pixels if channels == 3 else pixels.float().mean(1, keepdim=True).byte()
    seen = vit.attend(normalize(images.to(vit.head.weight.device), facts.mean, facts.std))
    if not seen.logits.isfinite().all():
        raise UserError("what the network computes is not finite: its weights are too large, or it has diverged")
    matrices = method_matrices(seen)
    maps = read_matrices(matrices, seen.readout, grid=vit.grid)
    shares, labels = seen.logits.detach().softmax(dim=1).topk(min(LIKELIEST, len(facts.classes)))
    predictions = [
        Prediction(
            file,
            tuple((facts.classes[int(i)], float(share)) for share, i in zip(shares[row], labels[row], strict=True)),
            {name: of_all[row].cpu() for name, of_all in maps.items()},
        )
        for row, file in enumerate(files)
    ]
    return predictions, Seen(without_graph(seen), matrices["relevance"].cpu())


def page_room(vit: ViT) -> int:
    """How many images' maps a page takes. Raises UserError if it is none."""
    tokens = vit.prefix_tokens + vit.grid[0] * vit.grid[1]
    size = sum(layer.attention.heads for layer in vit.layers) * tokens**2  # type: ignore[union-attr, misc]
    if size > explorer.LARGEST:
        raise UserError(f"explorer=true: the maps of one image take {size / 1e6:,.0f} MB, too much for a page")
    return explorer.LARGEST // size


def without_graph(seen: Attention) -> Attention:
    """What a page needs of it, in main memory."""
    logits, readout, features = (part.detach().cpu() for part in (seen.logits, seen.readout, seen.features))
    return Attention(logits, tuple(weights.detach().cpu() for weights in seen.maps), readout, features, ())


def explore(vit: ViT, facts: Facts, path: Path, shown: Sequence[Prediction], kept: Sequence[Seen]) -> bytes:
    """The page of the images shown; kept holds those, and perhaps more."""
    pictures = torch.stack([enlarged(prediction.file, vit) for prediction in shown])
    parts = [seen.attention for seen in kept]
    blobs = map_record.pack(
        Attention(
            torch.cat([part.logits for part in parts]),
            tuple(torch.cat(weights) for weights in zip(*(part.maps for part in parts), strict=True)),
            torch.cat([part.readout for part in parts]),
            torch.cat([part.features for part in parts]),
            (),
        ),
        torch.cat([seen.relevance for seen in kept]),
        pictures,
        step=facts.step,
        grid=vit.grid,
        titles=[printable(prediction.file.name) for prediction in shown],
        classes=facts.classes,
        largest=explorer.LARGEST,
        encode=jpeg,
    )
    name = path.resolve().parent.name if facts.settings else path.name
    return explorer.explorer_page(name, blobs, step=facts.step)


def picture(prediction: Prediction, vit: ViT, names: Mapping[str, str]) -> np.ndarray:
    """The image, as large as it is useful, and beside it each method's map laid over it: (H',W',3).

    names: of the classes, as pictures can write them.
    """
    shown = enlarged(prediction.file, vit)
    found = ", ".join(f"{names[name]} {100 * share:.0f} %" for name, share in prediction.classes[:3])
    maps = {name: one[None] for name, one in prediction.maps.items()}
    return headed(method_sheet(shown[None], maps, [""], side=SIDE), f"found: {found}", scale=True)


def enlarged(file: Path, vit: ViT) -> Tensor:
    """An image cut as for the network, but with more of its pixels: uint8 (3,H,W), a multiple of the network's size."""
    height, width = vit.patch_embedding.image_shape[1:]
    scale = max(1, SIDE // max(height, width))
    return torch.from_numpy(read(file, (height * scale, width * scale))).permute(2, 0, 1)


def read(file: Path, size: tuple[int, int]) -> np.ndarray:
    """uint8 (H,W,3)."""
    with quiet_pillow():
        return np.array(decode(read_file(file), size))


def is_readable(file: Path, say: Callable[[str], None]) -> bool:
    """Whether it is an image; says so if not."""
    try:
        read(file, (1, 1))
    except Exception as error:  # Pillow raises anything at all
        reason = "" if "BytesIO" in str(error) else f" ({' '.join(str(error).split())[:200]})"
        say(f"{file} cannot be read as an image{reason}")
        return False
    return True
