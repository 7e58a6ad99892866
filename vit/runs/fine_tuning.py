"""A run that begins with the weights of another, or of another library's file, and learns from other images."""

import dataclasses
from collections.abc import Collection
from pathlib import Path

from torch.nn.utils import parameters_to_vector

from vit.data.image_set import fingerprint
from vit.model import ViT
from vit.settings import TrainSettings, UserError, show
from vit.training.checkpoint import Facts
from vit.training.pretrained import load

ARCHITECTURE = (
    "dim", "depth", "heads", "mlp_ratio", "pool", "position", "registers", "similarity", "qkv_bias", "norm_eps"
)  # fmt: skip
SIZES = ("image_size", "patch_size")
GENTLE = {"optimizer": "adamw", "lr": 1e-3, "body_lr": 0.1}  # lest the first steps forget what is there


def begin_from(
    settings: TrainSettings, typed: Collection[str]
) -> tuple[TrainSettings, dict[str, str], tuple[ViT, Facts]]:
    """The settings with the file's architecture, who set these, and the file's network and facts.

    Of what was not typed, sizes are the file's too and, unless a recipe was, the learning rates are gentle. Raises
    UserError where what was typed contradicts the file.
    """
    path = Path(str(settings.init_from)).expanduser().resolve()
    vit, facts = load(path, heads=settings.heads if "heads" in typed else None)
    own, model = settings.values(), TrainSettings().group("model") | facts.model  # an older run lacks newer keys
    for key in ARCHITECTURE:
        if key in typed and own[key] != model[key]:
            raise UserError(f"{key}={show(own[key])} contradicts {path}, which has {key}={show(model[key])}")
    begun = {key: model[key] for key in (*ARCHITECTURE, *SIZES)} | {"init": "xavier"}
    begun |= {} if "recipe" in typed else GENTLE
    begun = {key: value for key, value in begun.items() if key not in typed}
    checked = TrainSettings.from_values({**own, **begun, "init_from": None})
    return dataclasses.replace(checked, init_from=str(path)), dict.fromkeys(begun, "init_from"), (vit, facts)


def in_words(vit: ViT, facts: Facts) -> str:
    """Which network it is, by what it learned from and by its weights; a fact of the run that begins with it."""
    learned = f"{facts.images}, epoch {facts.epoch}" if facts.train_images else facts.images
    return f"{learned}, weights {fingerprint(parameters_to_vector(vit.parameters()).detach())[:12]}"
