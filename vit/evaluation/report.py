"""The parts of the report: each is a table, its values for report.json, pictures, and a note that says how to read it.

Accuracies are shares of 1, intervals hold with 95 %.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from vit.data import Split, normalize
from vit.evaluation.calibration import Reliability, fit_temperature
from vit.evaluation.comparison import difference_of_means, paired_difference
from vit.evaluation.corruption import CORRUPTIONS, SEVERITIES, corrupt, drop_patches, shuffle_patches
from vit.evaluation.drawing import curves_picture, image_rows, matrix_picture
from vit.evaluation.faithfulness import area, baseline_maps, deletion_and_insertion
from vit.evaluation.heads import each_head, logit_attribution, without
from vit.evaluation.metrics import confident_mistakes, confused_pairs, mean_interval, per_class, wilson_interval
from vit.evaluation.score import Score, predict_logits
from vit.inspection.attention_logger import images_that_fit
from vit.inspection.maps import method_maps
from vit.inspection.measures import attention_distance, patch_cover
from vit.model import ViT

FITTED, COVERED, PROBED = 2000, 1000, 2000  # images for the temperature, with patches dropped, made worse
EXPLAINED, RANKED, SWITCHED = 500, 500, 1000  # images whose maps are tested; without each head, validation and test
DROPPED = (0.25, 0.5, 0.75)
MISTAKES, IN_A_ROW, PAIRS = 16, 8, 6  # shown
CHUNK = 50  # images whose maps are held at once, or fewer

Track = Callable[[Sequence[Any], str], Iterable[Any]]  # yields the items, and shows how many are done
Edit = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class Part:
    title: str
    note: str
    table: list[dict[str, Any]]
    values: dict[str, Any]
    pictures: dict[str, np.ndarray] = field(default_factory=dict)
    digits: int = 4


@dataclass(frozen=True)
class Subject:
    """A network, and how its images are prepared."""

    vit: ViT
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: str = "cpu"
    batch_size: int = 256

    def logits(self, images: Tensor, edit: Edit | None = None) -> Tensor:
        """uint8 (N,C,H,W) → (N,K)."""
        how: dict[str, Any] = {"device": self.device, "batch_size": self.batch_size, "edit": edit}
        return predict_logits(self.vit, images, mean=self.mean, std=self.std, **how)

    def accuracy(self, images: Tensor, labels: Tensor, edit: Edit | None = None) -> float:
        return Score.of(self.logits(images, edit), labels).accuracy

    def normal(self, images: Tensor) -> Tensor:
        return normalize(images.to(self.device), self.mean, self.std)

    @property
    def chunk(self) -> int:
        """Images whose maps are held at once: the same for every batch size, which therefore changes no digit."""
        return max(1, min(CHUNK, images_that_fit(self.vit)))

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, and heads of each."""
        layers: Any = self.vit.layers
        return len(layers), layers[0].attention.heads

    @property
    def grey(self) -> Tensor:
        """The mean of the training images: uint8 (C,)."""
        return (torch.tensor(self.mean) * 255).round().byte()


def some_rows(n: int, count: int) -> Tensor:
    """The same random `count` of n, in order, or all if there are fewer."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:count].sort().values


def some(split: Split, count: int) -> Split:
    """The images of `some_rows`."""
    rows = some_rows(len(split), count)
    return Split(split.images[rows], split.labels[rows], None if split.masks is None else split.masks[rows])


def accuracy(logits: Tensor, labels: Tensor) -> Part:
    """Top-1, top-5 and negative log-likelihood."""
    found = Score.of(logits, labels)
    shares = {"accuracy": found.accuracy, "top5": found.top5}
    intervals = {f"{name}_interval": wilson_interval(round(of * found.n), found.n) for name, of in shares.items()}
    intervals["nll_interval"] = mean_interval(F.cross_entropy(logits, labels, reduction="none"))
    values = shares | {"nll": found.loss}
    table = [{"": name, "value": of, "interval": intervals[f"{name}_interval"]} for name, of in values.items()]
    kind = "95 % over images: Wilson for shares, normal for nll"
    note = f"{found.n:,} images. Intervals: {kind}. What another seed would change is not in them."
    return Part("accuracy", note, table, {**values, **intervals, "n": found.n, "interval_kind": kind})


def classes(logits: Tensor, test: Split, names: Sequence[str], shown: Sequence[str]) -> Part:
    """Precision, recall and F1 of each class, and the mistakes; `shown` are the names as pictures can write them."""
    labels, found = test.labels, logits.argmax(1)
    confusion = multiclass_confusion_matrix(logits, labels, len(names))
    table = [
        {"class": name, "n": n, "precision": precision, "recall": recall, "f1": f1}
        for name, n, (precision, recall, f1) in zip(names, confusion.sum(1).tolist(), per_class(confusion), strict=True)
    ]
    pairs, mistakes = confused_pairs(confusion, PAIRS), confident_mistakes(logits, labels)
    shares = confusion / confusion.sum(1, keepdim=True).clamp(min=1)
    pictures = {"confusion": matrix_picture(shares, shown, shown, title="true class (row) taken for another (column)")}
    of_pairs = [mistakes[(labels == t)[mistakes] & (found == f)[mistakes]][:IN_A_ROW] for t, f, _ in pairs]
    rows = {"most confident mistakes": mistakes[:MISTAKES].split(IN_A_ROW), "most confused pairs": of_pairs}
    for title, lines in rows.items() if pairs else ():
        below = [[f"{shown[int(labels[i])]}\nfound {shown[int(found[i])]}" for i in line] for line in lines]
        pictures[title] = image_rows(test.images, lines, below)
    confused = [[names[true], names[to], n] for true, to, n in pairs]
    most = "; ".join(f"{shown[true]} taken for {shown[to]} ({n:,})" for true, to, n in pairs[:3])
    note = f"Confused most: {most or 'none'}. Below a picture of a mistake stands its true class."
    values = {"per_class": table, "confusion": confusion, "confused_pairs": confused}
    return Part("classes", note, table, values | {"confident_mistakes": mistakes[:MISTAKES]}, pictures)


def calibration(logits: Tensor, labels: Tensor, validation: tuple[Tensor, Tensor] | str) -> Part:
    """Calibration error, and the temperature by validation logits and labels, or the reason why there are none."""
    temperature = None if isinstance(validation, str) else fit_temperature(*validation)
    reason = validation if isinstance(validation, str) else "no temperature between 0.01 and 100 is best"
    table, curves = [], {}
    for name, divisor in {"as it is": 1.0, "with temperature": temperature}.items():
        if divisor is not None:
            bins = Reliability.of(logits / divisor, labels)
            loss = float(F.cross_entropy(logits / divisor, labels))
            curves[name] = bins.accuracy.tolist()
            table.append({"": name, "temperature": divisor, "ece": bins.error, "nll": loss})
    middles = ((torch.arange(len(bins.share)) + 0.5) / len(bins.share)).tolist()
    axes = "probability of the class found: accuracy"
    picture = curves_picture(middles, {"ideal": middles, **curves}, title="reliability", axes=axes)
    values = {"ece": table[0]["ece"], "temperature": temperature, "calibration": table}
    fitted = "Temperature fitted on the validation images." if temperature else f"No temperature: {reason}."
    note = "ece: the mean gap between the probability of the class found and the share that is right, in 15 bins. "
    values["temperature_reason"] = None if temperature else reason
    return Part("calibration", note + fitted, table, values, {"reliability": picture})


def patch_dropping(subject: Subject, test: Split, logits: Tensor) -> Part:
    """Accuracy with a random share of the patches grey; `logits` (N,K) are those with none."""
    logits, test = logits[some_rows(len(test), COVERED)], some(test, COVERED)
    how: dict[str, Any] = {"grid": subject.vit.grid, "grey": subject.grey}
    found = [subject.accuracy(drop_patches(test.images, share, **how), test.labels) for share in DROPPED]
    shares, found = (0.0, *DROPPED), [Score.of(logits, test.labels).accuracy, *found]
    table = [{"share": share, "accuracy": value} for share, value in zip(shares, found, strict=True)]
    picture = curves_picture(shares, {"": found}, title="random patches grey", axes="share of patches: accuracy")
    note = f"A random share of the patches is painted in the training images' mean; {len(test):,} test images."
    return Part("patch dropping", note, table, {"patch_drop": table}, {"patch dropping": picture})


def patch_shuffling(subject: Subject, test: Split, count: int, track: Track) -> Part:
    """Accuracy with the image cut into cells and joined at random."""
    test = some(test, count)
    cells = [n for n in (1, 2, 4, 8, 16) if not any(side % n for side in test.images.shape[2:])]
    table = [
        {"cells": f"{n}×{n}", "accuracy": subject.accuracy(shuffle_patches(test.images, (n, n)), test.labels)}
        for n in track(cells, "shuffling")
    ]
    note = f"Images are cut into cells and joined in random order; {len(test):,} test images."
    return Part("patch shuffling", note, table, {"patch_shuffle": table})


def corruptions(
    subject: Subject, test: Split, given: Mapping[str, tuple[Tensor, Tensor]], count: int, track: Track
) -> Part:
    """Accuracy on corrupted images: those given, or made here."""
    test = some(test, count)

    def severities(kind: str) -> list[float]:
        if not given:
            levels = range(1, SEVERITIES + 1)
            return [subject.accuracy(corrupt(test.images, kind, level), test.labels) for level in levels]
        images, labels = given[kind]
        parts = SEVERITIES if len(labels) == SEVERITIES * 10_000 else 1  # as a file of CIFAR-10-C is laid out
        sets = [some(Split(*pair), count) for pair in zip(images.chunk(parts), labels.chunk(parts), strict=True)]
        return [subject.accuracy(one.images, one.labels) for one in sets]

    kinds = {kind: severities(kind) for kind in track(list(given or CORRUPTIONS), "corruptions")}
    name = f"{'files' if given else 'C-style'}, {len(kinds)} kinds"
    mean, clean = fmean(map(fmean, kinds.values())), subject.accuracy(test.images, test.labels)
    table = [{"kind": kind, **{str(i): value for i, value in enumerate(of, 1)}} for kind, of in kinds.items()]
    made = "" if given else ", made here from the test images at CIFAR-10-C's severities: not comparable with its files"
    note = f"{name}{made}. Mean {mean:.4f}; clean {clean:.4f}. At most {count:,} images each, severities 1 to 5."
    values = {"name": name, "images": count, "clean": clean, "mean": mean, "kinds": kinds}
    return Part("corruptions", note, table, {"corruption": values}, digits=3)


def faithfulness(subject: Subject, test: Split, track: Track) -> Part:
    """Deletion and insertion by each kind of map, against maps that know nothing of the network."""
    test = some(test, EXPLAINED)
    maps = explain(subject, test.images)
    blind = baseline_maps(test.images, grid=subject.vit.grid)
    if test.masks is not None:
        maps["object (true mask)"] = patch_cover(test.masks, subject.vit.grid)
    curves = {
        name: deletion_and_insertion(subject.logits, test.images, test.labels, heat, grey=subject.grey)
        for name, heat in track(list((maps | blind).items()), "maps")
    }
    gaps = {name: area(insertion) - area(deletion) for name, (deletion, insertion) in curves.items()}
    table = []
    for name, (deletion, insertion) in curves.items():
        better = [b for b in blind if b != name and mean_interval(gaps[name] - gaps[b])[0] > 0]
        areas = {"deletion": area(deletion).mean(), "insertion": area(insertion).mean(), "gap": gaps[name].mean()}
        table.append({"map": name, **areas, "better than": better})
    pictures: dict[str, np.ndarray] = {}
    intervals = {name: mean_interval(gap) for name, gap in gaps.items()}
    values: dict[str, Any] = {"images": len(test), "areas": table, "gap_intervals": intervals}
    for index, side in enumerate(("deletion", "insertion")):
        values[side] = {name: pair[index].mean(0).tolist() for name, pair in curves.items()}
        shares = torch.linspace(0, 1, len(values[side]["random"])).tolist()
        axes = "share of patches: probability of the true class"
        pictures[side] = curves_picture(shares, values[side], title=side, axes=axes)
    trusted = [line["map"] for line in table if len(line["better than"]) == len(blind)]
    note = (
        f"{len(test):,} test images; patches turn grey (deletion) or appear on grey (insertion) in the map's order. "
        "Areas under the probability of the true class: small and large are good. Better than: where the interval "
        "of the paired difference of gaps is above 0. Better than all that see no network: "
        f"{', '.join(trusted) or 'none'}."
    )
    return Part("can the maps be trusted?", note, table, {"faithfulness": values}, pictures, digits=3)


def explain(subject: Subject, images: Tensor) -> dict[str, Tensor]:
    """The maps (N,rows,columns) of each method, for the class found; pooling weights where they differ."""
    vit, chunks = subject.vit, []
    for part in images.split(subject.chunk):
        seen = vit.attend(subject.normal(part))
        maps = method_maps(seen, grid=vit.grid)
        weights = seen.readout.detach()[:, vit.prefix_tokens :].unflatten(1, vit.grid)
        if weights.std() > 1e-6:
            maps["pooling weights"] = weights
        chunks.append(maps)
    return {name: torch.cat([maps[name].cpu() for maps in chunks]) for name in chunks[0]}


def heads(subject: Subject, test: Split, validation: Split | str, track: Track) -> Part:
    """What is lost without each head, ranked on validation and reported on test, and without half of them."""
    test, off = some(test, SWITCHED), list(each_head(*subject.shape))
    whole = subject.accuracy(test.images, test.labels)
    accuracies = [subject.accuracy(test.images, test.labels, without(head)) for head in track(off, "heads, test")]
    lost = whole - torch.tensor(accuracies).view(subject.shape)
    ranking, left = None, None
    note = f"Accuracy lost on {len(test):,} test images by switching off one head; with all of them {whole:.3f}. "
    if isinstance(validation, str):
        note += f"Not ranked, since the test images must not choose: {validation}."
    else:
        kept, shown = some(validation, RANKED), track(off, "heads, validation")
        losses = [F.cross_entropy(subject.logits(kept.images, without(head)), kept.labels) for head in shown]
        order = torch.stack(losses).argsort(descending=True, stable=True)
        half = torch.stack(off)[order[(len(order) + 1) // 2 :]].any(0)
        left = subject.accuracy(test.images, test.labels, without(half))
        ranking = [[place // len(lost[0]) + 1, place % len(lost[0]) + 1] for place in order.tolist()]
        first = ", ".join(f"head {head} of layer {layer}" for layer, head in ranking[:3])
        note += (
            f"By the loss on {len(kept):,} validation images {first} matter most, and without the half of all heads "
            f"that matters least {left:.3f} is left."
        )
    values = {"images": len(test), "accuracy": whole, "lost": lost, "ranking": ranking, "half_removed": left}
    names = [f"h{head}" for head in range(1, len(lost[0]) + 1)]
    picture = matrix_picture(100 * lost, layers(lost), names, title="points of accuracy lost without a head")
    return Part("which heads matter?", note, by_layer(lost, names), {"heads": values}, {"heads": picture}, digits=3)


def layers(values: Sized) -> list[str]:
    return [f"layer {layer}" for layer in range(1, len(values) + 1)]


def by_layer(values: Tensor, columns: Sequence[str]) -> list[dict[str, Any]]:
    """A table of numbers (L,columns)."""
    lines = zip(layers(values), values.tolist(), strict=True)
    return [{"": layer, **dict(zip(columns, line, strict=True))} for layer, line in lines]


@torch.no_grad()
def attribution(subject: Subject, test: Split) -> Part:
    """What each head, each MLP and the embedding add to the true class's logit, and how far each head looks."""
    vit, test = subject.vit, some(test, EXPLAINED)
    added, far = [], []
    for images, labels in zip(test.images.split(subject.chunk), test.labels.split(subject.chunk), strict=True):
        seen = vit.attend(subject.normal(images))
        added.append(logit_attribution(vit, subject.normal(images), labels.to(subject.device), seen))
        size = vit.patch_embedding.patch_size
        distances = [attention_distance(weights, grid=vit.grid, patch_size=size) for weights in seen.maps]
        far.append(len(labels) / len(test) * torch.stack(distances).cpu())
    embedding, of_heads, mlps, bias = (torch.cat(parts).mean(0).cpu() for parts in zip(*added, strict=True))
    logit, distance = embedding + of_heads.sum() + mlps.sum() + bias, torch.stack(far).sum(0)
    matrix, names = torch.cat([of_heads, mlps[:, None]], 1), [f"h{head}" for head in range(1, 1 + len(of_heads[0]))]
    apart = {f"{n}": line for n, line in enumerate(distance.sort(1).values.T.tolist(), 1)}
    title, depth = "mean attention distance, heads sorted", range(1, len(distance) + 1)
    pictures = {
        "logit": matrix_picture(matrix, layers(matrix), [*names, "MLP"], title="added to the true class's logit"),
        "attention distance": curves_picture(depth, apart, title=title, axes="layer: pixels"),
    }
    parts = {"logit": logit, "embedding": embedding, "heads": of_heads, "mlps": mlps, "bias": bias}
    note = (
        f"Means over {len(test):,} test images. With the embedding ({embedding:.2f}) and the biases ({bias:.2f}) these "
        f"add up to the true class's logit, {logit:.2f}."
    )
    table, values = by_layer(matrix, [*names, "MLP"]), {"attribution": parts, "distance": distance}
    return Part("what writes the answer?", note, table, values, pictures, digits=2)


def comparison(names: Sequence[str], logits: Sequence[Sequence[Tensor]], labels: Tensor) -> list[Part]:
    """The groups of checkpoints, all of one or all of several, and their differences on the same images."""
    right = [[each.argmax(1) == labels for each in group] for group in logits]
    shares = [[float(hits.double().mean()) for hits in group] for group in right]
    letters = [chr(ord("A") + number) for number in range(len(names))]
    table, groups = [], []
    for letter, name, of in zip(letters, names, shares, strict=True):
        deviation = stdev(of) if len(of) > 1 else math.nan
        table.append(
            {"": letter, "checkpoint": Path(name).name, "n": len(of), "mean": fmean(of), "deviation": deviation}
        )
        groups.append(table[-1] | {"checkpoint": name, "accuracies": of})
    note = f"Accuracy on the same {len(labels):,} images; n checkpoints, their mean and sample standard deviation."
    parts = [Part("checkpoints", note, table, {"groups": groups})]
    pairs, rows = list(combinations(range(len(names)), 2)), []
    for one, other in pairs:
        level, title = 1 - 0.05 / len(pairs), f"{letters[one]} - {letters[other]}"
        if len(right[one]) > 1:
            between = difference_of_means(shares[one], shares[other], level=level)
        else:
            between = paired_difference(right[one][0], right[other][0], level=level)
        better = f"{letters[one if between.value > 0 else other]} is better"
        verdict = better if between.shown else "no difference shown"
        row = {"": title, "difference": between.value, "interval": (between.low, between.high)}
        rows.append({**row, "p": between.p, "verdict": verdict})
    note = (
        "Of accuracy; intervals hold with 95 % for all pairs together. Of single checkpoints: over "
        "the images, p by McNemar, about these networks. Of several: Welch's t over seeds, about how they were trained."
    )
    return [*parts, Part("differences", note, rows, {"differences": rows})] if rows else parts
