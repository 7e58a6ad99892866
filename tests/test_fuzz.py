"""Whatever is typed or sent: a result or one line, never a traceback or a hang. FUZZ=1000 tries that many of each."""

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.running import REPOSITORY
from tests.same_runs import equal
from vit import command_line
from vit.data.folder import folder
from vit.model import ViT
from vit.runs import evaluate, predict, train
from vit.runs.resume import resume
from vit.settings import PLACES, EvaluateSettings, PredictSettings, TrainSettings, UserError
from vit.training import load
from vit.training.checkpoint import Facts, read_checkpoint

fuzz = settings(
    max_examples=int(os.environ.get("FUZZ", "60")),
    deadline=timedelta(seconds=20),
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=True,
)


@st.composite
def damage(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file of which bits were flipped, parts cut out, repeated or replaced, or the end is missing."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        until = min(len(content), at + draw(st.sampled_from([1, 2, 4, 8, 40, 400])))
        kind = draw(st.sampled_from(["flip", "cut", "repeat", "replace", "end"]))
        if kind == "flip" and content:
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[at:until]
        elif kind == "repeat":
            content[at:at] = content[at:until]
        elif kind == "replace":
            content[at:until] = draw(st.binary(max_size=16)) + bytes(draw(st.sampled_from([0, 8])) * b"\xff")
        else:
            del content[at:]
    return bytes(content)


def one_line_or_fine(action: Callable[[], Any]) -> None:
    said = ""
    try:
        action()
    except UserError as error:  # which the command line prints as one
        said = str(error)
    assert len(said) < 1000


# ---- command lines ----

KEYS = st.sampled_from([*TrainSettings.names(), *EvaluateSettings.names(), *PredictSettings.names()])
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
GRAMMAR = st.text(st.sampled_from(list("[]{}()$'\"\\,=:+-~*.!@#%&|;<>?/ \t\n019aeEnul_é")), max_size=12)
NUMBERS = st.one_of(st.integers(-(10**25), 10**25), st.floats(allow_nan=True)).map(str)
OTHERS = "null None true nan inf -1 0 1e309 [8,8] [] {} ${heads} ${oc.env:HOME} ~x 8 shapes quick cls adamw"
VALUES = st.one_of(TEXT, GRAMMAR, NUMBERS, st.sampled_from(OTHERS.split()))
WORDS = st.one_of(
    st.tuples(KEYS, VALUES).map("=".join),
    st.tuples(st.sampled_from(["+", "++", "~", "--", "-", "@"]), KEYS, VALUES).map(
        lambda word: f"{word[0]}{word[1]}={word[2]}"
    ),
    GRAMMAR,
    TEXT,
    KEYS,
    st.sampled_from(["--multirun", "-m", "--run", "--help", "-hx", "--cfg", "job", "-s", "--info", "--nonsense"]),
)


@pytest.mark.parametrize("program", ["train", "evaluate", "predict"])
@fuzz
@given(words=st.lists(WORDS.filter(lambda word: "hydra" not in word), max_size=4))
def test_any_command_line(program: str, words: list[str]) -> None:
    """Nothing is computed: what would follow the checks is left out."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((train, "train"), (evaluate, "evaluate"), (predict, "predict")):
            patch.setattr(module, name, lambda *_, **__: None)
        patch.setattr(sys, "argv", [f"{program}.py", *words])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                getattr(command_line, program)(REPOSITORY / "configs")
                status = 0
            except SystemExit as left:
                status = left.code or 0
    said = err.getvalue()
    assert "Traceback" not in said, said
    jobs = max(1, said.count("error: "))
    assert (status == 0) == (said == ""), (status, said)
    assert len(said.strip().splitlines()) <= jobs, said


# ---- checkpoints ----


def small() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    chosen = TrainSettings.from_values({"dim": 4, "depth": 1, "heads": 1, "image_size": 8, "data": "shapes", "crop": 2})
    sizes = {"image_size": chosen.image_size, "channels": 3, "classes": 2, **chosen.group("model")}
    own = {key: value for key, value in chosen.values().items() if key not in PLACES}
    three = (0.5, 0.5, 0.5)
    facts = Facts(sizes, own, ("cat", "dog"), three, three, "shapes", 10, "32-true", "raw")
    weights = {f"vit.{name}": value for name, value in ViT(**sizes).state_dict().items()}
    return dataclasses.asdict(facts), weights


def saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


FACTS, WEIGHTS = small()
CHECKPOINT = saved({"facts": FACTS, "state_dict": WEIGHTS})
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    TEXT,
    st.lists(st.integers(), max_size=3).map(tuple),
    st.dictionaries(TEXT, st.integers(), max_size=2),
    st.sampled_from(
        [torch.zeros(1), torch.zeros(1).expand(1 << 40), torch.zeros(0), torch.zeros(2, dtype=torch.int64)]
    ),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@fuzz
@given(content=damage(CHECKPOINT))
def test_any_damage_to_a_checkpoint(place: Path, content: bytes) -> None:
    """What is read all the same is what was written."""
    (place / "a.ckpt").write_bytes(content)

    def compare() -> None:
        read, facts = read_checkpoint(place / "a.ckpt")
        assert dataclasses.asdict(facts) == FACTS
        assert equal(read["state_dict"], WEIGHTS)

    one_line_or_fine(compare)


@pytest.mark.parametrize("field", [8, 38, 39, 40, 41, 42, 43, 44])
def test_C8_every_bit_of_a_checkpoints_directory(place: Path, field: int) -> None:
    """In it a bit can make torch, though not Python's zipfile, take a part for a folder, of which it reads nothing."""
    starts = [match.start() for match in re.finditer(b"PK\1\2", CHECKPOINT)]
    for start in starts[::3]:
        for bit in range(8):
            content = bytearray(CHECKPOINT)
            content[start + field] ^= 1 << bit
            test_any_damage_to_a_checkpoint.hypothesis.inner_test(place, bytes(content))


@fuzz
@given(
    facts=st.dictionaries(st.one_of(st.sampled_from(list(FACTS)), TEXT), ODD, max_size=2),
    inner=st.dictionaries(st.sampled_from([*FACTS["settings"], *FACTS["model"]]), ODD, max_size=2),
    weights=st.dictionaries(st.one_of(st.sampled_from(list(WEIGHTS)), TEXT), ODD, max_size=2),
)
def test_any_change_within_a_checkpoint(
    place: Path, facts: dict[str, Any], inner: dict[str, Any], weights: dict[str, Any]
) -> None:
    changed = {
        **FACTS,
        "settings": {**FACTS["settings"], **{key: inner[key] for key in inner if key in FACTS["settings"]}},
        "model": {**FACTS["model"], **{key: inner[key] for key in inner if key in FACTS["model"]}},
        **facts,
    }
    (place / "a.ckpt").write_bytes(saved({"facts": changed, "state_dict": {**WEIGHTS, **weights}}))
    one_line_or_fine(lambda: load(place / "a.ckpt"))


# ---- images, zips, settings ----


def image(kind: str) -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((24, 16)).convert("P" if kind == "GIF" else "RGB").save(file, kind)
    return file.getvalue()


KINDS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")


@fuzz
@given(content=st.sampled_from(KINDS).flatmap(lambda kind: damage(image(kind))))
def test_any_damage_to_an_image(place: Path, content: bytes) -> None:
    (place / "a.png").write_bytes(content)
    said: list[str] = []
    readable = predict.is_readable(place / "a.png", said.append)
    assert readable == (not said)
    assert len("".join(said)) < 1000
    if readable:
        assert predict.read(place / "a.png", (8, 8)).shape == (8, 8, 3)


def images_in_a_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for half in ("train", "test"):
            for name, kind in (("cat", "PNG"), ("dog", "JPEG")):
                archive.writestr(f"{half}/{name}/0.png", image(kind))
    return file.getvalue()


@fuzz
@given(content=damage(images_in_a_zip()))
def test_any_damage_to_a_zip(place: Path, content: bytes) -> None:
    (place / "a.zip").write_bytes(content)
    one_line_or_fine(lambda: folder(place / "a.zip", image_size=(8, 8), say=lambda line: None))


SETTINGS_FILE = json.dumps({"command": "", "settings": {**TrainSettings().values(), "data": "shapes"}}).encode()


@fuzz
@given(content=damage(SETTINGS_FILE))
def test_any_damage_to_a_settings_file(place: Path, content: bytes) -> None:
    (place / "settings.json").write_bytes(content)
    one_line_or_fine(lambda: resume(dataclasses.replace(TrainSettings(), resume=str(place)), {}))
