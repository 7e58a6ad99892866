"""The layout that a newcomer is promised."""

import ast
import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.readme_keys import with_table
from tests.running import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
LAYERS = ["settings", "model", "data", "training inspection", "evaluation", "runs", "command_line"]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names.split()}


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def modules() -> list[Path]:
    return sorted((REPOSITORY / "vit").rglob("*.py"))


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_imports_go_one_way(file: Path) -> None:
    parts = file.relative_to(REPOSITORY / "vit").with_suffix("").parts
    if parts == ("__init__",):
        assert not list(imports(file))
        return
    for module in imports(file):
        if module.startswith("vit."):
            other = module.split(".")[1]
            assert other == parts[0] or HEIGHT[other] < HEIGHT[parts[0]], f"{file} imports {module}"


def test_only_the_command_line_knows_hydra_and_the_table_knows_no_torch() -> None:
    for file in modules():
        roots = {module.partition(".")[0] for module in imports(file)}
        assert file.name == "command_line.py" or not roots & {"hydra", "omegaconf"}
        if file.parent.name == "model":
            assert roots <= {"torch", "vit", "collections", "functools", "math", "typing"}
    assert "torch" not in set(imports(REPOSITORY / "vit" / "settings.py"))


LEAVES = {
    "data": ("cifar", "folder", "shapes", "download", "trivial_augment", "mixing"),
    "training": ("pretrained", "untrusted"),
}


def lines_of_code(*files: Path) -> int:
    """Lines that are not blank, comment or docstring."""
    total = 0
    for file in files:
        text = file.read_text()
        documented: set[int] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
                documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        lines = enumerate(text.splitlines(), start=1)
        total += sum(bool(line.split("#")[0].strip()) and number not in documented for number, line in lines)
    return total


def test_size_stays_that_of_an_evening() -> None:
    """The evening's reading is the model, the training and the way of a batch; the rest of these folders are leaves.

    All of vit was meant to stay below 3,000, which dashboard, tab, predict, report and benchmark do not fit into.
    """
    vit = REPOSITORY / "vit"
    leaves = {vit / part / f"{name}.py" for part, names in LEAVES.items() for name in names}
    reading = [file for part in ("model", "data", "training") for file in (vit / part).rglob("*.py")]
    assert leaves <= set(reading)
    assert lines_of_code(*(vit / "model").rglob("*.py")) <= 450
    assert lines_of_code(*(file for file in reading if file not in leaves)) <= 1200
    assert lines_of_code(*modules()) <= 6250
    assert lines_of_code(*(REPOSITORY / "scripts").glob("*.py")) <= 100
    assert len(list((REPOSITORY / "configs").rglob("*.yaml"))) <= 12


def test_no_config_names_code() -> None:
    for file in (REPOSITORY / "configs").rglob("*.yaml"):
        assert "_target_" not in file.read_text()


def test_P1_the_malicious_releases_are_excluded() -> None:
    lines = [Requirement(line) for line in PROJECT["dependencies"]]
    guarded = [line for line in lines if line.name in ("lightning", "pytorch-lightning")]
    assert len(guarded) == 2
    for line in guarded:
        assert not line.specifier.contains("2.6.2")
        assert not line.specifier.contains("2.6.3")


def test_P1_the_lock_file_has_hashes_and_fits_the_requirements() -> None:
    text = (REPOSITORY / ".github" / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==([\w.+-]+)", text, re.MULTILINE))
    for line in map(Requirement, PROJECT["dependencies"]):
        assert line.specifier.contains(locked[line.name.lower()])
    blocks = re.split(r"\n(?=\w)", text)[1:]
    assert len(blocks) >= len(locked)
    assert all("--hash=sha256:" in block for block in blocks)


def test_H19_B10_supported_versions_are_stated() -> None:
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    (tensorboard,) = [Requirement(line) for line in PROJECT["dependencies"] if line.startswith("tensorboard")]
    assert not tensorboard.specifier.contains("2.20.0")


def test_C2_versions_whose_interface_is_used_are_required() -> None:
    """`weights_only` of `Trainer.fit` came with lightning 2.6; the workflow's job `lowest` tries all lower bounds."""
    required = {line.name: line.specifier for line in map(Requirement, PROJECT["dependencies"])}
    assert not required["lightning"].contains("2.5.6")
    assert not required["torch"].contains("2.8.0")
    assert "--resolution lowest-direct" in (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()


def test_every_direct_dependency_is_imported() -> None:
    """And nothing else is, so that an install from nothing is whole; but for peers and ONNX, which little needs."""
    provides = importlib.metadata.packages_distributions()
    used = set()
    for file in modules():
        used |= {module.partition(".")[0] for module in imports(file)}
    names = {re.sub(r"[-_.]+", "-", name).lower() for root in used for name in provides.get(root, [])}
    declared = {Requirement(line).name.lower() for line in PROJECT["dependencies"]}
    optional = PROJECT["optional-dependencies"]
    peers = {Requirement(line).name.lower() for line in [*optional["bench"], *optional["export"]]}
    brought = {"numpy", "pillow", "werkzeug"}  # required by torchvision, matplotlib and tensorboard
    assert names - peers - brought - {PROJECT["name"]} <= declared | {"omegaconf"}
    assert declared - {"pytorch-lightning"} <= names


# What goes wrong for users of the same libraries, by the ids of the project's collection of public reports.
FIELD_REPORTS = """
    H1 H2 H3 H4 H6 H7 H8 H9 H14 H15 H17 H19   C1 C2 C3 C4 C5 C6 C7 C8 C10 C11 C15   B1 B3 B4 B6 B7 B8 B10 B11 B13
    D1 D2 D4 D5 D6 D8 D9 D10 D11 D12   V1 V2 V3 V4 V5 V7 V8 V9 V11 V14 V15 V16 V17   R1 R5 R6 R7 R8 R10   P1
"""


def test_every_field_report_is_named_by_a_test() -> None:
    names: set[str] = set()
    for file in (REPOSITORY / "tests").glob("test_*.py"):
        nodes = ast.walk(ast.parse(file.read_text()))
        names |= {part for node in nodes if isinstance(node, ast.FunctionDef) for part in node.name.split("_")}
    assert set(FIELD_REPORTS.split()) <= names


def test_the_readme_lists_the_keys_as_they_are() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert with_table(readme) == readme, "run python -m tests.readme_keys"


def test_the_readmes_lines_are_those_that_ci_runs() -> None:
    """`.ci/run` finds them by these words."""
    lines = (REPOSITORY / "README.md").read_text().splitlines()
    (first,) = [line for line in lines if line.endswith("data=shapes") and "venv" in line]
    (second,) = [line for line in lines if "python -m pytest" in line]
    assert first == next(line for line in lines if line.endswith("data=shapes"))
    assert "pip install -e ." in first
    assert "pip install -e '.[dev]'" in second
