"""Writes the tables of speed.md from speed.json, which python scripts/benchmark.py output=docs/speed.json measured."""

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("speed.json")
PAGE = Path(__file__).with_name("speed.md")
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def networks(found: dict[str, Any]) -> list[str]:
    lines = ["| network | tokens | training, images/s | × | inference, images/s | × |", "|---|---|---|---|---|---|"]
    rows = zip(found["training"]["contenders"], found["inference"]["contenders"], strict=True)
    for training, inference in rows:
        cells = [f"{training['name']}, {training['variant']}", str(training["tokens"])]
        if "problem" in training:
            cells += [training["problem"], "", "", ""]
        else:
            for row in (training, inference):
                cells += [f"{row['images_per_second']:.0f}"]
                cells += [f"{row['ratio']:.2f} ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def parts_of_a_step(found: dict[str, Any]) -> list[str]:
    """What the floor consists of: the products of the layers by size, and all the rest."""
    settings = found["settings"]
    tokens = settings["batch_size"] * (settings["image_size"] // settings["patch_size"]) ** 2
    kinds: dict[str, list[tuple[float, float]]] = {}
    for product in found["products"]:
        kind = "forward, and gradients of activations"
        if len(product["left"]) == 3:
            kind = "attention's batched products"
        elif product["left"][1] == tokens:
            kind = "gradients of weights"
        spent = product["times"] * product["seconds"], product["times"] * product["flops"]
        kinds.setdefault(kind, []).append(spent)
    lines = ["| part of a training step | ms | share | GFLOP/s |", "|---|---|---|---|"]
    step = settings["batch_size"] / found["training"]["images_per_second"]
    for kind, spent in kinds.items():
        seconds, flops = map(sum, zip(*spent, strict=True))
        lines.append(f"| {kind} | {1000 * seconds:.0f} | {100 * seconds / step:.0f} % | {flops / seconds / 1e9:.0f} |")
    floor = found["training"]["floor_seconds"]
    if floor is None:  # products are hidden in a fused kernel
        return lines
    lines.append(f"| all products alone | {1000 * floor:.0f} | {100 * floor / step:.0f} % | |")
    lines.append(f"| everything else | {1000 * (step - floor):.0f} | {100 * (1 - floor / step):.0f} % | |")
    return lines


def growth(found: dict[str, Any]) -> list[str]:
    lines = ["| one number changed | ms a step | images/s | peak memory, MiB |", "|---|---|---|---|"]
    for row in found["growth"]:
        rate = [f"{1000 * row['seconds']:.0f}", f"{row['images_per_second']:.0f}"] if "seconds" in row else ["", ""]
        lines.append(f"| {row['name']} | {' | '.join(rate)} | {(row['bytes'] or 0) / 2**20:.0f} |")
    return lines


def table() -> str:
    found = json.loads(FILE.read_text())
    return "\n\n".join("\n".join(part(found)) for part in (networks, parts_of_a_step, growth))


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"{PAGE} has lost {END}"
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}")
