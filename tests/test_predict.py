"""Any image: what it is taken for, and a picture of where the network looked."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.running import call, only_run
from vit.data import load_images, normalize
from vit.data.folder import decode
from vit.training import load

Predict = Callable[[list[str]], int]


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Predict:
    monkeypatch.chdir(tmp_path)
    return lambda words: call("predict", words, monkeypatch)


@pytest.fixture
def run(words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture) -> Path:
    assert train([*words, "epochs=1", "depth=1"]) == 0
    capsys.readouterr()
    return only_run(tmp_path / "runs")


def test_the_classes_and_probabilities_are_those_of_the_network(
    run: Path, tiny: Path, tmp_path: Path, predict: Predict, capsys: pytest.CaptureFixture
) -> None:
    assert predict([f"checkpoint={run}", f"images={tiny / 'test' / 'cat'}"]) == 0
    out = capsys.readouterr().out
    vit, facts = load(run)
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
    assert np.array_equal(shown[16 : 16 + 256, 4 : 4 + 256], expected)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "I;16", "1"])
def test_any_kind_and_size_of_image(mode: str, run: Path, tmp_path: Path, predict: Predict) -> None:
    name = "ウサギ, (1) a=b.png" if mode != "CMYK" else "ウサギ, (1) a=b.jpg"
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 70, 3), dtype=np.uint8))
    (picture if mode == "RGB" else picture.convert("L" if mode == "I;16" else mode).convert(mode)).save(tmp_path / name)
    assert predict([f"checkpoint={run}", f"images={tmp_path / name}", "output=out put"]) == 0
    assert (tmp_path / "out put" / f"{name}.png").is_file()


def test_several_files_of_one_name_get_a_picture_each(run: Path, tiny: Path, tmp_path: Path, predict: Predict) -> None:
    files = [tiny / "test" / name / "0.png" for name in ("cat", "dog")]
    assert predict([f"checkpoint={run}", f"images=[{files[0]},{files[1]}]"]) == 0
    first, second = ((tmp_path / "predictions" / name).read_bytes() for name in ("0.png.png", "_0.png.png"))
    assert first != second


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "is not there"), ("folder", "holds no image"), (b"no image", "cannot be read as an image")],
)
def test_what_is_no_image_gets_one_line(
    content: bytes | str | None,
    said: str,
    run: Path,
    tmp_path: Path,
    predict: Predict,
    capsys: pytest.CaptureFixture,
) -> None:
    place = tmp_path / "thing.png"
    if content == "folder":
        place.mkdir()
    elif isinstance(content, bytes):
        place.write_bytes(content)
    assert predict([f"checkpoint={run}", f"images={place}"]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


@pytest.mark.parametrize(("words", "said"), [([], "checkpoint=RUN is missing"), (["checkpoint=x"], "images=PATH")])
def test_what_is_missing_is_named(words: list[str], said: str, predict: Predict, capsys: pytest.CaptureFixture) -> None:
    assert predict(words) != 0
    assert said in capsys.readouterr().err
