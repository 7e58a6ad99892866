"""Any image: what it is taken for, and a picture of where the network looked."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from tests.running import call
from vit.data import load_images, normalize
from vit.data.folder import decode
from vit.inspection import explorer, map_record
from vit.runs import predict as predicting
from vit.training import load

Predict = Callable[[list[str]], int]


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Predict:
    monkeypatch.chdir(tmp_path)
    return lambda words: call("predict", words, monkeypatch)


def test_the_classes_and_probabilities_are_those_of_the_network(
    small_run: Path, tiny: Path, tmp_path: Path, predict: Predict, capsys: pytest.CaptureFixture
) -> None:
    assert predict([f"checkpoint={small_run}", f"images={tiny / 'test' / 'cat'}"]) == 0
    out = capsys.readouterr().out
    vit, facts = load(small_run)
    images = load_images("folder", root=tiny, image_size=(8, 8)).test.images
    shares = vit(normalize(images, facts.mean, facts.std)).softmax(1)
    for number in range(8):
        (line,) = [line for line in out.splitlines() if line.startswith(f"{number}.png")]
        best, other = shares[number].sort(descending=True).indices.tolist()
        expected = [f"{facts.classes[label]} {100 * shares[number, label]:.1f} %" for label in (best, other)]
        assert line.split("  ")[-2:] == expected
    pictures = sorted((tmp_path / "predictions").iterdir())
    assert [picture.name for picture in pictures] == [f"{number}.png.png" for number in range(8)]
    shown = np.array(Image.open(pictures[0]))
    assert shown.shape[1] > 4 * 256
    expected = decode((tiny / "test" / "cat" / "0.png").read_bytes(), (256, 256))
    assert np.array_equal(shown[-28 - 256 : -28, 4 : 4 + 256], expected)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "I;16", "1"])
def test_any_kind_and_size_of_image(mode: str, small_run: Path, tmp_path: Path, predict: Predict) -> None:
    name = "ウサギ, (1) a=b.png" if mode != "CMYK" else "ウサギ, (1) a=b.jpg"
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 70, 3), dtype=np.uint8))
    (picture if mode == "RGB" else picture.convert("L" if mode == "I;16" else mode).convert(mode)).save(tmp_path / name)
    assert predict([f"checkpoint={small_run}", f"images={tmp_path / name}", "output=out put"]) == 0
    assert (tmp_path / "out put" / f"{name}.png").is_file()


def test_several_files_of_one_name_get_a_picture_each(
    small_run: Path, tiny: Path, tmp_path: Path, predict: Predict
) -> None:
    files = [tiny / "test" / name / "0.png" for name in ("cat", "dog")]
    assert predict([f"checkpoint={small_run}", f"images=[{files[0]},{files[1]}]"]) == 0
    first, second = ((tmp_path / "predictions" / name).read_bytes() for name in ("0.png.png", "_0.png.png"))
    assert first != second


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "is not there"), ("folder", "holds no image"), (b"no image", "cannot be read as an image")],
)
def test_what_is_no_image_gets_one_line(
    content: bytes | str | None,
    said: str,
    small_run: Path,
    tmp_path: Path,
    predict: Predict,
    capsys: pytest.CaptureFixture,
) -> None:
    place = tmp_path / "thing.png"
    if content == "folder":
        place.mkdir()
    elif isinstance(content, bytes):
        place.write_bytes(content)
    assert predict([f"checkpoint={small_run}", f"images={place}"]) != 0
    printed = capsys.readouterr()
    assert len(printed.err.strip().splitlines()) == 1
    assert said in printed.out + printed.err


def test_one_broken_file_does_not_stop_the_others(
    small_run: Path, tiny: Path, tmp_path: Path, predict: Predict, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    good = tiny / "test" / "cat" / "0.png"
    assert predict([f"checkpoint={small_run}", f"images=[{tmp_path / 'broken.png'},{good}]"]) != 0
    printed = capsys.readouterr()
    assert "broken.png cannot be read as an image" in printed.out
    assert "1 of 2 files could not be read; the others are done" in printed.err
    assert [picture.name for picture in (tmp_path / "predictions").iterdir()] == ["0.png.png"]


@pytest.mark.parametrize(("words", "said"), [([], "checkpoint=RUN is missing"), (["checkpoint=x"], "images=PATH")])
def test_what_is_missing_is_named(words: list[str], said: str, predict: Predict, capsys: pytest.CaptureFixture) -> None:
    assert predict(words) != 0
    assert said in capsys.readouterr().err


def explored(file: Path) -> map_record.MapRecord:
    """What is in a page."""
    (data,) = re.findall(r'(?s)<script type="application/json" id="data">(.*?)</script>', file.read_text())
    record = json.loads(data)
    return map_record.unpack([json.dumps(record["header"]).encode(), *map(base64.b64decode, record["blobs"])])


def test_the_explorer_holds_the_maps_of_all_images(
    small_run: Path,
    tiny: Path,
    tmp_path: Path,
    predict: Predict,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(predicting, "CHUNK", 3)  # 8 images come in three
    assert predict([f"checkpoint={small_run}", f"images={tiny / 'test' / 'cat'}", "explorer=true"]) == 0
    page = tmp_path / "predictions" / "explorer.html"
    out = capsys.readouterr().out
    assert re.search(rf"explorer +{re.escape(str(page))} \(0\.\d MB\)\n", out)
    header, images, maps, relevance = explored(page)
    vit, facts = load(small_run)
    tested = load_images("folder", root=tiny, image_size=(8, 8)).test.images[:8]
    expected = vit.attention_maps(normalize(tested, facts.mean, facts.std))[:, 0]
    step = expected.amax(dim=(-2, -1), keepdim=True) / 255
    assert ((maps[0] - expected).abs() <= step / 2 * 1.0001).all()
    assert relevance.shape == (8, 4, 4)
    assert header["titles"] == [f"{number}.png" for number in range(8)]
    line = next(line for line in out.splitlines() if line.startswith("3.png"))
    name, share = header["found"][3][0]
    assert f"{name} {100 * share:.1f} %" in line
    shown = torch.from_numpy(decode((tiny / "test" / "cat" / "3.png").read_bytes(), (256, 256)).copy())
    assert_close(images[3].float().mean(dim=(1, 2)), shown.float().mean(dim=(0, 1)), atol=3, rtol=0)


def test_the_explorer_takes_as_many_images_as_a_page_should(
    small_run: Path,
    tiny: Path,
    tmp_path: Path,
    predict: Predict,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    words = [f"checkpoint={small_run}", f"images={tiny / 'test' / 'cat'}", "explorer=true"]
    monkeypatch.setattr(explorer, "LARGEST", 5 * 2 * 4**2)  # one layer, two heads, four tokens
    assert predict(words) == 0
    assert "it has room for the first 5 of 8 images" in capsys.readouterr().out
    assert len(explored(tmp_path / "predictions" / "explorer.html").header["titles"]) == 5
    monkeypatch.setattr(explorer, "LARGEST", 20)
    assert predict(words) != 0
    assert "too much for a page" in capsys.readouterr().err
