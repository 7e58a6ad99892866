"""A report as one HTML file, and in TensorBoard."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit.evaluation.report import Part
from vit.inspection.pictures import png

SCALARS = ("accuracy", "top5", "nll", "ece", "temperature")


def log_report(folder: Path, parts: Sequence[Part], values: Mapping[str, Any], *, step: int) -> None:
    """The main figures and the pictures as TensorBoard's run `RUN/report`, in place of an earlier report's.

    In a folder of its own: events written beside those of a training that goes on would hide what it writes next.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary
    from torch.utils.tensorboard import SummaryWriter

    for old in (folder / "report").glob("events.out.tfevents.*"):
        old.unlink()
    with SummaryWriter(str(folder / "report")) as writer:
        for name in SCALARS:
            if values.get(name) is not None:
                writer.add_scalar(f"report/{name}", values[name], step)
        for part in parts:
            for name, picture in part.pictures.items():
                image = Summary.Image(encoded_image_string=png(picture))
                summary = Summary(value=[Summary.Value(tag=f"report/{name.replace(' ', '_')}", image=image)])
                writer._get_file_writer().add_summary(summary, step)
