"""What a user is told before the first epoch."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from vit.data import ImageData, ImageSet
from vit.evaluation.cost import forward_flops, parameter_count
from vit.model import ViT, attention_kernel
from vit.runs.machine import hardware
from vit.settings import TrainSettings, show
from vit.training.precision import Device
from vit.training.progress import count


def tensorboard_command(runs: Path) -> str:
    """To copy; the option keeps every picture instead of a random ten of a tag."""
    return f"tensorboard --logdir {shlex.quote(str(runs.resolve()))} --samples_per_plugin images=200"


def script_command(name: str, *words: str) -> str:
    """To copy: one of this project's scripts with its words, as this process was started."""
    script = Path(sys.argv[0]).with_name(f"{name}.py")
    return shlex.join(["python", str(script), *words])


def banner(
    settings: TrainSettings,
    given: Mapping[str, str],
    *,
    vit: ViT,
    image_set: ImageSet,
    data: ImageData,
    device: Device,
    folder: Path,
) -> str:
    """A few lines: what is trained, on what, how, and where to look."""
    tokens = vit.prefix_tokens + vit.grid[0] * vit.grid[1]
    kernel = attention_kernel(tokens, device=device.name, dtype=device.dtype)
    kind = f"{tokens} tokens in {_short(device.dtype)} on {device.name}"
    steps = len(data.train_dataloader())
    sources: dict[str, list[str]] = {}
    for key, source in given.items():
        sources.setdefault(source, []).append(f"{key}={show(settings.values()[key])}")
    lines = {
        "model": f"{parameter_count(vit) / 1e6:.2f} M parameters · {tokens} tokens"
        f" · {forward_flops(vit) / 1e9:.2f} GFLOP an image (forward)",
        "device": f"{hardware(device.name)} · {device.precision}: {device.reason}",
        "attention": f"{kernel}: the {'faster' if device.name == 'cpu' else 'usual'} kernel for {kind}",
        "images": f"{image_set.description} · {len(data.train):,} train · {len(data.validation):,} validation"
        f" · {len(image_set.test):,} test · {len(image_set.classes)} classes",
        "training": f"{count(settings.epochs, 'epoch')} × {count(steps, 'step')} of {settings.batch_size} images"
        f" · {settings.optimizer}",
        **{f"by {source}": " ".join(words) for source, words in sources.items()},
        "run": str(folder),
        "look": tensorboard_command(folder.parent),
    }
    width = max(len(label) for label in lines) + 2
    return "\n".join(f"{label:{width}}{text}" for label, text in lines.items())


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "float32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
