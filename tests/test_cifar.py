"""CIFAR-10's reader, on an archive of 24 images in torchvision's layout."""

import hashlib
import io
import os
import pickle
import tarfile
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10, CIFAR100

from vit.data import cifar
from vit.data.cifar import cifar10, cifar100
from vit.settings import UserError

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
BATCHES = ["data_batch_1", "data_batch_2", "test_batch"]


def pixels(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).integers(0, 256, (8, 3072), dtype=np.uint8)


class OldNumpy(pickle.Pickler):
    """Writes a dtype's `align` as a number, as the numpy of 2009 did.

    numpy 2.4.0 to 2.4.4 remark on its 0, from 2.4.5 on only on other numbers, such as this 2.
    """

    def reducer_override(self, thing: object) -> object:
        if isinstance(thing, np.dtype):
            return np.dtype, ("u1", 2, 1), (3, "|", None, None, None, -1, -1, 0)
        return NotImplemented


def batch_file(batch: int) -> bytes:
    file = io.BytesIO()
    OldNumpy(file, protocol=2).dump({"data": pixels(batch), "labels": [(batch + i) % 10 for i in range(8)]})
    return file.getvalue()


FILES = {name: batch_file(number) for number, name in enumerate(BATCHES)}
FILES["batches.meta"] = pickle.dumps({"label_names": CLASSES}, protocol=2)


def archive() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in FILES.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


ARCHIVE = archive()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


class Tiny(CIFAR10):
    tgz_md5 = md5(ARCHIVE)
    train_list = [[name, md5(FILES[name])] for name in BATCHES[:2]]  # noqa: RUF012
    test_list = [["test_batch", md5(FILES["test_batch"])]]  # noqa: RUF012
    meta = {"filename": "batches.meta", "key": "label_names", "md5": md5(FILES["batches.meta"])}  # noqa: RUF012


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "CIFAR10", Tiny)
    monkeypatch.setattr(cifar, "CIFAR10_URLS", ("https://[no network in tests",))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("served")
    (place / "a.tar.gz").write_bytes(ARCHIVE)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(place))) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/a.tar.gz"
        running.shutdown()
        thread.join()


def unpacked(root: Path) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def check(images: cifar.ImageSet) -> None:
    assert images.description == "CIFAR-10"
    assert images.classes == tuple(CLASSES)
    assert images.train.images.shape == (16, 3, 32, 32)
    assert images.train.images.dtype == torch.uint8
    assert images.train.images.is_contiguous()
    assert images.train.labels.dtype == torch.int64
    assert images.train.labels.tolist() == [*range(8), *range(1, 9)]
    assert images.test.labels.tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert torch.equal(images.train.images[8:], torch.from_numpy(pixels(1)).view(8, 3, 32, 32))
    assert torch.equal(images.test.images, torch.from_numpy(pixels(2)).view(8, 3, 32, 32))


def refusal(root: Path, **given: str) -> str:
    with pytest.raises(UserError) as caught:
        cifar10(root, say=lambda line: None, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_real_archives_md5() -> None:
    assert CIFAR10.tgz_md5 == "c58f30108f718f92721af3b95e74349a"


def test_D1_an_archive_put_there_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(ARCHIVE)
    check(cifar10(tmp_path))
    names = {entry.name for entry in tmp_path.iterdir()}
    assert names >= {"cifar-10-python.tar.gz", "cifar-10-batches-py"}
    assert not any(name.endswith(".part") for name in names)


def test_D1_a_given_source_replaces_the_others(tmp_path: Path, server: str) -> None:
    lines: list[str] = []
    check(cifar10(tmp_path / "new" / "data", url=server, say=lines.append))
    assert lines[0].startswith("downloading cifar-10-python.tar.gz from 127.0.0.1:")


def test_D2_no_data_and_no_network_is_one_line_of_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(Path("data"), url="http://127.0.0.1:9/x") == (
        f"CIFAR-10 is not in {tmp_path}/data, and cifar-10-python.tar.gz could not be downloaded "
        f"(127.0.0.1:9: Connection refused): put cifar-10-python.tar.gz into {tmp_path}/data, "
        "or train on data=shapes, which needs no download"
    )


def test_D2_with_the_data_there_nothing_is_asked_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = unpacked(tmp_path)
    monkeypatch.setattr(cifar, "download", None)
    monkeypatch.setattr(cifar, "file_lock", None)
    tmp_path.chmod(0o555)
    folder.chmod(0o555)
    try:
        check(cifar10(tmp_path))
        check(cifar10(folder))  # the unpacked folder itself was named
        assert list(tmp_path.iterdir()) == [folder]
    finally:
        tmp_path.chmod(0o755)
        folder.chmod(0o755)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_empty_read_only_folder_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        assert "cannot be written: Permission denied" in refusal(tmp_path)
    finally:
        tmp_path.chmod(0o755)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be written: Not a directory" in refusal(tmp_path / "file" / "data")


def test_D4_two_at_once_on_an_empty_folder(tmp_path: Path, server: str) -> None:
    lines: list[str] = []
    found: list[cifar.ImageSet] = []
    threads = [
        threading.Thread(target=lambda: found.append(cifar10(tmp_path, url=server, say=lines.append))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(found) == 2
    for images in found:
        check(images)
    assert len([line for line in lines if line.startswith("downloading")]) == 1


def test_D4_a_killed_unpack_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(ARCHIVE)
    left = tmp_path / "cifar-10-batches-py.part" / "cifar-10-batches-py"
    left.mkdir(parents=True)
    (left / "data_batch_1").write_bytes(FILES["data_batch_1"][:100])
    check(cifar10(tmp_path))
    assert not left.parent.exists()


def test_D5_numpys_remark_on_the_old_pickle_is_not_shown(tmp_path: Path) -> None:
    unpacked(tmp_path)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pickle.loads(FILES["data_batch_1"])
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        assert [str(warning.message)[:15] for warning in seen] == ["dtype(): align "]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(cifar10(tmp_path))


@pytest.mark.parametrize("name", list(FILES))
def test_a_damaged_file_is_named_and_never_unpickled(tmp_path: Path, name: str) -> None:
    folder = unpacked(tmp_path)

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    (folder / name).write_bytes(pickle.dumps(Evil()))
    assert refusal(tmp_path) == f"{folder / name} is missing or damaged: delete {folder} and start again"
    assert not (tmp_path / "executed").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = unpacked(tmp_path)
    (folder / "test_batch").unlink()
    assert f"{folder / 'test_batch'} is missing" in refusal(tmp_path)


def test_a_damaged_archive_is_named_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "cifar-10-python.tar.gz"
    file.write_bytes(ARCHIVE[:-10])
    assert refusal(tmp_path) == f"{file} is damaged or incomplete (its md5 is wrong): delete it and start again"
    assert file.exists()


def test_something_else_is_sent_to_data_folder(tmp_path: Path) -> None:
    (tmp_path / "a.zip").touch()
    assert "data=folder" in refusal(tmp_path / "a.zip")
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    assert "data=folder" in refusal(tmp_path)


def test_cifar100_has_its_hundred_fine_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On six images in the layout of the real archive: one file a half, fine and coarse labels."""
    fine = [f"class {number:02d}" for number in range(100)]

    def half(batch: int) -> bytes:
        labels = [99, 0, 42, 7, 7, 98]
        content = {"data": pixels(batch)[:6], "fine_labels": labels, "coarse_labels": [0] * 6}
        return pickle.dumps(content, protocol=2)

    files = {"train": half(0), "test": half(1), "meta": pickle.dumps({"fine_label_names": fine}, protocol=2)}

    class Tiny100(CIFAR100):
        train_list = [["train", md5(files["train"])]]  # noqa: RUF012
        test_list = [["test", md5(files["test"])]]  # noqa: RUF012
        meta = {"filename": "meta", "key": "fine_label_names", "md5": md5(files["meta"])}  # noqa: RUF012

    monkeypatch.setattr(cifar, "CIFAR100", Tiny100)
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    images = cifar100(tmp_path)
    assert images.description == "CIFAR-100"
    assert images.classes == tuple(fine)
    assert images.train.labels.tolist() == [99, 0, 42, 7, 7, 98]
    assert torch.equal(images.train.images, torch.from_numpy(pixels(0)[:6]).view(6, 3, 32, 32))
    assert torch.equal(images.test.images, torch.from_numpy(pixels(1)[:6]).view(6, 3, 32, 32))
    (folder / "meta").unlink()
    with pytest.raises(UserError, match="cifar-100-python/meta is missing"):
        cifar100(tmp_path)


def test_cifar100_that_is_nowhere_is_one_line_of_advice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"CIFAR-100 is not in .* put cifar-100-python.tar.gz into"):
        cifar100(tmp_path, url="http://127.0.0.1:9/x", say=lambda line: None)
