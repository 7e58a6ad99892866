"""From the words of a command line to checked settings: the only file that knows Hydra.

    words ─ _read_words: names and quotes ─► hydra.main: table, YAML files, words ─► Settings.from_values ─► vit.runs

Torch is imported by vit.runs, after every check, so that a mistake is answered in well under a second.
"""

import argparse
import io
import re
import sys
import tempfile
import textwrap
import time
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vit.settings import (
    BenchmarkSettings,
    EvaluateSettings,
    ExportSettings,
    PredictSettings,
    Stopped,
    TrainSettings,
    UserError,
    describe,
    refuse_unknown,
    show,
)

if typing.TYPE_CHECKING:
    from vit.runs.train import Outcome

Settings = type[TrainSettings | EvaluateSettings | PredictSettings | ExportSettings | BenchmarkSettings]
GROUPS = ("recipe", "data")  # keys of TrainSettings that name a YAML file


def train(configs: Path) -> None:
    """scripts/train.py. Leaves the process with status 0 only if every job succeeded."""
    began = time.time()
    done: list[tuple[list[str], Outcome | str]] = []
    as_typed: dict[str, str] = {}

    def job(config: DictConfig) -> None:
        chosen = HydraConfig.get()
        typed = {word.partition("=")[0]: as_typed.get(word, word) for word in chosen.overrides.task}
        many = chosen.mode == RunMode.MULTIRUN
        title = list(typed.values())
        try:
            groups = {group: chosen.runtime.choices[group] for group in GROUPS}
            settings = TrainSettings.from_values({**_flat(config), **groups})
            if many and settings.devices > 1:
                raise UserError(_NO_SWEEP)
            from vit.runs.train import train as run

            outcome = run(
                settings, _who_set(settings, typed, configs), typed=typed, began=time.time() if many else began
            )
            if outcome is not None:
                done.append((title, outcome))
        except Stopped as stopped:
            sys.exit(stopped.status)
        except UserError as error:
            done.append((title, _one_line(error)))
            _complain(error)
        except Exception as error:
            done.append((title, f"{type(error).__name__}: {_one_line(error)}"))
            traceback.print_exc()

    _run(TrainSettings, configs, job, as_typed)
    if len(done) > 1:
        _rank(done)
    if {"--multirun", "-m"} & set(sys.argv[1:]) and not done:
        _complain(UserError("the sweep has no job: name values, such as heads=2,4,8"))
        sys.exit(1)
    sys.exit(int(any(isinstance(outcome, str) for _, outcome in done)))


def evaluate(configs: Path) -> None:
    """scripts/evaluate.py. Training keys may be typed too, and are refused if they contradict the checkpoint."""
    claimed: dict[str, Any] = {}

    def run(settings: EvaluateSettings) -> None:
        from vit.runs.evaluate import evaluate

        evaluate(settings, claimed)

    _run_once(EvaluateSettings, configs, run, claimed)


def benchmark(configs: Path) -> None:
    """scripts/benchmark.py."""

    def run(settings: BenchmarkSettings) -> None:
        from vit.runs.benchmark import benchmark

        benchmark(settings)

    _run_once(BenchmarkSettings, configs, run)


def predict(configs: Path) -> None:
    """scripts/predict.py."""

    def run(settings: PredictSettings) -> None:
        from vit.runs.predict import predict

        predict(settings)

    _run_once(PredictSettings, configs, run)


def export(configs: Path) -> None:
    """scripts/export.py."""

    def run(settings: ExportSettings) -> None:
        from vit.runs.export import export

        export(settings)

    _run_once(ExportSettings, configs, run)


def _run_once(
    table: Settings, configs: Path, run: Callable[[Any], None], claimed: dict[str, Any] | None = None
) -> None:
    """Leaves the process with status 0 only if the job succeeded."""
    failed: list[Exception] = []

    def job(config: DictConfig) -> None:
        try:
            run(table.from_values(_flat(config)))
        except Stopped as stopped:
            sys.exit(stopped.status)
        except UserError as error:
            failed.append(error)
            _complain(error)
        except Exception as error:
            failed.append(error)
            traceback.print_exc()

    _run(table, configs, job, {}, claimed)
    sys.exit(int(bool(failed)))


_NO_SWEEP = "--multirun trains one job after the other on one device each: leave devices out"


def _run(
    table: Settings, configs: Path, job: Callable, as_typed: dict[str, str], claimed: dict[str, Any] | None = None
) -> None:
    """Check the words, then let Hydra compose the configuration and call the job.

    `as_typed` is told what each word was before it was quoted.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these letters must not end a training
    try:
        sys.argv[1:] = _read_words(sys.argv[1:], table, configs, as_typed, claimed)
    except UserError as error:
        _complain(error)
        sys.exit(2)
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(help_text(table))
        return
    ConfigStore.instance().store(name="schema", node=_schema(table))
    with tempfile.TemporaryDirectory() as nowhere:  # for the file that Hydra writes about a sweep
        if {"--multirun", "-m"} & set(sys.argv[1:]):
            sys.argv.append(f"hydra.sweep.dir={_quoted(nowhere)}")
        try:
            hydra.main(config_path=str(configs), config_name=table.program, version_base="1.3")(job)()
        except KeyboardInterrupt:
            sys.exit(130)


def _read_words(
    words: list[str], table: Settings, configs: Path, as_typed: dict[str, str], claimed: dict[str, Any] | None
) -> list[str]:
    """The words as Hydra takes them: options first, values quoted where its grammar needs it.

    Training keys given to evaluate go to `claimed`. Raises UserError for whatever is no key.
    """
    for word in words:
        name = word.lstrip("-").partition("=")[0]
        if word.startswith("--") and name in table.names():
            raise UserError(f"{word}: keys have no dashes; write {name}=VALUE")
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        arguments, unknown = parser.parse_known_intermixed_args(words)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    if unknown:
        raise UserError(f"{unknown[0]} is not an option; settings are written key=value, and --help lists them")
    modes = [name for name in ("run", "multirun", "cfg", "info", "shell_completion") if getattr(arguments, name)]
    if len(modes) > 1:
        raise UserError(" and ".join(f"--{mode.replace('_', '-')}" for mode in modes) + " do not go together")
    if arguments.shell_completion:
        raise UserError("--shell-completion is not offered")
    if arguments.multirun and table is not TrainSettings:
        raise UserError("--multirun is for training; here each command is one job")
    options = [word for word in words if word not in arguments.overrides]
    folders = [configs, *([Path(arguments.config_dir)] if arguments.config_dir else [])]
    kept = []
    for word in arguments.overrides:
        name, sign, value = word.partition("=")
        if name.startswith(("hydra.", "hydra/")):
            kept.append(word)
            continue
        known = [*table.names(), *(TrainSettings.names() if claimed is not None else [])]
        if not sign:
            near = [name for name in known if name == word.lstrip("+~-")]
            raise UserError(f"{word} is not key=value" + (f"; write {near[0]}=VALUE" if near else ""))
        if name[:1] in "+~":
            refuse_unknown(name.lstrip("+~"), known)
            raise UserError(f"{word}: every key is there already; write {name.lstrip('+~')}={value}")
        refuse_unknown(name, known)
        if "${" in value and not _is_text(name, value, table):
            raise UserError(f"{word}: write the value itself, not a reference")
        override = _parse(word, many=arguments.multirun, text=_is_text(name, value, table))
        if override.is_sweep_override() and not arguments.multirun:
            advice = "add --multirun to train each" if table is TrainSettings else "one is wanted; a list is [A,B]"
            raise UserError(f"{word} names several values; {advice}")
        if name == "devices" and arguments.multirun and value != "1":
            raise UserError(_NO_SWEEP)
        if name not in table.names():
            assert claimed is not None
            claimed[name] = TrainSettings.check_one(name, override.value())
            continue
        if name in GROUPS:
            _check_choice(name, override, folders)
        kept.append(override.input_line or word)
        as_typed[kept[-1]] = word
    return options + kept


def _is_text(name: str, value: str, table: Settings) -> bool:
    field = table.fields().get(name)
    if field is None or name in GROUPS:
        return False
    hint = typing.get_type_hints(table)[field.name]
    return hint in (str, str | None) or (hint == tuple[str, ...] and not value.startswith("["))


def _parse(word: str, *, many: bool, text: bool) -> Override:
    """Read key=value by Hydra's grammar, and where it does not fit, or would change a text, with the value quoted."""
    name, _, value = word.partition("=")
    parser = OverridesParser.create()
    quoted = f"{name}={_quoted(value)}"
    if text and not many and value not in ("null", "") and value[0] not in "'\"":
        return parser.parse_overrides([quoted])[0]
    try:
        return parser.parse_overrides([word])[0]
    except OverrideParseException:
        return parser.parse_overrides([quoted])[0]


def _quoted(value: str) -> str:
    value = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return "'" + value.replace("${", "\\${") + "'"


def _check_choice(name: str, override: Override, folders: list[Path]) -> None:
    there = sorted({file.stem for folder in folders for file in (folder / name).glob("*.yaml")})
    many = override.is_sweep_override() and override.is_discrete_sweep()
    for choice in override.sweep_string_iterator() if many else [str(override.value())]:
        if choice not in there:
            raise UserError(f"{name}={choice}: {name} is one of {' '.join(there)}")


def _schema(table: Settings) -> dict[str, Any]:
    """The table's defaults, nested as Hydra wants them: data.root below data."""
    schema: dict[str, Any] = {}
    for name, field in table.fields().items():
        group, _, leaf = name.rpartition(".")
        if name not in GROUPS:
            value = list(field.default) if isinstance(field.default, tuple) else field.default
            (schema.setdefault(group, {}) if group else schema)[leaf] = value
    return schema


def _flat(config: DictConfig) -> dict[str, Any]:
    def walk(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    try:
        return dict(walk(typing.cast(dict, OmegaConf.to_container(config, resolve=True)), ""))
    except OmegaConfBaseException as error:  # such as ${nonsense}
        raise UserError(_one_line(error)) from error


def _who_set(settings: TrainSettings, typed: Mapping[str, str], configs: Path) -> dict[str, str]:
    """For each key that was typed, or whose value is not the table's: who set it."""
    files = {
        f"data={settings.data}": configs / "data" / f"{settings.data}.yaml",
        f"recipe={settings.recipe}": configs / "recipe" / f"{settings.recipe}.yaml",
        "train.yaml": configs / "train.yaml",
    }
    inside = {label: set(typing.cast(dict, OmegaConf.load(f))) if f.is_file() else set() for label, f in files.items()}
    given = {}
    for name, field in TrainSettings.fields().items():
        if name in typed:
            given[name] = "command line"
        elif getattr(settings, field.name) != field.default and name not in GROUPS:
            given[name] = next((label for label, keys in inside.items() if name in keys), "a config folder")
    return given


def _rank(done: list[tuple[list[str], "Outcome | str"]]) -> None:
    """The closing table of a sweep: by validation accuracy, since the test set never chooses; the failed last."""
    from rich.console import Console
    from rich.table import Table

    def place(entry: tuple[list[str], "Outcome | str"]) -> float:
        outcome = entry[1]
        return float("inf") if isinstance(outcome, str) else -(outcome.validation_accuracy or 0)

    shared = set.intersection(*(set(words) for words, _ in done))
    table = Table("job", "validation", "test", "run or reason")
    table.columns[3].overflow = "fold"
    for words, outcome in sorted(done, key=place):
        title = " ".join(word for word in words if word not in shared)
        if isinstance(outcome, str):
            table.add_row(title, "failed", "", outcome)
        else:
            validation = outcome.validation_accuracy
            chosen = "none" if validation is None else f"{100 * validation:.2f} %"
            table.add_row(title, chosen, f"{100 * outcome.test.accuracy:.2f} %", outcome.folder.name)
    Console(markup=False, emoji=False, highlight=False).print(table)


def help_text(table: Settings) -> str:
    """Every key with its default, type and meaning, for 80 columns."""
    hints = typing.get_type_hints(table)
    lines = [table.purpose, "", "Settings are written key=value, in any order:"]
    group = ""
    for name, field in table.fields().items():
        key = field.metadata["key"]
        if key.group != group:
            group = key.group
            lines += ["", f"{group}:"]
        start = f"{name}={show(field.default)}"
        text = f"{key.meaning} ({describe(key, hints[field.name])})"
        lines += textwrap.wrap(f"  {start:26} {text}", width=80, subsequent_indent=" " * 29)
    if table is TrainSettings:
        lines += ["", "--multirun (-m) trains each of heads=2,4,8; --cfg job prints the settings only."]
    return "\n".join(lines)


def _one_line(error: BaseException) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(str(error).split()))


def _complain(error: UserError) -> None:
    print(f"error: {_one_line(error)}", file=sys.stderr, flush=True)
