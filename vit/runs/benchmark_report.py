"""What was measured, as tables of at most 80 columns and as a plot."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich import box
from rich.table import Table

Found = dict[str, Any]


def tables(found: Found) -> list[Table]:
    """Networks side by side, shares of what is possible, and how cost grows."""
    return [_networks(found), _shares(found), _growth(found)]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold", no_wrap=index > 0)
    return table


def _networks(found: Found) -> Table:
    settings = found["settings"]
    table = _table(
        f"Images a second, batch {settings['batch_size']}, {found['machine']['precision']}: median of "
        f"{settings['samples']} (± to the farther quartile); ×: this ViT is so many times as fast, tokens being equal",
        *("network", "tokens", "training", "×", "inference", "×"),
    )
    problems = []
    for training, inference in zip(found["training"]["contenders"], found["inference"]["contenders"], strict=True):
        name = f"{training['name']}, {training['variant']}"
        if "problem" in training:
            problems.append(f"{name}: {training['problem']}")
            table.add_row(name, str(training["tokens"]), *4 * "-")
        else:
            cells = [cell for row in (training, inference) for cell in (_rate(row), f"{row['ratio']:.2f}")]
            table.add_row(name, str(training["tokens"]), *cells)
    table.caption, table.caption_justify = "\n".join(problems), "left"
    return table


def _rate(row: Found) -> str:
    away = max(abs(row[f"seconds_{end}"] / row["seconds"] - 1) for end in ("low", "high"))
    return f"{row['images_per_second']:,.0f} ±{100 * away:.0f}%"


def _shares(found: Found) -> Table:
    training, inference, memory = found["training"], found["inference"], found["memory"]
    data, end, logging = found["data"], found["end_to_end"], found["attention_logging"]
    own, *others = (pipeline["images_per_second"] for pipeline in data["pipelines"].values())
    rate = f"{training['square_flops_per_second'] / 1e9:,.0f} GFLOP/s"
    shares = {
        f"training, against the best peer ({training['best_peer']})": _times(training["ratio_to_best_peer"]),
        "training, against timm as installed": _times(training["ratio_to_timm_as_installed"]),
        f"inference, against the best peer ({inference['best_peer']})": _times(inference["ratio_to_best_peer"]),
        f"training, of the rate of one large product ({rate})": _percent(training["fraction_of_ceiling"]),
        "the same, if only its products took time": _percent(training["fraction_of_ceiling_at_floor"]),
        f"data path, {own:,.0f} images/s, torchvision {max(others):,.0f}": _times(data["ratio_to_torchvision"]),
        f"bare work in a training of {end['steps']} steps": _percent(end["fraction_of_bare_step"]),
        "the same, pictures of attention apart": _percent(end["fraction_without_pictures"]),
        "attention logging in a default CIFAR-10 run": _percent(logging["share"]),
        f"peak memory at batch {memory['batch_size']}, against timm": _times(memory["ratio_to_timm"]),
    }
    shares |= {f"peak memory: {name}": _mebibytes(peak) for name, peak in memory["bytes"].items()}
    table = _table("In one number each", "what", "")
    for row in shares.items():
        table.add_row(*row)
    return table


def _growth(found: Found) -> Table:
    table = _table("A training step, one number changed", "this ViT", "ms", "images/s", "peak memory")
    for point in found["growth"]:
        known = "seconds" in point
        rate = [f"{1000 * point['seconds']:,.0f}", f"{point['images_per_second']:,.0f}"] if known else ["", ""]
        table.add_row(point["name"], *rate, _mebibytes(point["bytes"]))
    return table


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} ×"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:,.0f} MiB"


def plot(found: Found, file: Path) -> None:
    """Bars of images a second with quartiles, for training and inference; what a step costs as one number grows."""
    figure = Figure(figsize=(14, 6), layout="constrained")
    axes = figure.subplots(1, 3)
    for axis, part in zip(axes, ("training", "inference"), strict=False):
        rows = [row for row in reversed(found[part]["contenders"]) if "problem" not in row]
        names, rates = [f"{row['name']}, {row['variant']}" for row in rows], [row["images_per_second"] for row in rows]
        away = [
            [abs(row["seconds"] / row[f"seconds_{end}"] - 1) * row["images_per_second"] for row in rows]
            for end in ("high", "low")
        ]
        axis.barh(names, rates, xerr=away, color=["C1" if row["name"] == rows[-1]["name"] else "C0" for row in rows])
        axis.set(title=part, xlabel="images a second")
    axes[1].set_yticklabels([])
    base, *points = found["growth"]
    points = [point for point in points if "seconds" in point]
    for key in ("batch_size", "depth", "dim", "heads", "patch_size", "image_size"):
        line = [base, *(point for point in points if point[key] != base[key])] if "seconds" in base else []
        cost = sorted((point[key] / base[key], point["seconds"] / base["seconds"]) for point in line)
        axes[2].plot([x for x, _ in cost], [y for _, y in cost], marker="o", label=key)
    title = "a training step as one number grows"
    axes[2].set(title=title, xlabel="factor", ylabel="times as long", xscale="log", yscale="log")
    axes[2].legend()
    figure.savefig(file, dpi=100)
