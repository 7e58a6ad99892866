"""The trained network that comes with the repository."""

import json
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from tests.running import REPOSITORY
from vit.data import Split
from vit.evaluation.score import score
from vit.training import load

DEMO = REPOSITORY / "docs" / "demo"


@pytest.fixture(scope="module")
def result() -> dict:
    return json.loads((DEMO / "result.json").read_text())


def test_it_is_small_and_loads_as_any_run(result: dict) -> None:
    vit, facts = load(DEMO)
    assert sum(file.stat().st_size for file in DEMO.iterdir()) < 6e6
    assert sum(parameter.numel() for parameter in vit.parameters()) == result["parameters"]
    assert all(parameter.dtype == torch.float32 for parameter in vit.parameters())
    assert result["settings"].items() <= facts.settings.items()  # which has the keys of today
    assert facts.epoch == result["passes"]


def test_it_scores_what_it_says(result: dict) -> None:
    """On every twentieth test image, where a copy lies beside the checkout: within three standard errors."""
    found = sorted((REPOSITORY.parent / "shared" / "data").glob("cifar10*.zip"))
    if not found:
        pytest.skip("no zip of CIFAR-10 in ../shared/data")
    vit, facts = load(DEMO)
    images, labels = [], []
    with zipfile.ZipFile(found[0]) as archive:
        names = sorted(name for name in archive.namelist() if "test/" in name and not name.endswith("/"))
        for name in names[::20]:
            images.append(torch.from_numpy(np.array(Image.open(archive.open(name)))).permute(2, 0, 1))
            labels.append(facts.classes.index(name.split("/")[-2]))
    test = Split(torch.stack(images), torch.tensor(labels))
    assert len(test) == result["test_images"] / 20
    said = result["test_accuracy"]
    accuracy = score(vit, test, mean=facts.mean, std=facts.std).accuracy
    assert abs(accuracy - said) < 3 * (said * (1 - said) / len(test)) ** 0.5
