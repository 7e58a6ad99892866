"""What recipes are chosen by: python docs/screening.py DATA PASSES WORDS ... trains, e.g. "similarity=cosine lr=2e-3".

DATA is a CIFAR-10 folder or zip as for data=folder. Each WORDS, and "" for the defaults, learns with seeds 0, 1 and 2
from 10,000 training images, always the same ones, and is judged by the cross-entropy of the usual 5,000 validation
images; the test images are not looked at. What was measured is kept in results/screening.json beside this file, and
measured again only if it is not there; python docs/results.py makes the table. Several may measure at once.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from options import IMAGES, SEEDS, learn

from vit.data import ImageData, load_images
from vit.data.datamodule import InMemory
from vit.runs.machine import commit, silence_unneeded, tune_allocator
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


def known() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def measure(root: Path, passes: int, experiments: list[str]) -> None:
    silence_unneeded()
    tune_allocator()
    images = load_images("folder", root=root)
    for seed in SEEDS:
        for words in experiments:
            if f"{seed}" in known().get(f"{passes}", {}).get(words, {}):
                continue
            settings = TrainSettings.from_values(parse(words) | {"epochs": passes, "seed": seed})
            data = ImageData(images, validation=None, batch_size=settings.batch_size, seed=seed)
            fold = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[:IMAGES]
            data.train = InMemory(data.train.images[fold], data.train.labels[fold])
            found = learn(settings, data, None) | {"commit": commit()}
            with FileLock(FILE.with_suffix(".lock")):
                results = known()
                results.setdefault(f"{passes}", {}).setdefault(words, {})[f"{seed}"] = found
                FILE.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{passes} passes, {words or 'defaults'}, seed {seed}: {found}", flush=True)


if __name__ == "__main__":
    measure(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or [""])
