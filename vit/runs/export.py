"""A network in a file for use elsewhere, read back and compared before anybody relies on it."""

import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from vit.data import normalize
from vit.model import ViT
from vit.runs.machine import plain_console, silence_unneeded
from vit.settings import ExportSettings, UserError
from vit.training.checkpoint import Facts, find_checkpoint, load, to_safetensors, write_atomically

OUTPUTS = {
    "logits": "logits (batch,classes)",
    "attention": "attention (batch,layers,heads,tokens,tokens): each row of queries sums to 1",
    "readout": "readout (batch,tokens): the weight of each token in the pooled vector",
}
ENDINGS = {"onnx": ".onnx", "torch_export": ".pt2", "safetensors": ".safetensors"}
BATCHES = (1, 2, 5)  # on which the file is compared
CLOSE = 1e-4  # of the largest value, or of 1
ONNX_BYTES = 2 << 30  # at most, by the format of the file

Run = Callable[[Tensor], dict[str, Tensor]]


class Deployed(nn.Module):
    """uint8 RGB images (B,C,H,W) as they are, 0 to 255 → logits (B,K), the normalisation being inside.

    With attention also the maps (B,L,h,T,T) and the readout (B,T): what the pooled vector attends to through the last
    layer's heads is readout[:, None, None] @ attention[:, -1], the last N columns being the patches row by row.
    """

    def __init__(self, vit: ViT, facts: Facts, *, attention: bool) -> None:
        super().__init__()
        self.vit, self.attention = vit, attention
        self.mean, self.std = facts.mean, facts.std
        self.outputs = ("logits", "attention", "readout") if attention else ("logits",)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        pixels = normalize(images, self.mean, self.std)
        if not self.attention:
            return {"logits": self.vit(pixels)}
        seen = self.vit.attend(pixels)
        return {"logits": seen.logits, "attention": torch.stack(seen.maps, dim=1), "readout": seen.readout}


def export(settings: ExportSettings) -> Path:
    """Write the file, read it back, and print by how much what it computes differs.

    Raises UserError where something is missing, or if it differs by more than rounding does.
    """
    assert settings.checkpoint is not None
    silence_unneeded()
    console = plain_console()
    if settings.format == "onnx":
        _require_onnx()
    path = find_checkpoint(settings.checkpoint)
    vit, facts = load(path)
    console.print(f"checkpoint   {path}: epoch {facts.epoch}, {facts.weights} weights, trained on {facts.images}")
    file = Path(settings.output).expanduser() if settings.output else path.with_suffix(ENDINGS[settings.format])
    if file.resolve() == path.resolve():
        raise UserError(f"output={file} is the checkpoint itself")
    network = Deployed(vit, facts, attention=settings.attention).eval()
    write, read = FORMATS[settings.format]
    write_atomically(file, write(network, facts))
    console.print(f"written      {file.resolve()} ({file.stat().st_size / 1e6:,.1f} MB)")
    difference, largest = compare(network, read(file))
    if not difference <= CLOSE * max(1.0, largest):
        file.unlink()
        raise UserError(f"the file computed something else, by {difference:.1e}, and was deleted: please report it")
    console.print(f"read back    differs by at most {difference:.1e} (in values up to {largest:.2g})")
    return file


@torch.inference_mode()
def compare(network: Deployed, run: Run) -> tuple[float, float]:
    """The largest difference in any output on noise, and the largest value."""
    generator = torch.Generator().manual_seed(0)
    difference = largest = 0.0
    for batch in BATCHES:
        images = _noise(network, batch, generator)
        found = run(images)
        for name, expected in network(images).items():
            difference = max(difference, float((found[name] - expected).abs().nan_to_num(torch.inf).max()))
            largest = max(largest, float(expected.abs().max()))
    return difference, largest


def describe(network: Deployed, facts: Facts) -> dict[str, str]:
    """What a user of the file needs to know."""
    channels, height, width = network.vit.patch_embedding.image_shape
    rows, columns = network.vit.grid
    return {
        "input": f"images: uint8 (batch,{channels},{height},{width}), {'RGB' if channels == 3 else 'grey'}, 0 to 255, "
        "not normalised, for that is inside; others are scaled and cut in the middle to this size",
        "outputs": "; ".join(OUTPUTS[name] for name in network.outputs),
        "tokens": f"{network.vit.prefix_tokens} that are no patch, then {rows} × {columns} patches row by row",
        "classes": json.dumps(facts.classes),
        "facts": facts.to_json(),
    }


def _noise(network: Deployed, batch: int, generator: torch.Generator | None = None) -> Tensor:
    shape = (batch, *network.vit.patch_embedding.image_shape)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def _require_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"format=onnx needs {' and '.join(missing)}: pip install -e '.[export]'")


def write_onnx(network: Deployed, facts: Facts) -> bytes:
    if sum(parameter.nbytes for parameter in network.parameters()) > ONNX_BYTES:
        raise UserError("an ONNX file holds at most 2 GiB, and these weights are more: try format=torch_export")
    program = torch.onnx.export(
        network,
        (_noise(network, 2),),
        dynamo=True,
        input_names=["images"],
        output_names=network.outputs,
        dynamic_shapes={"images": {0: "batch"}},
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(describe(network, facts))
    return program.model_proto.SerializeToString()


def read_onnx(file: Path) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(images: Tensor) -> dict[str, Tensor]:
        outputs = session.run(names, {"images": images.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(names, outputs, strict=True)}

    return run


def write_torch_export(network: Deployed, facts: Facts) -> bytes:
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(network, (_noise(network, 2),), dynamic_shapes={"images": {0: batch}})
    content = io.BytesIO()
    torch.export.save(program, content, extra_files=describe(network, facts))
    return content.getvalue()


def read_torch_export(file: Path) -> Run:
    return torch.export.load(file).module()


def write_safetensors(network: Deployed, facts: Facts) -> bytes:
    return to_safetensors(network.vit, facts)


def read_safetensors(file: Path) -> Run:
    return Deployed(*load(file), attention=False).eval()


FORMATS: dict[str, tuple[Callable[[Deployed, Facts], bytes], Callable[[Path], Run]]] = {
    "onnx": (write_onnx, read_onnx),
    "torch_export": (write_torch_export, read_torch_export),
    "safetensors": (write_safetensors, read_safetensors),
}
