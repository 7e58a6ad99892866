"""A folder of images, or a zip of one: every format, every mistake."""

import io
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vit.data import folder as module
from vit.data.folder import folder
from vit.settings import UserError

Files = dict[str, bytes]


def noise(height: int = 32, width: int = 32, *, seed: int = 0) -> Image.Image:
    """Smooth enough for a JPEG to be close to it."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, kind: str = "PNG", *, exif: Image.Exif | None = None, quality: int = 90) -> bytes:
    file = io.BytesIO()
    if exif is None:
        image.save(file, kind, quality=quality)
    else:
        image.save(file, kind, quality=quality, exif=exif)
    return file.getvalue()


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def decode(data: bytes, image_size: tuple[int, int]) -> Tensor:
    return torch.from_numpy(module.decode(data, image_size).copy()).permute(2, 0, 1)


def small(*classes: str, each: int = 2) -> Files:
    """A complete set of images; names of files to contents."""
    return {
        f"{half}/{name}/{i}.png": encode(noise(seed=len(half) * 100 + number * 10 + i))
        for half in ("train", "test")
        for number, name in enumerate(classes or ("cat", "dog"))
        for i in range(each)
    }


def write(root: Path, files: Files) -> Path:
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_zip(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def refusal(root: Path) -> str:
    with pytest.raises(UserError) as caught:
        folder(root, say=lambda line: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_images_labels_and_names(tmp_path: Path) -> None:
    files = small("b cat", "ウサギ", "a")
    images = folder(write(tmp_path / "my set", files), say=pytest.fail)
    assert images.classes == ("a", "b cat", "ウサギ")
    assert images.description == "images of my set"
    assert images.train.images.shape == (6, 3, 32, 32)
    assert images.train.images.dtype == torch.uint8
    assert images.train.images.is_contiguous()
    assert images.train.labels.dtype == torch.int64
    assert images.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.train.masks is None
    expected = [f"{name}/{i}.png" for name in ("a", "b cat", "ウサギ") for i in range(2)]
    for half, split in (("train", images.train), ("test", images.test)):
        for name, image in zip(expected, split.images, strict=True):
            assert torch.equal(image, tensor(Image.open(io.BytesIO(files[f"{half}/{name}"]))))


def test_a_zip_gives_what_its_folder_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)  # several chunks
    files = small("ウサギ", "a b", "a", each=3)
    files["train/a/deep/er/x.JPEG"] = encode(noise(50, 70), "JPEG")
    one, other = folder(write(tmp_path / "x", files)), folder(write_zip(tmp_path / "x.zip", files))
    assert one.classes == other.classes == ("a", "a b", "ウサギ")
    assert len(one.train) == 10
    for left, right in ((one.train, other.train), (one.test, other.test)):
        assert torch.equal(left.images, right.images)
        assert torch.equal(left.labels, right.labels)
    assert other.description == "images of x.zip"
    assert [path.name for path in tmp_path.iterdir() if path.name != "x"] == ["x.zip"]  # nothing was unpacked


def test_threads_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, small(each=10))
    alone = folder(root)
    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(module, "THREADS_FROM", 0)
    assert torch.equal(alone.train.images, folder(root).train.images)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_single_folder_on_top_and_left_behind_files_do_not_matter(tmp_path: Path, zipped: bool) -> None:
    junk = {"__MACOSX/train/cat/._0.png": b"", ".DS_Store": b"", "set/.git/x.png": b""}
    junk |= {"set/train/Thumbs.db": b"", "set/train/cat/._0.png": b"", "set/train/.hidden/0.png": b"", "read.me": b""}
    files = {f"set/{name}": content for name, content in small().items()} | junk
    if zipped:
        del files["read.me"]
    root = write_zip(tmp_path / "x.zip", files) if zipped else write(tmp_path, files)
    images = folder(root, say=pytest.fail)
    assert images.classes == ("cat", "dog")
    assert len(images.train) == 4


def test_other_files_are_counted_aloud(tmp_path: Path) -> None:
    lines: list[str] = []
    folder(write(tmp_path / "x", small() | {"train/cat/notes.txt": b"", "test/list.csv": b""}), say=lines.append)
    assert lines == ["x: passed over 2 files that are not images, such as train/cat/notes.txt"]


def test_progress_in_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(module, "CHUNK", 3)
    lines: list[str] = []
    folder(write(tmp_path / "x", small()), say=lines.append)
    assert lines == [f"x: {done} of 4 images decoded" for done in (3, 4, 3, 4)]


@pytest.mark.parametrize(
    ("suffix", "kind", "tolerance"),
    [
        ("png", "PNG", 0),
        ("BMP", "BMP", 0),
        ("ppm", "PPM", 0),
        ("tif", "TIFF", 0),
        ("tiff", "TIFF", 0),
        ("gif", "GIF", 60),
        ("webp", "WEBP", 25),
        ("jpg", "JPEG", 25),
        ("JPEG", "JPEG", 25),
    ],
)
def test_formats(tmp_path: Path, suffix: str, kind: str, tolerance: int) -> None:
    files = small() | {f"train/cat/0.{suffix}": encode(noise(), kind)}
    del files["train/cat/1.png"]
    names = sorted(name for name in files if name.startswith("train/cat"))
    found = folder(write(tmp_path, files)).train.images[names.index(f"train/cat/0.{suffix}")]
    assert (found.int() - tensor(noise()).int()).abs().max() <= tolerance


def test_grey_and_cmyk_jpegs() -> None:
    for mode in ("L", "CMYK"):
        data = encode(noise().convert(mode), "JPEG")
        assert torch.equal(decode(data, (32, 32)), tensor(Image.open(io.BytesIO(data)).convert("RGB")))


def test_exif_rotation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    found = decode(encode(noise(24, 32), "PNG", exif=exif), (32, 24))
    assert torch.equal(found, tensor(noise(24, 32).transpose(Image.Transpose.ROTATE_270)))
    large = decode(encode(noise(240, 640), "JPEG", exif=exif, quality=100), (64, 24))  # and scaled by the decoder
    expected = tensor(noise(240, 640).transpose(Image.Transpose.ROTATE_270).resize((24, 64), Image.Resampling.BICUBIC))
    assert (large.int() - expected.int()).abs().max() <= 12


def test_grey_palette_and_one_bit() -> None:
    for mode in ("L", "P", "1"):
        image = noise().convert(mode)
        assert torch.equal(decode(encode(image), (32, 32)), tensor(image.convert("RGB")))


def test_what_is_transparent_becomes_white() -> None:
    pixels = np.array(noise().convert("RGBA"))
    pixels[:16, :, 3] = 0
    pixels[16:24, :, 3] = 128
    found = decode(encode(Image.fromarray(pixels)), (32, 32))
    assert (found[:, :16] == 255).all()
    assert torch.equal(found[:, 24:], tensor(noise())[:, 24:])
    half = tensor(noise())[:, 16:24].float() * 128 / 255 + 255 * 127 / 255
    assert (found[:, 16:24].float() - half).abs().max() <= 1

    palette = noise().quantize(16)
    palette.info["transparency"] = bytes([0] * 8 + [255] * 8)  # Pillow warns when this is converted to RGB at once
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=palette.info["transparency"])
    found = decode(file.getvalue(), (32, 32))
    clear = torch.from_numpy(np.array(palette)) < 8
    assert (found[:, clear] == 255).all()


def test_grey_of_16_bits_is_scaled() -> None:
    levels = np.linspace(0, 65535, 1024).astype(np.uint16).reshape(32, 32)
    expected = torch.from_numpy((levels / 257).round().astype(np.uint8)).expand(3, 32, 32)
    for kind in ("PNG", "TIFF", "PPM"):
        assert (decode(encode(Image.fromarray(levels), kind), (32, 32)).int() - expected.int()).abs().max() == 0, kind


def test_other_sizes_are_covered_and_cut_about_the_centre(tmp_path: Path) -> None:
    wide = np.zeros((40, 120, 3), dtype=np.uint8)
    wide[:, 40:80] = 200  # exactly what a square window about the centre sees
    images = folder(write(tmp_path, small() | {"train/cat/0.png": encode(Image.fromarray(wide))}))
    assert (images.train.images[0] >= 190).all()
    tall = folder(tmp_path, image_size=(8, 24)).train.images
    assert tall.shape == (4, 3, 8, 24)
    assert tall[0, 0, 4].tolist() == pytest.approx([0] * 8 + [200] * 8 + [0] * 8, abs=25)


def test_one_pixel_is_enlarged(tmp_path: Path) -> None:
    assert (decode(encode(Image.new("RGB", (1, 1), (9, 8, 7))), (4, 6)) == torch.tensor([9, 8, 7])[:, None, None]).all()


def test_pillows_remarks_are_not_shown(tmp_path: Path) -> None:
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\xff\xff\0\0"  # cut short
    file = io.BytesIO()
    noise().save(file, "JPEG", exif=exif)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder(write(tmp_path, small() | {"train/cat/0.jpg": file.getvalue()}))


# Mistakes, a line each.


def test_nothing_there(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none")
    assert "holds no train/CLASS/" in refusal(tmp_path)
    assert "holds no train/CLASS/" in refusal(write_zip(tmp_path / "x.zip", {}))


@pytest.mark.parametrize("half", ["train", "test"])
def test_a_half_is_missing(tmp_path: Path, half: str) -> None:
    files = {name: content for name, content in small().items() if not name.startswith(half)}
    assert refusal(write(tmp_path, files)).startswith(f"{tmp_path} holds no {half}/CLASS/")


def test_images_without_a_class(tmp_path: Path) -> None:
    assert "holds no train/CLASS/" in refusal(write(tmp_path, {"train/0.png": b"", "test/0.png": b""}))


@pytest.mark.parametrize("zipped", [False, True])
def test_a_class_without_images(tmp_path: Path, zipped: bool) -> None:
    files = small() | {"train/cow/": b"", "train/hen/notes.txt": b"", "test/cow/": b""}
    root = write_zip(tmp_path / "x.zip", files) if zipped else write(tmp_path, files)
    assert refusal(root) == f"{root}: no image in train/cow/, train/hen/"


def test_classes_that_differ(tmp_path: Path) -> None:
    files = small() | {"train/cow/0.png": b"", "test/hen/0.png": b""}
    assert refusal(write(tmp_path, files)).endswith("but there is only train/cow/, test/hen/")


def test_a_single_class(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, small("cat"))) == f"{tmp_path} holds one class, cat: at least two are needed"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.png", b""),
        ("text.png", b"not an image"),
        ("cut.png", encode(noise())[:100]),
        ("cut.jpg", encode(noise(), "JPEG")[:-200]),
        ("cut.gif", encode(noise(), "GIF")[:30]),
        ("cut.webp", encode(noise(), "WEBP")[:30]),
        ("cut.tif", encode(noise(), "TIFF")[:100]),
        ("float.tif", encode(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF")),
    ],
)
def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    message = refusal(write(tmp_path / "x", small() | {f"train/cat/a/{name}": content}))
    assert message.startswith(f"x: train/cat/a/{name} cannot be read (")


def test_an_image_of_absurd_size_is_named(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for side in (10_000, 60_000):  # Pillow warns of the first and refuses the second
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
        message = refusal(write(tmp_path / "x", small() | {"train/cat/bomb.png": bomb}))
        assert message.startswith(f"x: train/cat/bomb.png cannot be read (Image size ({side**2} pixels)")


def test_a_member_of_absurd_size_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 10_000_000)
    root = write_zip(tmp_path / "x.zip", small() | {"train/cat/big.png": bytes(11_000_000)})
    assert refusal(root) == "x.zip: train/cat/big.png cannot be read (11 MB are too much for one image)"


def test_a_broken_zip(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", small())
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "is neither a folder nor a zip that can be read" in refusal(path)
    path.write_bytes(whole[:60] + bytes(20) + whole[80:])  # inside the first member
    assert refusal(path).startswith("x.zip: train/cat/0.png cannot be read (")


def test_an_encrypted_zip(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", small())
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag of the first member in the directory
    path.write_bytes(content)
    assert refusal(path) == f"{path} is encrypted: unpack it, and name the folder"
