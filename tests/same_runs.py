"""What must be equal in two runs of the same settings, however often one of them was interrupted."""

import json
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vit.training.checkpoint import read_checkpoint

MEASURED = ("minutes", "command")  # of result.json: they tell what happened, and may differ


def differences(first: Path, second: Path) -> list[str]:
    """In words: weights, optimiser, metrics.csv, result.json, curves and pictures, bit for bit. Empty if none."""
    found = []
    for name in ("last.ckpt", "best.ckpt"):
        one, two = (read_checkpoint(run / name)[0] for run in (first, second))
        for part in ("state_dict", "current_model_state", "optimizer_states", "lr_schedulers"):
            if not equal(one.get(part), two.get(part)):
                found.append(f"{part} of {name}")
    if (first / "metrics.csv").read_text() != (second / "metrics.csv").read_text():
        found.append("metrics.csv")
    one, two = (json.loads((run / "result.json").read_text()) for run in (first, second))
    found += [f"{key} of result.json" for key in one.keys() - MEASURED if one[key] != two[key]]
    one, two = curves(first), curves(second)
    found += [f"the curve {tag}" for tag in sorted(one.keys() | two.keys()) if one.get(tag) != two.get(tag)]
    one, two = ({file.name: file.read_bytes() for file in (run / "pictures").iterdir()} for run in (first, second))
    found += [f"the picture {name}" for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
    return found


def equal(one: object, two: object) -> bool:
    """Of plain values and tensors, nested in any way."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(equal, one, two))
    return type(one) is type(two) and one == two


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of each scalar but the throughput, which is measured; of images, the step."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("throughput")]
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}
    return found | {tag: [(event.step, 0.0) for event in events.Images(tag)] for tag in events.Tags()["images"]}
