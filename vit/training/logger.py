"""Where a run's numbers go: metrics.csv, a row an epoch, and TensorBoard."""

import csv
import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from vit.settings import UserError
from vit.training.checkpoint import LAST, write_atomically

LOG_EVERY = 10  # steps
METRICS = "metrics.csv"


class RunLogger(TensorBoardLogger):
    """Writes TensorBoard's events into a run folder itself. `experiment` is the SummaryWriter.

    A value stands at the number of optimiser steps that were made before it was read. `resumed_at` is the step that a
    resumed run goes on from: what an interrupted epoch had written after it disappears.
    """

    def __init__(self, folder: Path, *, resumed_at: int | None = None) -> None:
        if resumed_at is not None:
            _wait_for_a_later_name(folder)
        purge = resumed_at and resumed_at + 1  # from the very start: 0
        super().__init__(folder, name="", version="", default_hp_metric=False, purge_step=purge)

    @rank_zero_only
    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Plain settings for the HParams tab, whose metrics are the scalars of the same names."""
        from torch.utils.tensorboard.summary import hparams

        plain = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in settings.items()}
        for summary in hparams(plain, {"validation/accuracy": None, "test/accuracy": None}):
            self.experiment._get_file_writer().add_summary(summary)

    @rank_zero_only
    def save(self) -> None:
        """Flush. (The parent would add a second file of settings.)"""
        self.experiment.flush()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Flush, but stay open: after the training comes the test."""
        self.save()


class WriteMetrics(Callback):
    """Loss, accuracy, rates and throughput to the logger every few steps, and a row an epoch to metrics.csv."""

    def __init__(self, folder: Path, *, finished: int = 0) -> None:
        self.file = folder / METRICS
        self.images = 0
        self.seconds = self.mark = 0.0
        self.rates: dict[str, float] = {}  # of the step under way
        self.finished = finished

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.file.is_file() or not trainer.is_global_zero:
            return
        kept = [row for row in read_metrics(self.file) if int(row["epoch"]) <= self.finished]
        epochs = [int(row["epoch"]) for row in kept]
        if self.finished and epochs != [*range(min(epochs, default=0), self.finished + 1)]:
            raise UserError(f"{self.file} is damaged (it lacks epochs): move it away to go on without what it says")
        self._write(kept)

    def on_train_epoch_start(self, *_: Any) -> None:
        self.mark = time.perf_counter()

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.rates = learning_rates(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        self.seconds, self.mark = self.seconds + now - self.mark, now
        self.images += len(batch[1]) * trainer.world_size
        if not is_logged(trainer):
            return
        values = {"train/loss": float(outputs["loss"]), "train/accuracy": float(outputs["accuracy"])}
        values |= {f"learning_rate/{name}": rate for name, rate in self.rates.items()}
        values["throughput/images_per_second"] = self.images / self.seconds
        self.images, self.seconds = 0, 0.0
        if trainer.logger is not None:
            trainer.logger.log_metrics(values, step=trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        found = {tag.replace("/", "_"): float(value) for tag, value in trainer.callback_metrics.items()}
        names = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
        row: dict[str, Any] = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step}
        row |= {name: f"{found[name]:.6f}" if name in found else "" for name in names}
        self._write([*read_metrics(self.file), row])
        if trainer.logger is not None:
            values = {tag: float(value) for tag, value in trainer.callback_metrics.items() if "validation" in tag}
            trainer.logger.log_metrics(values, step=trainer.global_step)
            trainer.logger.save()

    def _write(self, rows: list[dict[str, Any]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
        if rows:
            writer.writeheader()
            writer.writerows(rows)
        write_atomically(self.file, text.getvalue().encode())


class StopWhereDiverged(Callback):
    """Ends a training whose weights are nan or infinite, as they are after such a loss, before they are saved.

    It looks only where the loss is read anyway: in each step, a GPU would wait for the CPU. All processes of a run hold
    the same weights, and so decide alike.
    """

    def __init__(self, folder: Path) -> None:
        self.last = folder / LAST

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if not is_logged(trainer) or torch.stack([w.isfinite().all() for w in pl_module.parameters()]).all():
            return
        rates = ", ".join(f"{name} {rate:.3g}" for name, rate in learning_rates(trainer).items())
        kept = f"{self.last} keeps the last whole epoch" if self.last.exists() else "no epoch was whole"
        raise UserError(
            f"the loss or a weight is nan or infinite by step {trainer.global_step} (learning rate: {rates}): "
            f"begin a run with a lower lr or muon_lr, a longer warmup or clip=1; {kept}"
        )


def is_logged(trainer: Trainer) -> bool:
    """Whether the numbers of the step just made are read."""
    return trainer.global_step % LOG_EVERY == 0 or trainer.is_last_batch


def learning_rates(trainer: Trainer) -> dict[str, float]:
    """By the name of the optimiser's part; before a step those that it takes, after it those of the next."""
    groups = trainer.optimizers[0].param_groups
    return {group["name"]: group["lr"] for group in groups if group["name"] in ("muon", "adamw", "head")}


def _wait_for_a_later_name(folder: Path) -> None:
    """TensorBoard reads event files in the order of their names, which hold the second in which they were begun."""
    names = [file.name.split(".")[3] for file in folder.glob("events.out.tfevents.*")]
    seconds = [int(name) for name in names if name.isdecimal()]
    if seconds and 0 <= (rest := max(seconds) + 1 - time.time()) <= 1:
        time.sleep(rest)


def read_metrics(file: Path) -> list[dict[str, str]]:
    """The rows of a metrics.csv; none if there is no such file."""
    if not file.is_file():
        return []
    try:
        text = file.read_text(encoding="utf-8")
        rows = list(csv.DictReader(text.splitlines()))
        if (text and not text.endswith("\n")) or any(None in row or None in row.values() for row in rows):
            raise ValueError("it is cut off")
        for row in rows:
            int(row["epoch"]), [float(value) for value in row.values() if value]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"{file} is damaged ({error}): move it away to go on without what it says") from error
    return rows
