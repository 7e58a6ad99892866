"""Recipes keep what they promise, and pages written by programs are as these write them."""

import importlib
import json
import re
import statistics
from pathlib import Path
from types import ModuleType

import pytest
from omegaconf import OmegaConf

from tests.running import REPOSITORY
from vit.settings import TrainSettings

DOCS = REPOSITORY / "docs"
RECIPES = sorted((REPOSITORY / "configs" / "recipe").glob("*.yaml"))


def results_of(recipe: str) -> list[dict]:
    return [json.loads(file.read_text()) for file in sorted((DOCS / "results").glob(f"{recipe}_seed-*.json"))]


def values_of(recipe: Path) -> dict:
    """As typed: read as Hydra reads it, to which 3e-3 is a number."""
    values = OmegaConf.to_container(OmegaConf.load(recipe))
    assert isinstance(values, dict)
    return values


def program(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of docs, as `python docs/NAME.py` finds the programs beside it."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module(name)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_is_what_its_results_ran(recipe: Path) -> None:
    results = results_of(recipe.stem)
    assert results, f"no docs/results/{recipe.stem}_seed-*.json"
    assert len({result["seed"] for result in results}) == len(results)
    typed = values_of(recipe)
    values = TrainSettings.from_values(typed).values()
    of_the_user = {"recipe", "seed", "data", "validation", "image_size"}
    for result in results:
        assert result["recipe"] == recipe.stem
        for key in result["settings"].keys() - of_the_user:
            assert result["settings"][key] == values[key], key
        assert typed.keys() <= result["settings"].keys()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.stem)
def test_a_recipes_header_says_what_its_results_do(recipe: Path) -> None:
    results = results_of(recipe.stem)
    header = " ".join(line.removeprefix("# ") for line in recipe.read_text().splitlines() if line.startswith("# "))
    assert f"{100 * statistics.mean(result['test_accuracy'] for result in results):.1f} % on test" in header
    assert f"n = {len(results)}" in header
    assert f"{statistics.mean(result['minutes'] for result in results):.0f} minutes" in header
    assert f"{results[0]['train_images']:,} images" in header
    (command,) = re.findall(r"python scripts/train\.py [^:;]*seed=S", header)
    for result in results:
        assert command.replace("seed=S", f"seed={result['seed']}") in result["command"]


@pytest.mark.parametrize("name", ["options", "pointing"])
def test_a_table_is_what_its_program_makes_of_its_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program(name, monkeypatch).table() in (DOCS / f"{name}.md").read_text(), f"run python docs/{name}.py"


def test_the_page_of_results_is_what_its_program_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    results = program("results", monkeypatch)
    assert results.tables(results.results()) in (DOCS / "results.md").read_text(), "run python docs/results.py"
