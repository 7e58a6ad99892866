"""Do maps point at the object? python docs/pointing.py [KEY=VALUE ...] trains and measures; --table writes the table.

For seeds 0, 1 and 2, scripts/train.py data=shapes learns with the words given, and every method's map of each of the
2,000 test images is compared with the object's mask: whether the middle of its brightest patch lies on the object (the
pointing game), and which share of the map does. Beside them stand the same network before training, the middle of the
image, and chance: a patch drawn at random. What was measured is kept in pointing.json beside this file.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from vit.data import load_images, normalize
from vit.inspection.maps import method_maps
from vit.inspection.measures import points_at_object, share_on_object
from vit.model import ViT
from vit.runs.machine import commit
from vit.training import load

FILE = Path(__file__).with_name("pointing.json")
PAGE = Path(__file__).with_name("pointing.md")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
SEEDS = (0, 1, 2)
AT_ONCE = 100  # images

Found = dict[str, dict[str, float]]  # of each method: pointing rate, share on the object


def fixed_maps(grid: tuple[int, int], count: int) -> dict[str, Tensor]:
    """What needs no network: one of the patches nearest to the middle."""
    middle = torch.zeros(count, *grid)
    middle[:, grid[0] // 2, grid[1] // 2] = 1
    return {"middle of the image": middle}


def chance(masks: Tensor, grid: tuple[int, int]) -> dict[str, float]:
    """Of a patch drawn at random: the mean over all patches, each as a map that points there."""
    each = torch.eye(grid[0] * grid[1]).unflatten(1, grid)
    points = [points_at_object(one.expand(len(masks), -1, -1), masks).float().mean() for one in each]
    return {"points": float(torch.stack(points).mean()), "share": float(masks.float().mean())}


def rates(maps: dict[str, Tensor], masks: Tensor) -> Found:
    return {
        name: {
            "points": float(points_at_object(one, masks).float().mean()),
            "share": float(share_on_object(one, masks).mean()),
        }
        for name, one in maps.items()
    }


def maps_of(vit: ViT, images: Tensor) -> dict[str, Tensor]:
    """(B,rows,columns) by each method, of normalised images."""
    parts = [method_maps(vit.attend(part), grid=vit.grid) for part in images.split(AT_ONCE)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def measure(words: list[str]) -> None:
    test = load_images("shapes").test
    assert test.masks is not None
    results: dict = {"words": ["data=shapes", *words], "commit": commit(), "seeds": {}}
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as runs:
            command = ["scripts/train.py", "data=shapes", *words, f"seed={seed}", f"runs={runs}"]
            subprocess.run([sys.executable, *command], check=True, cwd=Path(__file__).parent.parent)
            (run,) = (place for place in Path(runs).iterdir() if place.is_dir())
            vit, facts = load(run)
            outcome = json.loads((run / "result.json").read_text())
        images = normalize(test.images, facts.mean, facts.std)
        torch.manual_seed(seed)
        untrained = ViT(**facts.model).eval()
        before = {f"{name}, untrained": one for name, one in maps_of(untrained, images).items() if one.any()}
        maps = maps_of(vit, images) | before | fixed_maps(vit.grid, len(images))
        found = rates(maps, test.masks) | {"chance": chance(test.masks, vit.grid)}
        results["seeds"][f"{seed}"] = {"accuracy": outcome["test_accuracy"], "methods": found}
        FILE.write_text(json.dumps(results, indent=1) + "\n")
        print(f"seed {seed}: {found}", flush=True)


def table() -> str:
    """A row a method: mean and standard deviation over the seeds."""
    results = json.loads(FILE.read_text())
    seeds = list(results["seeds"].values())
    rows = [f"| map | points at the object (n = {len(seeds)}) | share on the object |", "|---|---|---|"]
    for name in seeds[0]["methods"]:
        told = []
        for what in ("points", "share"):
            values = [100 * seed["methods"][name][what] for seed in seeds]
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 and len(set(values)) > 1 else ""
            told.append(f"{statistics.mean(values):.1f}{spread} %")
        rows.append(f"| {name} | {told[0]} | {told[1]} |")
    accuracy = " ".join(f"{100 * seed['accuracy']:.2f}" for seed in seeds)
    command = " ".join(["python scripts/train.py", *results["words"]])
    return "\n".join([*rows, "", f"`{command}`, commit {results['commit']}; test accuracy {accuracy} %."])


if __name__ == "__main__":
    if sys.argv[1:] == ["--table"]:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}")
    else:
        measure(sys.argv[1:])
