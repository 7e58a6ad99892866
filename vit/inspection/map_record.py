"""What `ViT.attend` saw as a list of blobs, which the Attention tab shows, and back.

blob 0: JSON, the header. Blobs 1 to B: PNG or JPEG, the images. Then one blob a layer: zlib of uint8 (B,h,T,T), each
matrix divided by its own maximum and times 255, then, modulo 256, the difference to the row above of the difference to
the column before. The last: zlib of uint8 (B,T,T), the relevance matrices, likewise, unless relevance_scales is null.
"""

import io
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.inspection.pictures import png, to_picture
from vit.inspection.tab import PLUGIN, TAG
from vit.model import Attention

VERSION = 1
LIKELIEST = 5  # classes of an image
LARGEST = 8_000_000  # bytes a step before compression, which leaves a third to two thirds; a default run has 2 million


class MapRecord(NamedTuple):
    """An unpacked list of blobs."""

    header: dict[str, Any]
    images: Tensor  # uint8 (B,3,H,W)
    maps: tuple[Tensor, ...]  # one a layer, (B,h,T,T)
    relevance: Tensor | None  # (B,T,T)


def pack(
    seen: Attention,
    relevance: Tensor | None,
    images: Tensor,
    *,
    step: int,
    grid: tuple[int, int],
    titles: Sequence[str],
    classes: Sequence[str],
    largest: int | None = None,
    encode: Callable[[np.ndarray], bytes] = png,
) -> list[bytes]:
    """Of as many images as fit into `largest` bytes, by default LARGEST; an empty list if not one does.

    relevance: (B,T,T), or None if there is none. images: uint8 (B,C,H,W), of any size. titles: the true class of each,
    or a name. What is not a number becomes 0.
    """
    heads, tokens = seen.maps[0].shape[1:3]
    fit = min(len(images), (largest or LARGEST) // (len(seen.maps) * heads * tokens**2))
    if fit == 0:
        return []
    layers = [_quantized(weights[:fit]) for weights in seen.maps]
    joined = [] if relevance is None else [_quantized(relevance[:fit])]
    likeliest = seen.logits[:fit].detach().softmax(dim=1).nan_to_num().topk(min(LIKELIEST, seen.logits.shape[1]))
    header = {
        "version": VERSION,
        "step": step,
        "grid": list(grid),
        "prefix": tokens - grid[0] * grid[1],
        "heads": heads,
        "layers": len(layers),
        "image_size": list(images.shape[2:]),
        "titles": list(titles[:fit]),
        "found": [
            [[classes[k], round(share, 4)] for share, k in zip(*of_image, strict=True)]
            for of_image in zip(*(part.tolist() for part in likeliest), strict=True)
        ],
        "readout": seen.readout[:fit].nan_to_num().tolist(),
        "scales": [scales for _, scales in layers],
        "relevance_scales": joined[0][1] if joined else None,
    }
    pictures = [encode(to_picture(image)) for image in images[:fit]]
    blobs = [blob for blob, _ in [*layers, *joined]]
    return [json.dumps(header).encode(), *pictures, *blobs]


def unpack(blobs: Sequence[bytes]) -> MapRecord:
    """What `pack` was given, the maps to within half a step: 1/510 of their own maximum."""
    header = json.loads(blobs[0])
    count, heads = len(header["titles"]), header["heads"]
    tokens = header["prefix"] + header["grid"][0] * header["grid"][1]
    pictures = [np.array(Image.open(io.BytesIO(blob))) for blob in blobs[1 : 1 + count]]
    layers, joined = blobs[1 + count :][: header["layers"]], blobs[1 + count + header["layers"] :]
    maps = (
        _restored(blob, scales, (count, heads, tokens, tokens))
        for blob, scales in zip(layers, header["scales"], strict=True)
    )
    return MapRecord(
        header,
        torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2),
        tuple(maps),
        _restored(joined[0], header["relevance_scales"], (count, tokens, tokens)) if joined else None,
    )


def write(writer: Any, blobs: list[bytes], step: int) -> None:
    """To a SummaryWriter. Nothing if there are no blobs."""
    if not blobs:
        return
    from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    metadata = SummaryMetadata(
        plugin_data=SummaryMetadata.PluginData(plugin_name=PLUGIN), data_class=DATA_CLASS_BLOB_SEQUENCE
    )
    # Not make_tensor_proto, which by way of NumPy's fixed-width strings drops zeros from the end of a blob.
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(blobs))])
    tensor = TensorProto(dtype=DT_STRING, tensor_shape=shape, string_val=blobs)
    value = Summary.Value(tag=TAG, metadata=metadata, tensor=tensor)
    writer._get_file_writer().add_summary(Summary(value=[value]), step)


def _quantized(matrices: Tensor) -> tuple[bytes, Any]:
    """(…,T,T) → compressed uint8, and what 255 stands for in each matrix, nested lists of (…)."""
    matrices = matrices.detach().nan_to_num()
    scales = matrices.amax(dim=(-2, -1))
    steps = (matrices / scales.clamp(min=1e-30)[..., None, None] * 255).round().to(torch.uint8)
    zero = np.uint8(0)
    # Neighbours attend alike: as differences, 10 images of a default run take 1.5 MB a step instead of 1.8.
    changes = np.diff(np.diff(steps.cpu().numpy(), axis=-1, prepend=zero), axis=-2, prepend=zero)
    squeeze = zlib.compressobj(strategy=zlib.Z_FILTERED)
    return squeeze.compress(changes.tobytes()) + squeeze.flush(), scales.tolist()


def _restored(blob: bytes, scales: Any, shape: tuple[int, ...]) -> Tensor:
    changes = np.frombuffer(zlib.decompress(blob), np.uint8).reshape(shape)
    steps = changes.cumsum(axis=-2, dtype=np.uint8).cumsum(axis=-1, dtype=np.uint8)
    return torch.from_numpy(steps.astype(np.float32)) / 255 * torch.tensor(scales)[..., None, None]
