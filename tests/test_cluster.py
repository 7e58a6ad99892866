"""Two processes that torchrun or SLURM has started make one run, which learns what one process learns."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.running import REPOSITORY, TINY, call, only_run
from vit.runs.cluster import launcher
from vit.training.checkpoint import read_checkpoint
from vit.training.logger import read_metrics

SCRIPT = str(REPOSITORY / "scripts" / "train.py")
# In float32 by AdamW, with nothing drawn at random: the same steps, but for the order of sums.
PLAIN = ["precision=32-true", "optimizer=adamw", "crop=0", "flip=false", "epochs=3"]


def finish(commands: list[list[str]], environments: list[dict[str, str]], place: Path) -> list[tuple[int, str, str]]:
    running = [
        subprocess.Popen(
            command,
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, environment in zip(commands, environments, strict=True)
    ]
    printed = [process.communicate(timeout=200) for process in running]
    return [(process.returncode, *both) for process, both in zip(running, printed, strict=True)]


def by_torchrun(words: list[str], place: Path) -> list[tuple[int, str, str]]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return finish([[*launcher, SCRIPT, *words]], [{}], place)


def by_slurm(words: list[str], place: Path) -> list[tuple[int, str, str]]:
    """What srun tells each of its two processes; there is no srun here."""
    return finish([[sys.executable, SCRIPT, *words]] * 2, [told_by_srun(rank) for rank in "01"], place)


def told_by_srun(rank: str) -> dict[str, str]:
    job = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NODEID": "0", "SLURM_JOB_NAME": "vit"}
    job |= {"SLURM_JOB_ID": str(10_000 + os.getpid() % 10_000), "SLURM_NODELIST": "127.0.0.1"}
    return {**job, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}


@pytest.fixture(scope="module")
def alone(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        assert call("train", ["data=folder", f"data.root={tiny}", f"runs={runs}", *TINY, *PLAIN], patch) == 0
    return only_run(runs)


@pytest.mark.parametrize("launch", [by_torchrun, by_slurm])
def test_H1_H2_a_launchers_processes_make_one_run(
    launch: Callable, alone: Path, words: list[str], tmp_path: Path
) -> None:
    ended = launch([*words, *PLAIN, "devices=2"], tmp_path)
    assert {status for status, _, _ in ended} == {0}, ended
    run = only_run(tmp_path / "runs")
    assert len(list(run.glob("events*"))) == 1
    assert sum(out.count("test accuracy") for _, out, _ in ended) == 1
    first, second = (read_metrics(folder / "metrics.csv") for folder in (alone, run))
    for one, two in zip(first, second, strict=True):
        for name in ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy"):
            assert float(one[name]) == pytest.approx(float(two[name]), abs=1e-3)
    weights = [read_checkpoint(folder / "last.ckpt")[0]["state_dict"] for folder in (alone, run)]
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], atol=2e-3, rtol=0)


def test_another_number_of_processes_than_devices_is_refused(
    words: list[str],
    tmp_path: Path,
    train: Callable,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    for name, value in told_by_srun("0").items():
        monkeypatch.setenv(name, value)
    launcher.cache_clear()
    request.addfinalizer(launcher.cache_clear)
    assert train([*words, "epochs=1"]) == 1
    assert "error: devices=1, but 2 of the 2 processes were started here" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
