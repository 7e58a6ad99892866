"""Nothing that a user can be sent runs code, takes memory without end, waits for ever or writes where it should not."""

import dataclasses
import io
import os
import pickle
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.running import TINY, call, only_run
from vit.data.folder import folder
from vit.evaluation.report import Part
from vit.model import ViT
from vit.runs.machine import plain_console
from vit.runs.report_files import to_html, to_tensorboard
from vit.settings import PLACES, TrainSettings, UserError
from vit.training import load
from vit.training.checkpoint import Facts, read_checkpoint, write_atomically
from vit.training.classifier import Classifier

SMALL = {"dim": 8, "depth": 1, "heads": 2, "image_size": 8, "data": "shapes", "crop": 2}


class Touch:
    """Unpickled without care, it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.file}",)


def forged(place: Path, *, network: dict[str, Any] | None = None, weights: Any = None, **facts: Any) -> Path:
    """A checkpoint that is right but for what is given."""
    settings = TrainSettings.from_values(SMALL)
    sizes = {"image_size": settings.image_size, "channels": 3, "classes": 2, **settings.group("model")}
    right = Facts(
        model={**sizes, **(network or {})},
        settings={key: value for key, value in settings.values().items() if key not in PLACES},
        classes=("cat", "dog"),
        mean=(0.5, 0.5, 0.5),
        std=(0.2, 0.2, 0.2),
        images="shapes",
        train_images=10,
        precision="32-true",
        weights="raw",
    )
    if weights is None:
        weights = {f"vit.{name}": value for name, value in ViT(**sizes).state_dict().items()}
    values = {**dataclasses.asdict(right), **facts}
    torch.save({"state_dict": weights, "facts": values}, place / "forged.ckpt")
    return place / "forged.ckpt"


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400
    return str(caught.value)


def settings_with(**changes: Any) -> dict[str, Any]:
    values = TrainSettings.from_values({**SMALL, **changes}).values()
    return {key: value for key, value in values.items() if key not in PLACES}


def test_the_right_one_is_taken(tmp_path: Path) -> None:
    assert load(forged(tmp_path))[1].classes == ("cat", "dog")


@pytest.mark.parametrize(
    "facts",
    [
        {"model": None},
        {"model": {"heads": 4}},
        {"model": {"heads": "2"}},
        {"model": {"depth": 10**12}},
        {"model": {"dim": 1 << 40}},
        {"model": {"classes": 10**12}},
        {"model": {"image_size": (1 << 30, 1 << 30)}},
        {"model": {"extra": 1}},
        {"settings": None},
        {"settings": {1: 2}},
        {"settings": {"heads": 7}},
        {"settings": {"nonsense": 7}},
        {"settings": {**settings_with(), "data.url": "https://example.org/"}},
        {"settings": {**settings_with(), "data.root": "/"}},
        {"classes": "cat"},
        {"classes": ()},
        {"classes": ("cat",)},
        {"classes": (1, 2)},
        {"mean": (0.5,)},
        {"mean": (0.5, 0.5, float("nan"))},
        {"std": (0.2, 0.2, 0.0)},
        {"std": (0.2, 0.2, "0.2")},
        {"epoch": -1},
        {"epoch": "1"},
        {"step": 1.5},
        {"minutes": None},
        {"images": 3},
        {"validation_accuracy": "0.9"},
        {"more": 1},
    ],
    ids=str,
)
def test_facts_of_a_wrong_type_or_range_are_refused(facts: dict[str, Any], tmp_path: Path) -> None:
    if isinstance(model := facts.get("model"), dict):
        path = forged(tmp_path, network=model)
    else:
        path = forged(tmp_path, **facts)
    assert "broken or no checkpoint of this program" in refusal(path)


@pytest.mark.parametrize("sizes", [{"dim": 65_536, "depth": 1000}, {"image_size": 4096, "patch_size": 1}], ids=str)
def test_terabytes_are_refused_before_any_memory_is_taken(sizes: dict[str, Any], tmp_path: Path) -> None:
    settings = settings_with(**sizes)
    model = {name: settings[name] for name in sizes}
    model |= {"image_size": tuple(settings["image_size"])}
    refusal(forged(tmp_path, network=model, settings=settings))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.zeros(1).expand(1 << 40), "larger than the file"),
        (torch.zeros(3), "size mismatch"),
        (torch.zeros(8, dtype=torch.complex64), "no plain floating-point"),
        (torch.zeros(8).to_sparse(), ""),
        ("text", ""),
    ],
    ids=["view", "shape", "complex", "sparse", "text"],
)
def test_weights_that_do_not_fit_are_refused(value: object, said: str, tmp_path: Path) -> None:
    weights = torch.load(forged(tmp_path), weights_only=True)["state_dict"]
    assert said in refusal(forged(tmp_path, weights={**weights, "vit.norm.bias": value}))
    refusal(forged(tmp_path, weights={name: value for name, value in weights.items() if "norm.bias" not in name}))
    refusal(forged(tmp_path, weights=[1, 2]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value: float, tmp_path: Path) -> None:
    weights = torch.load(forged(tmp_path), weights_only=True)["state_dict"]
    weights["vit.head.bias"][0] = value
    assert "not finite (vit.head.bias)" in refusal(forged(tmp_path, weights=weights))


@pytest.mark.parametrize("ending", ["ckpt", "pth", "bin"])
def test_a_compressed_checkpoint_is_no_bomb(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"bomb.{ending}"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(100_000_000))
    assert "claims to hold more" in refusal(file)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    path = tmp_path / "evil.ckpt"
    torch.save({"facts": {}, "state_dict": Touch(proof)}, path)
    refusal(path)
    path.write_bytes(pickle.dumps(Touch(proof)))  # as torch wrote them before 2020
    refusal(path)
    assert not proof.exists()
    pickle.loads(pickle.dumps(Touch(proof)))
    assert proof.exists()  # the file that it would have made


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_and_devices_are_not_waited_for(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "settings.json")
    for half, name in (("train", "cat"), ("train", "dog"), ("test", "cat"), ("test", "dog")):
        (tmp_path / "images" / half / name).mkdir(parents=True)
        os.mkfifo(tmp_path / "images" / half / name / "0.png")
    checkpoint = forged(tmp_path)
    on_images = [words[0], *words[2:]]
    for program, line in (
        ("predict", [f"checkpoint={pipe}", f"images={checkpoint}"]),
        ("predict", ["checkpoint=/dev/zero", f"images={checkpoint}"]),
        ("predict", [f"checkpoint={checkpoint}", f"images={pipe}"]),
        ("predict", [f"checkpoint={checkpoint}", "images=/dev/zero"]),
        ("evaluate", [f"checkpoint={pipe}"]),
        ("train", [*on_images, f"data.root={pipe}"]),
        ("train", [*on_images, "data.root=/dev/zero"]),
        ("train", [*on_images, f"data.root={tmp_path / 'images'}"]),
        ("train", [f"resume={pipe}"]),
        ("train", [f"resume={tmp_path / 'run'}"]),
    ):
        assert call(program, line, monkeypatch) == 1
        (said,) = capsys.readouterr().err.strip().splitlines()
        assert said.startswith("error: ")


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    precious = tmp_path / "elsewhere" / "events.out.tfevents.1"
    precious.write_text("precious")
    (tmp_path / "report").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a link"):
        to_tensorboard(tmp_path, [], {}, step=1)
    assert precious.read_text() == "precious"


def test_a_link_in_a_run_leads_nowhere(
    words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "report.html.part").symlink_to(mine)
    write_atomically(tmp_path / "report.html", b"new")
    assert mine.read_text() == "precious"
    assert not (tmp_path / "report.html").is_symlink()

    assert train([*words, "epochs=1", "depth=1"]) == 0
    run = only_run(tmp_path / "runs")
    (tmp_path / "elsewhere").mkdir()
    for place in (run / "00099", run / "pictures" / "x.png", run / ".lock"):
        place.unlink(missing_ok=True)
        place.symlink_to(tmp_path / "elsewhere")
        capsys.readouterr()
        assert train([f"resume={run}", "epochs=2"]) == 1
        assert "is a link" in capsys.readouterr().err
        place.unlink()
    assert not list((tmp_path / "elsewhere").iterdir())
    assert train([f"resume={run}", "epochs=2"]) == 0


def test_a_zip_writes_nothing(tmp_path: Path) -> None:
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for half in ("train", "test"):
            for name in ("cat", "..", "/abs"):
                archive.writestr(f"{half}/{name}/0.png", image.getvalue())
        archive.writestr("../escaped.png", image.getvalue())
        archive.writestr("/tmp/escaped_by_root.png", image.getvalue())
        link = zipfile.ZipInfo("train/cat/link.png")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    before = sorted(tmp_path.parent.rglob("*"))
    with pytest.raises(UserError, match=r"link\.png cannot be read"):
        folder(tmp_path / "data.zip", say=lambda line: None)
    assert sorted(tmp_path.parent.rglob("*")) == before
    assert not Path("/tmp/escaped_by_root.png").exists()


def test_no_other_program_is_started_for_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Pillow hands an EPS, whatever its name, to Ghostscript."""
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **_: started.append(words))
    script = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    (tmp_path / "cat.png").write_text(script)
    checkpoint = forged(tmp_path)
    assert call("predict", [f"checkpoint={checkpoint}", f"images={tmp_path / 'cat.png'}"], monkeypatch) == 1
    assert "no image could be read" in capsys.readouterr().err
    assert not started


def test_predict_refuses_an_image_of_absurd_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # the larger ones are slow to make
    Image.new("1", (40, 40)).save(tmp_path / "large.png")
    checkpoint = forged(tmp_path)
    assert call("predict", [f"checkpoint={checkpoint}", f"images={tmp_path / 'large.png'}"], monkeypatch) == 1
    said = capsys.readouterr()
    assert "exceeds limit of 1000 pixels" in said.out
    assert len(said.err.strip().splitlines()) == 1


def test_a_name_neither_commands_the_terminal_nor_the_page(capsys: pytest.CaptureFixture) -> None:
    plain_console().print("a\x1b]0;title\x07b\x9bc")
    assert not set("\x1b\x07\x9b") & set(capsys.readouterr().out)
    row = {"class": "<script>alert(1)</script>\x1b[2J", "accuracy": 0.5}
    part = Part(title="<b>", note="<i>", table=[row], values={}, pictures={})
    page = to_html("<u>", ["<img src=x onerror=alert(1)>"], [part]).decode()
    assert not [markup for markup in ("<script>alert", "<b>", "<i>", "<u>", "<img src=x", "\x1b") if markup in page]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("optimizer_states"),
        lambda content: content.update(optimizer_states=[{"state": {}, "param_groups": []}]),
        lambda content: content.update(optimizer_states="text"),
        lambda content: content.update(lr_schedulers=[{}, {}]),
        lambda content: content.pop("loops"),
        lambda content: content.update(loops={"fit_loop": 3}),
        lambda content: content.update(callbacks=[]),
        lambda content: content.update({"pytorch-lightning_version": "nonsense"}),
    ],
    ids=["no optimizer", "no groups", "text", "schedulers", "no loops", "a number", "callbacks", "version"],
)
def test_what_cannot_be_gone_on_with_is_refused_or_of_no_matter(
    change: Callable, trained: bytes, words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    run = unpack(trained, tmp_path)
    content = torch.load(run / "last.ckpt", weights_only=True)
    change(content)
    torch.save(content, run / "last.ckpt")
    before = (run / "last.ckpt").read_bytes()
    status = train([f"resume={run}", words[1], "epochs=2"])
    said = capsys.readouterr().err.strip().splitlines()
    assert (status, len(said)) in ((0, 0), (1, 1)), said
    assert status == 0 or (run / "last.ckpt").read_bytes() == before


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A run of one epoch, as a zip."""
    runs = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        assert call("train", ["data=folder", f"data.root={tiny}", f"runs={runs}", *TINY, "epochs=1"], patch) == 0
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path in only_run(runs).rglob("*"):
            archive.write(path, path.relative_to(only_run(runs)))
    return file.getvalue()


def unpack(trained: bytes, place: Path) -> Path:
    zipfile.ZipFile(io.BytesIO(trained)).extractall(place / "run")
    return place / "run"


def test_a_settings_file_of_another_version_gets_one_line(
    trained: bytes, words: list[str], tmp_path: Path, train: Callable, capsys: pytest.CaptureFixture
) -> None:
    run = unpack(trained, tmp_path)
    (run / "last.ckpt").unlink()
    text = (run / "settings.json").read_text()
    for wrong in (
        text.replace('"heads"', '"haeds"'),
        text.replace('"settings"', '"config"'),
        "[" * 100_000,
        "[]",
        '{"command": "", "settings": []}',
        '{"command": "", "settings": {"data": "cifar10", "heads": {}}}',
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ):
        (run / "settings.json").write_text(wrong)
        capsys.readouterr()
        assert train([f"resume={run}"]) == 1
        (said,) = capsys.readouterr().err.strip().splitlines()
        assert len(said) < 500


def test_an_address_is_never_taken_from_a_run(
    trained: bytes, words: list[str], tmp_path: Path, train: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = unpack(trained, tmp_path)
    (run / "last.ckpt").unlink()
    text = (run / "settings.json").read_text()
    (run / "settings.json").write_text(text.replace('"data.url": null', '"data.url": "https://example.org/x"'))
    asked = []
    monkeypatch.setattr("vit.runs.train.load_images", lambda *_, url, **__: asked.append(url) or exit(3))
    assert train([f"resume={run}"]) == 3
    assert asked == [None]


def poison_loss(self: Classifier, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**found, "loss": found["loss"] * float("nan")}


def poison_weights(self: Classifier, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        self.vit.head.bias.add_(float("inf"))
    return found


@pytest.mark.parametrize(("poison", "step", "stopped"), [(poison_loss, 9, 10), (poison_weights, 15, 16)])
def test_V14_a_training_that_diverges_stops_and_keeps_the_last_good_file(
    poison: Callable,
    step: int,
    stopped: int,
    words: list[str],
    tmp_path: Path,
    train: Callable,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    right = Classifier.training_step

    def wrong(self: Classifier, batch: tuple[torch.Tensor, ...], batch_idx: int) -> dict[str, torch.Tensor]:
        found = right(self, batch, batch_idx)
        return poison(self, found) if self.global_step == step else found

    monkeypatch.setattr(Classifier, "training_step", wrong)
    assert train([*words, "epochs=4"]) == 1
    (said,) = capsys.readouterr().err.strip().splitlines()
    for words_of_advice in (f"by step {stopped} ", "learning rate: adamw 0.0", "lower lr", "last.ckpt keeps"):
        assert words_of_advice in said
    assert load(only_run(tmp_path / "runs"))[1].epoch == 1
    monkeypatch.setattr(Classifier, "training_step", right)
    assert train([f"resume={only_run(tmp_path / 'runs')}"]) == 0


def test_what_is_read_back_is_what_was_written(tmp_path: Path) -> None:
    """The checks above let through what this program itself writes, however old."""
    path = forged(tmp_path, settings={key: value for key, value in settings_with().items() if key != "clip"})
    assert read_checkpoint(path)[1].settings["clip"] == 0
    assert load(path)[0](torch.zeros(1, 3, 8, 8)).isfinite().all()
