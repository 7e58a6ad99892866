"""What recipes are chosen by: python docs/screening.py DATA PASSES WORDS ... trains, e.g. "similarity=cosine lr=2e-3".

DATA is a CIFAR-10 folder or zip as for data=folder. Each WORDS learns as trial.py says, from the table's defaults and
not the recipe's, with seeds 0, 1 and 2. What was measured is kept in results/screening.json beside this file;
python docs/results.py makes the table.
"""

import json
import sys
from pathlib import Path
from typing import Any

from trial import SEEDS, fold, learn, record, recorded

from vit.data import load_images
from vit.runs.machine import silence_unneeded, tune_allocator
from vit.settings import TrainSettings

FILE = Path(__file__).with_name("results") / "screening.json"


def parse(words: str) -> dict[str, Any]:
    """'lr=2e-3 pool=cls' → {"lr": 0.002, "pool": "cls"}."""
    values: dict[str, Any] = {}
    for word in words.split():
        key, _, value = word.partition("=")
        try:
            values[key] = json.loads(value)
        except ValueError:
            values[key] = value
    return values


def measure(root: Path, passes: int, experiments: list[str]) -> None:
    silence_unneeded()
    tune_allocator()
    images = load_images("folder", root=root)
    for seed in SEEDS:
        for words in experiments:
            if f"{seed}" in recorded(FILE).get(f"{passes}", {}).get(words, {}):
                continue
            settings = TrainSettings.from_values(parse(words) | {"epochs": passes, "seed": seed})
            found, _ = learn(settings, fold(images, settings))
            record(FILE, (f"{passes}", words, f"{seed}"), found)
            print(f"{passes} passes, {words}, seed {seed}: {found}", flush=True)


if __name__ == "__main__":
    measure(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
