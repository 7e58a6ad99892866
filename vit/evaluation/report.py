"""The parts of the report: from a network and images to plain values, tables and pictures."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from vit.data import Split, normalize
from vit.evaluation.calibration import Reliability, fit_temperature
from vit.evaluation.corruption import CORRUPTIONS, SEVERITIES, corrupt, drop_patches, shuffle_patches
from vit.evaluation.drawing import curves_picture, image_rows, matrix_picture
from vit.evaluation.faithfulness import area, baseline_maps, deletion_and_insertion
from vit.evaluation.heads import each_head, logit_attribution, without
from vit.evaluation.metrics import (
    confident_mistakes,
    confused_pairs,
    mean_interval,
    precision_recall_f1,
    wilson_interval,
)
from vit.evaluation.score import Score, predict_logits
from vit.inspection.maps import method_maps
from vit.inspection.measures import attention_distance, patch_cover
from vit.inspection.pictures import printable
from vit.model import ViT

PROBED, EXPLAINED, SWITCHED = 2000, 500, 1000  # images: made worse, with maps, for each head that is off
DROPPED = (0.25, 0.5, 0.75)
MISTAKES, PAIRS = 16, 6  # shown
SIDES = ("deletion", "insertion")
CHUNK = 50  # images whose maps are held at once; fixed, so that the batch size changes no digit


@dataclass(frozen=True)
class Subject:
    """A network and how its images are prepared."""

    vit: ViT
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: str = "cpu"
    batch_size: int = 256

    def logits(self, images: Tensor, edit: Callable[[int, Tensor], Tensor] | None = None) -> Tensor:
        """uint8 (N,C,H,W) → (N,K)."""
        options: dict[str, Any] = {"device": self.device, "batch_size": self.batch_size, "edit": edit}
        return predict_logits(self.vit, images, mean=self.mean, std=self.std, **options)

    def accuracy(self, images: Tensor, labels: Tensor, edit: Callable[[int, Tensor], Tensor] | None = None) -> float:
        return float((self.logits(images, edit).argmax(1) == labels).double().mean())

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, and heads of each."""
        layers: Any = self.vit.layers
        return len(layers), layers[0].attention.heads

    @property
    def grey(self) -> Tensor:
        """The mean of the training images: uint8 (C,)."""
        return (torch.tensor(self.mean) * 255).round().byte()


@dataclass(frozen=True)
class Part:
    """A part of the report. `note` says how to read it; `values` goes to report.json."""

    title: str
    note: str
    values: dict[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)


Track = Callable[[Sequence[Any], str], Iterable[Any]]  # yields the items, and shows how many are done


def some(split: Split, count: int) -> Split:
    """The same random `count` of the images, in order, or all if there are fewer."""
    rows = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:count].sort().values
    return Split(split.images[rows], split.labels[rows], None if split.masks is None else split.masks[rows])


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.2f} %"


def accuracy_part(logits: Tensor, labels: Tensor, title: str = "accuracy") -> Part:
    """Top-1, top-5 and negative log-likelihood, with intervals."""
    found = Score.of(logits, labels)
    nll = F.cross_entropy(logits, labels, reduction="none")
    hits = int((logits.argmax(1) == labels).sum()), round(found.top5 * found.n)
    intervals = [*(wilson_interval(count, found.n) for count in hits), mean_interval(nll)]
    values = {
        "accuracy": found.accuracy,
        "accuracy_interval": intervals[0],
        "top5": found.top5,
        "top5_interval": intervals[1],
        "nll": found.loss,
        "nll_interval": intervals[2],
        "n": found.n,
        "interval_kind": "95 %, over images: Wilson for shares, normal for the mean of nll",
    }
    shown = [percent(found.accuracy), percent(found.top5), f"{found.loss:.4f}"]
    ends = [f"{percent(low)} to {percent(high)}" for low, high in intervals[:2]]
    ends.append("{:.4f} to {:.4f}".format(*intervals[2]))
    rows = [list(row) for row in zip(("top-1", "top-5", "negative log-likelihood"), shown, ends, strict=True)]
    note = f"{found.n:,} images. 95 % intervals over images (Wilson; normal for nll); other seeds are not in them."
    return Part(title, note, values, ("", "value", "95 % interval"), rows)


def class_part(logits: Tensor, split: Split, classes: Sequence[str]) -> Part:
    """Precision, recall and F1 of each class, and the mistakes."""
    names = [printable(name) for name in classes]
    labels, found = split.labels, logits.argmax(1)
    confusion = multiclass_confusion_matrix(logits, labels, len(names))
    measures = precision_recall_f1(confusion).T.tolist()
    counts = confusion.sum(1).tolist()
    per_class = [
        {"class": name, "n": n, "precision": p, "recall": r, "f1": f1}
        for name, n, (p, r, f1) in zip(classes, counts, measures, strict=True)
    ]
    rows = [[name, f"{n:,}", *map(percent, line)] for name, n, line in zip(names, counts, measures, strict=True)]
    pairs = confused_pairs(confusion, PAIRS)
    pictures = {
        "confusion": matrix_picture(
            confusion / confusion.sum(1, keepdim=True).clamp(min=1),
            title="share of a true class that is taken for another",
            x="found",
            y="true",
            rows=names,
            columns=names,
            form="%.2f",
        )
    }
    mistakes = confident_mistakes(logits, labels)
    if len(mistakes):
        chosen = {"most confident mistakes": mistakes[:MISTAKES].split(MISTAKES // 2)}
        of_pairs = [mistakes[(labels[mistakes] == true) & (found[mistakes] == to)] for true, to, _ in pairs]
        chosen["most confused pairs"] = tuple(line[: MISTAKES // 2] for line in of_pairs)
        for title, lines in chosen.items():
            texts = [[f"{names[labels[i]][:7]}: {names[found[i]][:7]}" for i in line] for line in lines]
            pictures[title] = image_rows(split.images, [line.tolist() for line in lines], texts)
    values = {
        "per_class": per_class,
        "confusion": confusion,
        "confused_pairs": [[classes[true], classes[to], n] for true, to, n in pairs],
        "confident_mistakes": mistakes[:MISTAKES],
    }
    note = "Below a picture: the true class, then the one found. Confused most: " + (
        "; ".join(f"{names[true]} taken for {names[to]} ({n:,})" for true, to, n in pairs[:3]) or "none"
    )
    return Part("classes", note, values, ("class", "n", "precision", "recall", "F1"), rows, pictures)


def calibration_part(logits: Tensor, labels: Tensor, validation: tuple[Tensor, Tensor] | str) -> Part:
    """Expected calibration error and temperature, by validation logits and labels, or the reason why there are none."""
    before = Reliability.of(logits, labels)
    temperature, reason = None, validation if isinstance(validation, str) else ""
    if not isinstance(validation, str):
        temperature = fit_temperature(*validation)
        reason = "" if temperature else "no temperature between 0.01 and 100 is best"
    curves = {"ideal": ([0, 1], [0, 1]), "as it is": (before.confidence.tolist(), before.accuracy.tolist())}
    rows = [["as it is", "1", f"{before.error:.4f}", f"{F.cross_entropy(logits, labels):.4f}"]]
    values: dict[str, Any] = {"ece": before.error, "temperature": temperature, "temperature_reason": reason or None}
    if temperature:
        after = Reliability.of(logits / temperature, labels)
        nll = float(F.cross_entropy(logits / temperature, labels))
        curves["with temperature"] = (after.confidence.tolist(), after.accuracy.tolist())
        rows.append(["with temperature", f"{temperature:.3f}", f"{after.error:.4f}", f"{nll:.4f}"])
        values |= {"ece_with_temperature": after.error, "nll_with_temperature": nll}
    picture = curves_picture(curves, title="reliability, 15 bins", x="probability of the class found", y="accuracy")
    note = "Expected calibration error, 15 bins: how far the probability of the class found is from the share of it" + (
        f" that is right. No temperature: {reason}." if reason else " that is right. Fitted on the validation images."
    )
    columns = ("", "temperature", "calibration error", "nll")
    return Part("calibration", note, values, columns, rows, {"reliability": picture})


def patch_drop_part(subject: Subject, test: Split) -> Part:
    """Accuracy with a random share of the patches grey."""
    test = some(test, PROBED)
    accuracies = [subject.accuracy(test.images, test.labels)] + [
        subject.accuracy(drop_patches(test.images, share, grid=subject.vit.grid, grey=subject.grey), test.labels)
        for share in DROPPED
    ]
    shares = [0, *DROPPED]
    values = {"patch_drop": {"images": len(test), "share": shares, "accuracy": accuracies}}
    picture = curves_picture(
        {"": (shares, accuracies)}, title="random patches grey", x="share of patches", y="accuracy"
    )
    rows = [[f"{100 * share:.0f} %", percent(value)] for share, value in zip(shares, accuracies, strict=True)]
    note = f"Random patches painted in the training images' mean colour; {len(test):,} test images."
    return Part("patch dropping", note, values, ("dropped", "accuracy"), rows, {"patch dropping": picture})


def robustness_parts(
    subject: Subject, test: Split, given: Mapping[str, tuple[Tensor, Tensor]], count: int, track: Track
) -> list[Part]:
    """Accuracy with patches shuffled, and on corrupted images: those given, or made here."""
    clean = some(test, count)
    cells = [n for n in (2, 4, 8, 16) if not any(side % n for side in test.images.shape[2:])]
    straight = subject.accuracy(clean.images, clean.labels)
    shuffled = [
        subject.accuracy(shuffle_patches(clean.images, (n, n)), clean.labels) for n in track(cells, "patches shuffled")
    ]
    shuffle = Part(
        "patch shuffling",
        f"Images cut into n × n cells, put together at random; {len(clean):,} test images.",
        {"patch_shuffle": {"images": len(clean), "cells": [1, *cells], "accuracy": [straight, *shuffled]}},
        ("cells", "accuracy"),
        [[f"{n}×{n}", percent(value)] for n, value in zip([1, *cells], [straight, *shuffled], strict=True)],
    )

    def accuracies(kind: str) -> list[float]:
        if kind not in given:
            return [
                subject.accuracy(corrupt(clean.images, kind, level), clean.labels) for level in range(1, SEVERITIES + 1)
            ]
        images, labels = given[kind]
        parts = SEVERITIES if len(labels) == SEVERITIES * 10_000 else 1  # as CIFAR-10-C's files are laid out
        sets = zip(images.chunk(parts), labels.chunk(parts), strict=True)
        chosen = [some(Split(*one), count) for one in sets]
        return [subject.accuracy(one.images, one.labels) for one in chosen]

    kinds = {kind: accuracies(kind) for kind in track(list(given or CORRUPTIONS), "corruptions")}
    name = f"{'files' if given else 'C-style'}, {len(kinds)} kinds"
    mean = sum(sum(levels) / len(levels) for levels in kinds.values()) / len(kinds)
    values = {"name": name, "images": len(clean), "clean": straight, "mean": mean, "kinds": kinds}
    rows = [[kind, *map(percent, levels)] for kind, levels in kinds.items()]
    note = (
        f"{name}: mean accuracy {percent(mean)}, {percent(straight)} on the same images as they are. "
        f"At most {count:,} images each; severities 1 to 5"
        + ("." if given else " of CIFAR-10-C, made here from the test images: not its files, which cannot be compared.")
    )
    columns = ("kind", *map(str, range(1, 1 + max(map(len, kinds.values())))))
    curves = {kind: (range(1, len(levels) + 1), levels) for kind, levels in kinds.items()}
    picture = curves_picture(curves, title=name, x="severity", y="accuracy")
    return [shuffle, Part("corruptions", note, {"corruption": values}, columns, rows, {"corruptions": picture})]


def faithfulness_part(subject: Subject, test: Split, track: Track) -> Part:
    """Deletion and insertion by each kind of map, against maps that know nothing of the network."""
    test = some(test, EXPLAINED)
    maps = explain(subject, test.images)
    baselines = baseline_maps(test.images, grid=subject.vit.grid)
    if test.masks is not None:
        maps["object (true mask)"] = patch_cover(test.masks, subject.vit.grid)
    pairs = {
        name: deletion_and_insertion(subject.logits, test.images, test.labels, of_method, grey=subject.grey)
        for name, of_method in track(list((maps | baselines).items()), "maps")
    }
    gaps = {name: area(insertion) - area(deletion) for name, (deletion, insertion) in pairs.items()}
    values: dict[str, Any] = {}
    rows, pictures = [], {}
    for name, pair in pairs.items():
        others = [other for other in baselines if other != name]
        better_than = [other for other in others if mean_interval(gaps[name] - gaps[other])[0] > 0]
        values[name] = {"better_than": better_than} | {
            side: {"area": area(curves).mean(), "interval": mean_interval(area(curves)), "curve": curves.mean(0)}
            for side, curves in zip(SIDES, pair, strict=True)
        }
        areas = (*(area(curves).mean() for curves in pair), gaps[name].mean())
        rows.append([name, *(f"{value:.3f}" for value in areas), ", ".join(better_than) or "none"])
    for side in SIDES:
        lines = {name: of[side]["curve"].tolist() for name, of in values.items()}
        shares = torch.linspace(0, 1, len(lines["random"])).tolist()
        curves = {name: (shares, line) for name, line in lines.items()}
        pictures[side] = curves_picture(curves, title=side, x="share of patches", y="probability of the true class")
    trusted = [name for name in maps if len(values[name]["better_than"]) == len(baselines)]
    note = (
        f"{len(test):,} test images; patches turn grey (deletion) or appear on grey (insertion) in the map's order: "
        "areas under the probability of the true class, which should be small and large. Better than: where the 95 % "
        "interval of the paired difference is above 0. Better than all that know nothing of the network: "
        + (", ".join(trusted) or "none")
    )
    columns = ("map", *SIDES, "difference", "better than")
    facts = {"faithfulness": {"images": len(test), "steps": len(shares) - 1, "maps": values}}
    return Part("can the maps be trusted?", note, facts, columns, rows, pictures)


def explain(subject: Subject, images: Tensor) -> dict[str, Tensor]:
    """The maps (N,rows,columns) of each method, for the class found; pooling weights where they differ."""
    vit, chunks = subject.vit, []
    for part in images.split(CHUNK):
        seen = vit.attend(normalize(part.to(subject.device), subject.mean, subject.std))
        maps = method_maps(seen, grid=vit.grid)
        weights = seen.readout.detach()[:, vit.prefix_tokens :].unflatten(1, vit.grid)
        if weights.std() > 1e-6:
            maps["pooling weights"] = weights
        chunks.append(maps)
    return {name: torch.cat([maps[name].cpu() for maps in chunks]) for name in chunks[0]}


def head_part(subject: Subject, test: Split, validation: Split | None, track: Track) -> Part:
    """What is lost without each head, ranked on validation and reported on test, and without half of them."""
    depth, heads = subject.shape
    test = some(test, SWITCHED)
    off = list(each_head(depth, heads))
    whole = subject.accuracy(test.images, test.labels)
    lost = torch.tensor(
        [whole - subject.accuracy(test.images, test.labels, without(one)) for one in track(off, "heads off, test")]
    ).view(depth, heads)
    values: dict[str, Any] = {"images": len(test), "accuracy": whole, "accuracy_lost": lost.tolist()}
    note = f"Accuracy lost on {len(test):,} test images when one head is switched off (all of them: {percent(whole)}). "
    if validation is None:
        note += "Not ranked: without validation images the test images would choose."
        values |= {"ranking": None, "half_removed": None}
    else:
        kept = some(validation, SWITCHED)
        loss = torch.stack(
            [
                F.cross_entropy(subject.logits(kept.images, without(one)), kept.labels)
                for one in track(off, "heads off, validation")
            ]
        )
        order = loss.argsort(stable=True)  # the least important first
        half = torch.zeros(depth * heads, dtype=torch.bool)
        half[order[: len(order) // 2]] = True
        left = subject.accuracy(test.images, test.labels, without(half.view(depth, heads)))
        ranking = [[int(place) // heads + 1, int(place) % heads + 1] for place in order.flip(0)]
        values |= {"ranking": ranking, "half_removed": left, "ranked_on": f"loss on {len(kept):,} validation images"}
        first = ", ".join(f"layer {layer} head {head}" for layer, head in ranking[:3])
        note += (
            f"Ranked by the loss on {len(kept):,} validation images: most important {first}. "
            f"Without the least important half of all heads {percent(left)} is left."
        )
    labels = [f"layer {layer}" for layer in range(1, depth + 1)], [f"head {head}" for head in range(1, heads + 1)]
    picture = matrix_picture(
        100 * lost,
        title="accuracy lost without a head (points)",
        x="",
        y="",
        rows=labels[0],
        columns=labels[1],
        form="%.1f",
    )
    rows = [
        [label, *(f"{100 * value:.1f}" for value in line)] for label, line in zip(labels[0], lost.tolist(), strict=True)
    ]
    return Part(
        "which heads matter?",
        note,
        {"heads": values},
        ("points lost", *labels[1]),
        rows,
        {"heads switched off": picture},
    )


def attribution_part(subject: Subject, test: Split) -> Part:
    """What each head, each MLP and the embedding add to the true class's logit, and how far each head looks."""
    vit, test = subject.vit, some(test, EXPLAINED)
    parts, distances = [], []
    for images, labels in zip(test.images.split(CHUNK), test.labels.split(CHUNK), strict=True):
        with torch.no_grad():
            normal = normalize(images.to(subject.device), subject.mean, subject.std)
            seen = vit.attend(normal)
            added = logit_attribution(vit, normal, labels.to(subject.device), seen)
            parts.append(torch.cat([added.heads, added.mlps[..., None]], 2).sum(0).cpu())
            parts[-1] = torch.cat([parts[-1].flatten(), torch.stack([added.embedding.sum(), added.bias.sum()]).cpu()])
            size = vit.patch_embedding.patch_size
            far = [attention_distance(maps, grid=vit.grid, patch_size=size) for maps in seen.maps]
            distances.append(len(labels) * torch.stack(far).cpu())
    mean = torch.stack(parts).sum(0) / len(test)
    layers, (embedding, bias) = mean[:-2].view(len(vit.layers), -1), mean[-2:].tolist()
    distance = torch.stack(distances).sum(0) / len(test)
    names = [f"layer {layer}" for layer in range(1, len(vit.layers) + 1)]
    columns = [*(f"head {head}" for head in range(1, layers.shape[1])), "MLP"]
    apart = distance.sort(1).values
    pictures = {
        "what writes the answer": matrix_picture(
            layers, title="added to the true class's logit, mean", x="", y="", rows=names, columns=columns, form="%.2f"
        ),
        "attention distance": curves_picture(
            {f"{n}": (range(1, len(names) + 1), line) for n, line in enumerate(apart.T.tolist(), 1)},
            title="mean attention distance, heads sorted",
            x="layer",
            y="pixels",
            style="o",
        ),
    }
    values = {
        "attribution": {
            "logit": float(mean.sum()),
            "embedding": embedding,
            "bias": bias,
            "heads": layers[:, :-1].tolist(),
            "mlps": layers[:, -1].tolist(),
        },
        "distance": distance.tolist(),
    }
    note = (
        f"Means over {len(test):,} test images; all entries, the embedding ({embedding:.2f}) and biases ({bias:.2f}) "
        f"together are the true class's logit ({float(mean.sum()):.2f})."
    )
    rows = [[name, *(f"{value:.2f}" for value in line)] for name, line in zip(names, layers.tolist(), strict=True)]
    return Part("what writes the answer?", note, values, ("logit", *columns), rows, pictures)
