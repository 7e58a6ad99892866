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


class ShowProgress(Callback):
    """An estimate after 20 steps; then a bar with loss, accuracy, images a second and time left, or a line a minute;
    and one line an epoch.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.loss = self.accuracy = 0.0
        self.images = 0  # since this process began to train, as are the following
        self.steps = 0
        self.step_seconds = 0.0  # in steps alone
        self.other_seconds = 0.0  # in validation, saving and pictures
        self.epochs = 0
        self.mark = self.line = self.epoch_began = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.mark = self.line = self.epoch_began = time.perf_counter()
        if self.console.is_terminal and trainer.is_global_zero:
            columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[facts]}")]
            self.bar = Progress(*columns, console=self.console, refresh_per_second=4, expand=True)
            self.bar.add_task("epoch", total=trainer.estimated_stepping_batches, facts="")
            self.bar.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = time.perf_counter()
        self.other_seconds += now - self.mark if self.steps else 0.0
        self.mark = self.epoch_began = now

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        self.step_seconds += now - self.mark
        self.mark = now
        self.steps += 1
        self.images += len(batch[1]) * trainer.world_size
        if not trainer.is_global_zero:
            return
        if self.steps == ESTIMATE_AFTER:
            whole = duration(self._left(trainer) + self.step_seconds)
            self._say(f"estimate: all {trainer.max_epochs} epochs in about {whole}")
        due = now - self.line >= LINE_EVERY
        if self.bar is not None or due:
            self._show(trainer, outputs)
        if due:
            self.line = now

    def _show(self, trainer: Trainer, outputs: Any) -> None:
        facts = (
            f"loss {float(outputs['loss']):.3f} · acc {100 * float(outputs['accuracy']):.0f} % · "
            f"{self.images / self.step_seconds:,.0f} img/s · {duration(self._left(trainer))} left"
        )
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        if self.bar is None:
            self._say(f"{epoch} · step {trainer.global_step}/{trainer.estimated_stepping_batches} · {facts}")
        else:
            self.bar.update(self.bar.task_ids[0], completed=trainer.global_step, description=epoch, facts=facts)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if time.perf_counter() - self.line >= LINE_EVERY and self.bar is None and trainer.is_global_zero:
            self._say(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs} · validating")
            self.line = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.epochs += 1
        if not trainer.is_global_zero:
            return
        found = {tag: float(value) for tag, value in trainer.callback_metrics.items()}
        parts = [
            f"{part} loss {found[f'{part}/loss']:.3f} acc {100 * found[f'{part}/accuracy']:.2f} %"
            for part in ("train", "validation")
            if f"{part}/loss" in found
        ]
        took = duration(time.perf_counter() - self.epoch_began)
        self._say(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs} · {' · '.join(parts)} · {took}")
        self.line = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_exception(self, *_: Any) -> None:
        self._stop()

    def _left(self, trainer: Trainer) -> float:
        """Seconds until the last epoch ends, by the pace so far."""
        steps = int(trainer.estimated_stepping_batches) - trainer.global_step
        epochs = (trainer.max_epochs or 0) - trainer.current_epoch
        between = self.other_seconds / self.epochs if self.epochs else self._validation_guess(trainer)
        return steps * self.step_seconds / max(1, self.steps) + epochs * between

    def _validation_guess(self, trainer: Trainer) -> float:
        """Before the first validation: a forward pass is about a third of a step."""
        validation = len(trainer.datamodule.validation) if trainer.datamodule else 0  # type: ignore[attr-defined]
        return validation * self.step_seconds / max(1, self.images) / 3

    def _say(self, line: str) -> None:
        self.console.print(line)

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
