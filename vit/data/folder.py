"""A folder of images, train/CLASS/… and test/CLASS/…, or a zip of one. Everything is decoded once, into memory."""

import functools
import io
import os
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from vit.data.download import SECONDS_BETWEEN_LINES, print_flushed
from vit.data.image_set import Choose, ImageSet, Split
from vit.settings import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # by content: an EPS would start Ghostscript
BYTES_MAX = 1 << 28  # of one file in a zip, unpacked
CHUNK = 500  # images a thread decodes at a time
# Bytes a file from which on threads are used. With smaller ones they only pass Python's lock to and fro: to decode
# 60,000 JPEGs of 1 kB took one thread 4.9 s and two, on two idle cores, 8.5 s.
THREADS_FROM = 10_000

Read = Callable[[str], bytes]  # from the name of a file, such as train/cat/0001.png
Say = Callable[[str], None]


def folder(
    root: Path, *, image_size: tuple[int, int] = (32, 32), say: Say = print_flushed, train_rows: Choose = torch.arange
) -> ImageSet:
    """Decode the images under `root`, a folder or a zip, to uint8 (N,3,H,W), where image_size is (H, W).

    An image of another size is scaled, its sides in proportion, until it covers H × W, and cut about its centre. What
    is transparent becomes white. Files that are not images are passed over, and counted aloud.
    Raises UserError where a class, an image or a whole half is missing or unreadable.
    """
    root = root.expanduser().absolute()
    names, read = _list_folder(root) if root.is_dir() else _list_zip(root)
    train, test = _by_class(names, "train", root), _by_class(names, "test", root)
    if odd := sorted(train.keys() ^ test.keys()):
        where = ", ".join(f"{'train' if name in train else 'test'}/{name}/" for name in odd)
        raise UserError(f"{root}: train/ and test/ must hold the same classes, but there is only {where}")
    if len(train) < 2:
        raise UserError(f"{root} holds one class, {next(iter(train))}: at least two are needed")
    if others := [name for name in names if not name.endswith("/") and not _is_image(name)]:
        say(f"{root.name}: passed over {len(others):,} files that are not images, such as {others[0]}")
    decode_half = functools.partial(_decode_half, read=read, root=root, image_size=image_size, say=say)
    halves = decode_half(train, train_rows), decode_half(test, torch.arange)
    return ImageSet(f"images of {root.name}", tuple(train), *halves)


def _list_folder(root: Path) -> tuple[list[str], Read]:
    """The names of all files, and of folders with a '/' at the end, under what holds train/ and test/."""
    top = root
    if not (root / "train").is_dir() and not (root / "test").is_dir():
        inside = [path for path in root.iterdir() if path.is_dir() and not _is_junk(path.name)]
        top = inside[0] if len(inside) == 1 else root
    names: list[str] = []
    seen: set[str] = set()  # links may lead in a circle
    for half in ("train", "test"):
        for place, folders, files in os.walk(top / half, followlinks=True):
            if os.path.realpath(place) in seen:
                folders.clear()
                continue
            seen.add(os.path.realpath(place))
            parent = Path(place).relative_to(top).as_posix()
            names += [f"{parent}/{name}" for name in (*files, *(f"{name}/" for name in folders))]
    return [name for name in names if not _is_junk(name)], lambda name: read_file(top / name)


def _list_zip(root: Path) -> tuple[list[str], Read]:
    """As _list_folder. The zip is never unpacked onto the disk."""
    try:
        if root.exists() and not root.is_file():
            raise ValueError("a pipe or a device")
        archive = zipfile.ZipFile(root)
    except Exception as error:  # a damaged one raises anything at all
        reason = "does not exist" if not root.exists() else f"is neither a folder nor a zip that can be read ({error})"
        raise UserError(f"{root} {reason}: a folder or zip with train/CLASS/… and test/CLASS/… is needed") from error
    members = {info.filename.replace("\\", "/"): info for info in archive.infolist()}  # \ : made on Windows
    members = {name: info for name, info in members.items() if not _is_junk(name)}
    tops = {name.partition("/")[0] for name in members}
    if len(tops) == 1 and not tops & {"train", "test"}:
        members = {name.partition("/")[2]: info for name, info in members.items()}
    if any(info.flag_bits & 1 for info in members.values()):
        raise UserError(f"{root} is encrypted: unpack it, and name the folder")

    def read(name: str) -> bytes:
        if members[name].file_size > BYTES_MAX:
            raise ValueError(f"{members[name].file_size / 1e6:,.0f} MB are too much for one image")
        return archive.read(members[name])

    return list(members), read


def _by_class(names: list[str], half: str, root: Path) -> dict[str, list[str]]:
    """The images of each class of train/ or test/, both in the order of their names."""
    classes: dict[str, list[str]] = {}
    for name in sorted(names):
        top, _, rest = name.partition("/")
        if top == half and "/" in rest:
            images = classes.setdefault(rest.partition("/")[0], [])
            if _is_image(name):
                images.append(name)
    if not classes:
        raise UserError(f"{root} holds no {half}/CLASS/…: it needs train/ and test/ with a folder for each class")
    if empty := [f"{half}/{name}/" for name, images in classes.items() if not images]:
        raise UserError(f"{root}: no image in {', '.join(empty)}")
    return dict(sorted(classes.items()))  # "a b/" sorts before "a/", but "a b" after "a"


def read_file(path: Path) -> bytes:
    """The bytes of a regular file. Raises ValueError for a pipe or a device, which might never end."""
    if path.exists() and not path.is_file():
        raise ValueError("a pipe or a device")
    return path.read_bytes()


def _is_junk(name: str) -> bool:
    """Hidden, or left behind by macOS or Windows."""
    return any(part.startswith(".") or part in ("__MACOSX", "Thumbs.db", "desktop.ini") for part in name.split("/"))


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _decode_half(
    classes: dict[str, list[str]], choose: Choose, *, read: Read, root: Path, image_size: tuple[int, int], say: Say
) -> Split:
    names = [name for files in classes.values() for name in files]
    labels = torch.tensor([label for label, files in enumerate(classes.values()) for _ in files])
    rows = choose(len(names))
    names, labels = [names[row] for row in rows.tolist()], labels[rows]
    images = torch.empty(len(names), 3, *image_size, dtype=torch.uint8)
    if not names:
        return Split(images, labels)
    pixels = images.permute(0, 2, 3, 1).numpy()  # the same memory, in Pillow's order

    def decode_named(name: str) -> np.ndarray:
        try:
            return decode(read(name), image_size)
        except Exception as error:  # a damaged file makes Pillow and zipfile raise anything at all
            raise UserError(f"{root.name}: {name} cannot be read ({' '.join(str(error).split())})") from error

    def decode_chunk(start: int) -> int:
        stop = min(start + CHUNK, len(names))
        for index in range(start, stop):
            pixels[index] = decode_named(names[index])
        return stop

    said = time.monotonic()
    with quiet_pillow():
        decode_named(names[0])  # if it is damaged, this says so
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        with ThreadPoolExecutor(allowed if len(read(names[0])) > THREADS_FROM else 1) as pool:
            for done in pool.map(decode_chunk, range(0, len(names), CHUNK)):
                if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
                    said = time.monotonic()
                    say(f"{root.name}: {done:,} of {len(names):,} images decoded")
    return Split(images, labels)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """No remarks, and no image of more than 89 million pixels. For the whole process, hence not in each thread."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # on an odd EXIF block or palette
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode(data: bytes, image_size: tuple[int, int]) -> np.ndarray:
    """The bytes of a file to uint8 (H,W,3). Raises whatever Pillow does.

    Of the 70 µs for a CIFAR-10 JPEG, libjpeg takes 20; torchvision.io needs 23 in all, but is deprecated since 0.29.
    """
    height, width = image_size
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if image.size != (width, height):
            image.draft(None, (2 * max(image_size),) * 2)  # a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size
        ImageOps.exif_transpose(image, in_place=True)
        picture = _to_rgb(image)
        if picture.size != (width, height):
            picture = ImageOps.fit(picture, (width, height), Image.Resampling.BICUBIC)
        return np.asarray(picture)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels, of unknown range")
    if image.mode.startswith("I"):  # 16 bits, which convert() would clip at 255
        levels = np.asarray(image).clip(0, 65535) / 257
        image = Image.fromarray(levels.round().astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")
