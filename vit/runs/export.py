"""A network in a file for use elsewhere, read back and compared before anybody relies on it."""

import dataclasses
import importlib.util
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from vit.data import normalize
from vit.model import ViT
from vit.runs.machine import plain_console, silence_unneeded
from vit.settings import ExportSettings, UserError
from vit.training import Facts, load
from vit.training.checkpoint import WEIGHTS_ONLY, find_checkpoint, write_atomically

ENDINGS = {"onnx": ".onnx", "torch_export": ".pt2", "safetensors": WEIGHTS_ONLY}


class Deployed(nn.Module):
    """uint8 RGB images (B,C,H,W) as they are, 0 to 255 → logits (B,K), the normalisation being inside.

    With attention also the maps (B,L,h,T,T) and the readout (B,T): what the pooled vector attends to through the last
    layer's heads is readout[:, None, None] @ attention[:, -1], the last N columns being the patches row by row.
    """

    def __init__(self, vit: ViT, facts: Facts, *, attention: bool) -> None:
        super().__init__()
        self.vit, self.facts, self.attention = vit, facts, attention

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        pixels = normalize(images, self.facts.mean, self.facts.std)
        if not self.attention:
            return {"logits": self.vit(pixels)}
        seen = self.vit.attend(pixels)
        return {"logits": seen.logits, "attention": torch.stack(seen.maps, dim=1), "readout": seen.readout}

    def noise(self, batch: int) -> Tensor:
        """Images that it takes."""
        return torch.randint(256, (batch, *self.vit.patch_embedding.image_shape), dtype=torch.uint8)


def export(settings: ExportSettings) -> None:
    """Write the file, read it back, and print by how much what it computes differs.

    Raises UserError where something is missing, or if it differs by more than rounding does.
    """
    assert settings.checkpoint is not None
    silence_unneeded()
    console = plain_console()
    path = find_checkpoint(settings.checkpoint)
    needed = ("onnx", "onnxscript", "onnxruntime") if settings.format == "onnx" else ()
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise UserError(f"format=onnx needs {' and '.join(missing)}: pip install -e '.[export]'")
    vit, facts = load(path)
    console.print(f"checkpoint   {path}: epoch {facts.epoch}, {facts.weights} weights, trained on {facts.images}")
    file = Path(settings.output or path.with_suffix(ENDINGS[settings.format])).expanduser()
    if file.suffix != ENDINGS[settings.format]:
        raise UserError(f"output={file} must end in {ENDINGS[settings.format]}")
    if file.is_dir() or (file.exists() and file.samefile(path)):
        raise UserError(f"output={file} is a folder, or the checkpoint itself")
    network = Deployed(vit, facts, attention=settings.attention).eval()
    if not network(network.noise(1))["logits"].isfinite().all():
        raise UserError(f"{path}: what the network computes is not finite")
    trial = file.with_name(f"unchecked-{os.getpid()}-{file.name}")  # several may write it at once
    try:
        write_atomically(trial, content(network, settings.format))
        difference = compare(network, read(trial, settings.format))
        if difference > 1e-4:  # of the largest value, which is more than rounding
            raise UserError(f"what was written computes something else, by {difference:.1e}: please report it")
        os.replace(trial, file)
    finally:
        trial.unlink(missing_ok=True)
    console.print(f"written      {file.resolve()} ({file.stat().st_size / 1e6:,.1f} MB)")
    console.print(f"read back    what it computes differs by at most {difference:.1e} of the largest value")


def content(network: Deployed, kind: str) -> bytes:
    """The file's."""
    described = describe(network)
    if kind == "safetensors":
        return save_tensors(network.vit.state_dict(), {name: described[name] for name in ("classes", "facts")})
    example = (network.noise(2),)
    if kind == "torch_export":
        batch, file = torch.export.Dim("batch", min=1), io.BytesIO()
        program = torch.export.export(network, example, dynamic_shapes={"images": {0: batch}})
        torch.export.save(program, file, extra_files=described)
        return file.getvalue()
    names, axes = json.loads(described["outputs"]), {"images": {0: "batch"}}
    exported = torch.onnx.export(network, example, dynamo=True, output_names=names, dynamic_shapes=axes, verbose=False)
    assert exported is not None
    exported.model.metadata_props.update(described)
    return exported.model_proto.SerializeToString()


def describe(network: Deployed) -> dict[str, str]:
    """What a user of the file needs to know."""
    return {
        "input": f"images: uint8 {('batch', *network.vit.patch_embedding.image_shape)}, RGB or grey, 0 to 255, not "
        "normalised: that is inside. Images of another size are scaled and cut in the middle.",
        "outputs": json.dumps(list(network(network.noise(1)))),
        "classes": json.dumps(network.facts.classes),
        "facts": json.dumps(dataclasses.asdict(network.facts)),
    }


def read(file: Path, kind: str) -> Callable[[Tensor], dict[str, Tensor]]:
    """What the file computes."""
    if kind == "safetensors":
        return Deployed(*load(file), attention=False).eval()
    if kind == "torch_export":
        return torch.export.load(file).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(images: Tensor) -> dict[str, Tensor]:
        found = session.run(names, {"images": images.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(names, found, strict=True)}

    return run


@torch.inference_mode()
def compare(network: Deployed, run: Callable[[Tensor], dict[str, Tensor]]) -> float:
    """The largest difference on noise, in units of the largest value of an output, or of 1."""
    worst = torch.zeros(())
    for batch in (1, 2, 5):
        images = network.noise(batch)
        found = run(images)
        for name, value in network(images).items():
            difference = (found[name] - value).abs().max() / value.abs().max().clamp(min=1)
            worst = torch.maximum(worst, difference.nan_to_num(torch.inf))
    return float(worst)
