"""Score a checkpoint as training did."""

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from vit.data import load_images
from vit.evaluation.score import Score, score
from vit.runs.machine import advise_on_memory, plain_console
from vit.settings import EvaluateSettings, TrainSettings, UserError, show
from vit.training.checkpoint import Facts, find_checkpoint, load
from vit.training.precision import choose_device


def evaluate(settings: EvaluateSettings, claimed: Mapping[str, object]) -> Score:
    """Print and return the score of a checkpoint on its test images.

    Model and data settings come from the checkpoint alone. `claimed` are training keys that the user typed; raises
    UserError if one contradicts the checkpoint.
    """
    assert settings.checkpoint is not None
    console = plain_console()
    path = find_checkpoint(settings.checkpoint)
    vit, facts = load(path)
    own = TrainSettings.from_values({**facts.settings, "data.root": settings.data_root})
    for key, value in claimed.items():
        if key not in facts.settings:
            raise UserError(f"{key} is no key of evaluate")
        if own.values()[key] != value:
            raise UserError(
                f"{key}={show(value)} contradicts the checkpoint, which has {key}={show(own.values()[key])}"
            )
    console.print(f"checkpoint   {path}: epoch {facts.epoch} of {own.epochs}, {facts.weights} weights")
    root = Path(settings.data_root or "data")
    images = load_images(own.data, root=root, url=settings.data_url, image_size=own.image_size, say=console.print)
    if images.classes != facts.classes:
        raise UserError(
            f"these images have other classes ({_few(images.classes)}) than trained ({_few(facts.classes)})"
        )
    device = choose_device(settings.device)
    console.print(f"images       {images.description}: {len(images.test):,} test images, in float32 on {device}")
    with advise_on_memory(f"lower batch_size={settings.batch_size}"):
        found = score(vit, images.test, mean=facts.mean, std=facts.std, device=device, batch_size=settings.batch_size)
    console.print(f"test accuracy {found}")
    console.print(_per_class(found, facts))
    return found


def _per_class(found: Score, facts: Facts) -> Table:
    table = Table("class", "accuracy")
    table.columns[1].justify = "right"
    for name, accuracy in zip(facts.classes, found.per_class, strict=True):
        table.add_row(name, "no image" if accuracy != accuracy else f"{100 * accuracy:.2f} %")
    return table


def _few(names: tuple[str, ...]) -> str:
    return " ".join(names[:5]) + (" …" if len(names) > 5 else "")
