"""The short form of `python -m tests.faults`: a few kills, and that mistakes made on purpose are found by them."""

import subprocess
import sys

from tests.running import REPOSITORY


def faults(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tests.faults", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)


def test_C4_C8_R1_a_few_kills_lose_nothing() -> None:
    process = faults("--kills", "3", "--faults", "0")
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.splitlines()[-1].endswith("0 other faults; lost: nothing")


def test_C4_C6_C8_planted_mistakes_are_found() -> None:
    plants = ("save_without_rename", "rate_not_relinked", "rng_not_restored")
    process = faults("--kills", "1", "--plant", *plants)  # in the second epoch, halfway through a file
    assert process.returncode == 0, process.stdout + process.stderr
    for plant in plants:
        assert f"planted {plant}: found" in process.stdout
