"""One picture to both places: a PNG file of the run and TensorBoard."""

from pathlib import Path

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from vit.inspection.pictures import png


def tensorboard_of(trainer: Trainer) -> TensorBoardLogger | None:
    """TensorBoard among the loggers, if it is there."""
    return next((logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)), None)


def log_picture(trainer: Trainer, file: Path, *, tag: str, picture: np.ndarray, step: int) -> None:
    """uint8 (H,W,3) as `file` and, if there is TensorBoard, under a tag. Encoded once, not twice as by add_image."""
    encoded = png(picture)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encoded)
    if (logger := tensorboard_of(trainer)) is None:
        return
    from tensorboard.compat.proto.summary_pb2 import Summary

    value = Summary.Value(tag=tag, image=Summary.Image(encoded_image_string=encoded))
    logger.experiment._get_file_writer().add_summary(Summary(value=[value]), step)
