"""The parts of the report: each is a table, its values for report.json, pictures, and a note that says how to read it.

Accuracies are shares of 1, intervals hold with 95 %.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from vit.evaluation.heads import Edit, each_head, logit_attribution, without
from vit.evaluation.metrics import confident_mistakes, confused_pairs, mean_interval, per_class, wilson_interval
from vit.evaluation.score import Score, predict_logits
from vit.inspection.attention_logger import images_that_fit
from vit.inspection.maps import method_maps
from vit.inspection.measures import attention_distance, patch_cover
from vit.model import Attention, ViT

FITTED, COVERED, PROBED = 1000, 500, 2000  # images for the temperature, with patches dropped, made worse
EXPLAINED, RANKED, SWITCHED = 500, 500, 1000  # images whose maps are tested; without each head, validation and test
DROPPED, CELLS = (0.25, 0.5, 0.75), (1, 2, 4, 8, 16)
MISTAKES, IN_A_ROW, PAIRS = 16, 8, 6  # shown
CHUNK = 50  # images whose maps are held at once, or fewer

Table = list[dict[str, Any]]  # its lines, each with the same keys


@dataclass(frozen=True)
class Part:
    title: str
    note: str
    table: Table
    values: dict[str, Any]
    pictures: dict[str, np.ndarray] = field(default_factory=dict)
    digits: int = 4


@dataclass(frozen=True)
class Subject:
    """A network, and how its images are prepared. `count` is told how many images have passed through it."""

    vit: ViT
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: str = "cpu"
    batch_size: int = 64
    count: Callable[[int], object] = lambda images: None

    def logits(self, images: Tensor, edit: Edit | None = None) -> Tensor:
        """uint8 (N,C,H,W) → (N,K)."""
        how: dict[str, Any] = {"device": self.device, "batch_size": self.batch_size, "edit": edit, "count": self.count}
        return predict_logits(self.vit, images, mean=self.mean, std=self.std, **how)

    def accuracy(self, images: Tensor, labels: Tensor, edit: Edit | None = None) -> float:
        return Score.of(self.logits(images, edit), labels).accuracy

    def attended(self, images: Tensor) -> Iterator[tuple[Tensor, Attention]]:
        """What is seen in uint8 (N,C,H,W), chunk by chunk, each with its normalised images.

        As many at once as maps of the network may be held: the same for every batch size, which changes no digit.
        """
        for part in images.split(max(1, min(CHUNK, images_that_fit(self.vit)))):
            normal = normalize(part.to(self.device), self.mean, self.std)
            yield normal, self.vit.attend(normal)
            self.count(len(part))

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
    return split.at(some_rows(len(split), count))


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
    whole, test = logits[some_rows(len(test), COVERED)], some(test, COVERED)
    found = {0.0: Score.of(whole, test.labels).accuracy}
    for share in DROPPED:
        images = drop_patches(test.images, share, grid=subject.vit.grid, grey=subject.grey)
        found[share] = subject.accuracy(images, test.labels)
    table = [{"share": share, "accuracy": value} for share, value in found.items()]
    curve = {"": list(found.values())}
    picture = curves_picture(list(found), curve, title="random patches grey", axes="share of patches: accuracy")
    note = f"A random share of the patches is painted in the training images' mean; {len(test):,} test images."
    return Part("patch dropping", note, table, {"patch_drop": table}, {"patch dropping": picture})


def patch_shuffling(subject: Subject, test: Split, count: int) -> Part:
    """Accuracy with the image cut into cells and joined at random."""
    test = some(test, count)
    cells = [n for n in CELLS if not any(side % n for side in test.images.shape[2:])]
    found = {n: subject.accuracy(shuffle_patches(test.images, (n, n)), test.labels) for n in cells}
    table = [{"cells": f"{n}×{n}", "accuracy": value} for n, value in found.items()]
    note = f"Images are cut into cells and joined in random order; {len(test):,} test images."
    return Part("patch shuffling", note, table, {"patch_shuffle": table})


def corruptions(subject: Subject, test: Split, given: Mapping[str, Sequence[Split]], count: int) -> Part:
    """Accuracy on corrupted images: those given, or made here."""
    test = some(test, count)

    def accuracies(kind: str) -> list[float]:
        if given:
            parts = [some(part, count) for part in given[kind]]
            return [subject.accuracy(part.images, part.labels) for part in parts]
        levels = range(1, SEVERITIES + 1)
        return [subject.accuracy(corrupt(test.images, kind, level), test.labels) for level in levels]

    kinds = {kind: accuracies(kind) for kind in given or CORRUPTIONS}
    name = f"{'files' if given else 'C-style'}, {len(kinds)} kinds"
    mean, clean = fmean(map(fmean, kinds.values())), subject.accuracy(test.images, test.labels)
    table = [{"kind": kind, **{str(i): value for i, value in enumerate(of, 1)}} for kind, of in kinds.items()]
    made = "" if given else ", made here from the test images at CIFAR-10-C's severities: not comparable with its files"
    note = f"{name}{made}. Mean {mean:.4f}; clean {clean:.4f}. At most {count:,} images each, severities 1 to 5."
    values = {"name": name, "images": count, "clean": clean, "mean": mean, "kinds": kinds}
    return Part("corruptions", note, table, {"corruption": values}, digits=3)


def faithfulness(subject: Subject, test: Split) -> Part:
    """Deletion and insertion by each kind of map, against maps that know nothing of the network."""
    test = some(test, EXPLAINED)
    maps = explain(subject, test.images)
    if test.masks is not None:
        maps["object (true mask)"] = patch_cover(test.masks, subject.vit.grid)
    blind = baseline_maps(test.images, grid=subject.vit.grid)
    curves = {
        name: deletion_and_insertion(subject.logits, test.images, test.labels, heat, grey=subject.grey)
        for name, heat in (maps | blind).items()
    }
    gaps = {name: area(insertion) - area(deletion) for name, (deletion, insertion) in curves.items()}
    table: Table = []
    for name, (deletion, insertion) in curves.items():
        better = [b for b in blind if b != name and mean_interval(gaps[name] - gaps[b])[0] > 0]
        areas = {"deletion": area(deletion).mean(), "insertion": area(insertion).mean(), "gap": gaps[name].mean()}
        table.append({"map": name, **areas, "better than": better})
    intervals = {name: mean_interval(gap) for name, gap in gaps.items()}
    values: dict[str, Any] = {"images": len(test), "areas": table, "gap_intervals": intervals}
    pictures = {}
    for index, side in enumerate(("deletion", "insertion")):
        means = values[side] = {name: pair[index].mean(0).tolist() for name, pair in curves.items()}
        shares, axes = np.linspace(0, 1, len(means["random"])), "share of patches: probability of the true class"
        pictures[side] = curves_picture(shares.tolist(), means, title=side, axes=axes)
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
    for _, seen in subject.attended(images):
        weights = seen.readout.detach()[:, vit.prefix_tokens :].unflatten(1, vit.grid)
        chunks.append(method_maps(seen, grid=vit.grid) | {"pooling weights": weights})
    maps = {name: torch.cat([maps[name].cpu() for maps in chunks]) for name in chunks[0]}
    if maps["pooling weights"].std(correction=0) < 1e-6:
        del maps["pooling weights"]
    return maps


def heads(subject: Subject, test: Split, validation: Split | str) -> Part:
    """What is lost without each head, ranked on validation and reported on test, and without half of them."""
    test, off = some(test, SWITCHED), list(each_head(*subject.shape))
    whole = subject.accuracy(test.images, test.labels)
    accuracies = [subject.accuracy(test.images, test.labels, without(head)) for head in off]
    lost = whole - torch.tensor(accuracies).view(subject.shape)
    ranking, left = None, None
    note = f"Accuracy lost on {len(test):,} test images by switching off one head; with all of them {whole:.3f}. "
    if isinstance(validation, str):
        note += f"Not ranked, since the test images must not choose: {validation}."
    else:
        kept = some(validation, RANKED)
        losses = [F.cross_entropy(subject.logits(kept.images, without(head)), kept.labels) for head in off]
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
    table, picture = by_layer(lost, [], title="points of accuracy lost without a head", scale=100)
    return Part("which heads matter?", note, table, {"heads": values}, {"heads": picture}, digits=3)


def by_layer(values: Tensor, further: Sequence[str], *, title: str, scale: int = 1) -> tuple[Table, np.ndarray]:
    """Numbers of each layer's heads, and in `further` columns, (L,h+…): as a table, and as a picture of scaled ones."""
    rows = [f"layer {layer}" for layer in range(1, len(values) + 1)]
    columns = [*(f"h{head}" for head in range(1, values.shape[1] + 1 - len(further))), *further]
    lines = zip(rows, values.tolist(), strict=True)
    table = [{"": layer, **dict(zip(columns, line, strict=True))} for layer, line in lines]
    return table, matrix_picture(scale * values, rows, columns, title=title)


@torch.no_grad()
def attribution(subject: Subject, test: Split) -> Part:
    """What each head, each MLP and the embedding add to the true class's logit, and how far each head looks."""
    vit, test = subject.vit, some(test, EXPLAINED)
    added, far = [], []
    labels = test.labels.to(subject.device)
    for images, seen in subject.attended(test.images):
        of_these, labels = labels[: len(images)], labels[len(images) :]
        added.append(logit_attribution(vit, images, of_these, seen))
        size = vit.patch_embedding.patch_size
        distances = [attention_distance(weights, grid=vit.grid, patch_size=size) for weights in seen.maps]
        far.append(len(images) / len(test) * torch.stack(distances).cpu())
    embedding, of_heads, mlps, bias = (torch.cat(parts).mean(0).cpu() for parts in zip(*added, strict=True))
    logit, distance = embedding + of_heads.sum() + mlps.sum() + bias, torch.stack(far).sum(0)
    matrix = torch.cat([of_heads, mlps[:, None]], 1)
    table, picture = by_layer(matrix, ["MLP"], title="added to the true class's logit")
    apart = {f"{n}": line for n, line in enumerate(distance.sort(1).values.T.tolist(), 1)}
    title, depth = "mean attention distance, heads sorted", range(1, len(distance) + 1)
    curves = curves_picture(depth, apart, title=title, axes="layer: pixels")
    parts = {"logit": logit, "embedding": embedding, "heads": of_heads, "mlps": mlps, "bias": bias}
    note = (
        f"Means over {len(test):,} test images. With the embedding ({embedding:.2f}) and the biases ({bias:.2f}) these "
        f"add up to the true class's logit, {logit:.2f}."
    )
    values, pictures = {"attribution": parts, "distance": distance}, {"logit": picture, "attention distance": curves}
    return Part("what writes the answer?", note, table, values, pictures, digits=2)


def comparison(names: Sequence[str], logits: Sequence[Sequence[Tensor]], labels: Tensor) -> list[Part]:
    """The groups of checkpoints, all of one or all of several, and their differences on the same images."""
    right = [[each.argmax(1) == labels for each in group] for group in logits]
    shares = [[float(hits.double().mean()) for hits in group] for group in right]
    letters = [chr(ord("A") + number) for number in range(len(names))]
    table, groups = [], []
    for letter, name, of in zip(letters, names, shares, strict=True):
        spread = stdev(of) if len(of) > 1 else math.nan
        line = {"": letter, "checkpoint": Path(name).name, "n": len(of), "mean": fmean(of), "deviation": spread}
        table.append(line)
        groups.append(line | {"checkpoint": name, "accuracies": of})
    note = f"Accuracy on the same {len(labels):,} images; n checkpoints, their mean and sample standard deviation."
    parts = [Part("checkpoints", note, table, {"groups": groups})]
    pairs, rows = list(combinations(range(len(names)), 2)), []
    for one, other in pairs:
        level = 1 - 0.05 / len(pairs)
        if len(right[one]) > 1:
            between = difference_of_means(shares[one], shares[other], level=level)
        else:
            between = paired_difference(right[one][0], right[other][0], level=level)
        better = letters[one if between.value > 0 else other]
        verdict = f"{better} is better" if between.shown else "no difference shown"
        row = {"": f"{letters[one]} - {letters[other]}", "difference": between.value}
        rows.append(row | {"interval": (between.low, between.high), "p": between.p, "verdict": verdict})
    note = (
        "Of accuracy; intervals hold with 95 % for all pairs together. Of single checkpoints: over "
        "the images, p by McNemar, about these networks. Of several: Welch's t over seeds, about how they were trained."
    )
    return [*parts, Part("differences", note, rows, {"differences": rows})] if rows else parts
