"""What a user sees while a run learns: a bar on a terminal, plain lines in a log file."""

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

ESTIMATE_AFTER = 20  # steps
LINE_EVERY = 60.0  # seconds, in a log file


def duration(seconds: float) -> str:
    """A time in words: '42 s', '3.5 min', '2 h 05 min'."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 5970:
        return f"{seconds / 60:.1f} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def count(number: int, noun: str) -> str:
    """'1 epoch', '8 epochs', '1,000 images'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class ShowProgress(Callback):
    """An estimate after 20 steps; a bar with loss, accuracy, images a second and time left, or a line a minute instead;
    and one line an epoch.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.began = self.epoch_began = self.said = 0.0
        self.steps = 0  # since `began`
        self.images = 0  # since `epoch_began`

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.began = self.said = time.perf_counter()
        if self.console.is_terminal and trainer.is_global_zero:
            columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[facts]}")]
            self.bar = Progress(*columns, console=self.console, refresh_per_second=4, expand=True, transient=True)
            self.bar.add_task("epoch", total=trainer.estimated_stepping_batches, facts="")
            self.bar.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.epoch_began, self.images = time.perf_counter(), 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.steps += 1
        self.images += len(batch[1]) * trainer.world_size
        if not trainer.is_global_zero:
            return
        now = time.perf_counter()
        left = self._seconds_left(trainer, now)
        if self.steps == ESTIMATE_AFTER:
            self.console.print(
                f"estimate: {duration(now - self.began + left)} until the end of epoch {trainer.max_epochs}"
            )
        if self.bar is None and now - self.said < LINE_EVERY:
            return
        facts = (
            f"loss {float(outputs['loss']):.3f} · acc {100 * float(outputs['accuracy']):.0f} % · "
            f"{self.images / (now - self.epoch_began):,.0f} img/s · {duration(left)} left"
        )
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=trainer.global_step, description=epoch, facts=facts)
        else:
            self._say(f"{epoch} · step {trainer.global_step}/{trainer.estimated_stepping_batches} · {facts}")

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if self.bar is None and trainer.is_global_zero and time.perf_counter() - self.said >= LINE_EVERY:
            self._say(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs} · validating")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        found = {tag: float(value) for tag, value in trainer.callback_metrics.items()}
        parts = [
            f"{short} loss {found[f'{part}/loss']:.3f} acc {100 * found[f'{part}/accuracy']:.2f} %"
            for part, short in (("train", "train"), ("validation", "val"))
            if f"{part}/loss" in found
        ]
        took = duration(time.perf_counter() - self.epoch_began)
        self._say(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs} · {' · '.join(parts)} · {took}")

    def on_train_end(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.stop()

    def on_exception(self, *_: Any) -> None:
        self.on_train_end()

    def _seconds_left(self, trainer: Trainer, now: float) -> float:
        """By the pace so far; until there was a validation, a forward pass is taken for a third of a step."""
        steps = int(trainer.estimated_stepping_batches) - trainer.global_step
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        unseen = len(data.validation) / len(data.train) / 3 if "validation/loss" not in trainer.callback_metrics else 0
        return steps * (1 + unseen) * (now - self.began) / self.steps

    def _say(self, line: str) -> None:
        self.console.print(line)
        self.said = time.perf_counter()
