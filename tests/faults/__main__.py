"""Proof by fault injection that nothing is lost: python -m tests.faults --help

Trains a small network again and again, on shapes that are drawn by this program, kills it, resumes it, and compares
weights, optimiser, metrics.csv, result.json, event files and pictures with a run that was left alone. POSIX only.
"""

import argparse
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: the same sums in every process

from tests.faults.kills import Kill, kill_often, summary
from tests.faults.others import FAULTS, NotPossibleError
from tests.faults.plants import PLANTS
from tests.faults.training import Bench


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60, metavar="N", help="how many (default 60, two minutes)")
    parser.add_argument("--faults", type=int, default=len(FAULTS), metavar="N", help="the first N others (default all)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--plant", choices=PLANTS, nargs="+", default=[], help="mistakes that the kills must find")
    asked = parser.parse_args()
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it reports what a resumed run takes back
    scratch = Path(tempfile.mkdtemp(prefix="faults_"))  # no TemporaryDirectory, which each process would delete
    try:
        if not asked.plant:
            return try_all(scratch, asked.kills, asked.faults, asked.seed)
        found = {plant: find(plant, scratch / plant, asked.kills, asked.seed) for plant in asked.plant}
        return int(not all(found.values()))
    finally:
        shutil.rmtree(scratch)


def find(plant: str, scratch: Path, kills: int, seed: int) -> bool:
    """Whether anything is lost by a mistake that was planted."""
    scratch.mkdir()
    for _, lost in kill_often(Bench(scratch, PLANTS[plant]), kills, seed):
        if lost:
            print(f"planted {plant}: found ({lost[0]})", flush=True)
            return True
    print(f"planted {plant}: NOT FOUND", flush=True)
    return False


def try_all(scratch: Path, number: int, faults: int, seed: int) -> int:
    bench = Bench(scratch)
    kills: list[Kill] = []
    all_lost: list[str] = []
    for more, lost in kill_often(bench, number, seed) if number else ():
        kills += more
        all_lost += lost
        print(*(f"{kill}" for kill in more), f"    {'; '.join(lost) or 'equal in the end'}", sep="\n", flush=True)
    tried = 0
    for name, fault in list(FAULTS.items())[:faults]:
        try:
            lost = fault(bench)
        except NotPossibleError as error:
            print(f"{name}: not possible here ({error})", flush=True)
            continue
        tried += 1
        all_lost += [f"{name}: {what}" for what in lost]
        print(f"{name}: {'; '.join(lost) or 'nothing lost'}", flush=True)
    print(f"\n{summary(kills)}; {tried} other faults; lost: {'; '.join(all_lost) or 'nothing'}")
    return int(bool(all_lost))


if __name__ == "__main__":
    sys.exit(main())
