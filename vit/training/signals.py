"""A signal ends the step, and with it the training, in good order."""

import signal
from types import FrameType
from typing import Any, Self

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from vit.settings import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopOnSignal(Callback):
    """Within training, SIGTERM and SIGINT wait for the end of the step (or batch of validation); elsewhere they stop at
    once. Either way `Stopped` is raised. A second signal does not wait.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.training = self.began = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.before = {signum: signal.getsignal(signum) for signum in SIGNALS}
        self._install()
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self.before.items():
            signal.signal(signum, handler)

    def _install(self) -> None:
        for signum in SIGNALS:
            signal.signal(signum, self._receive)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        again, self.received = self.received is not None, signum
        if again or not self.training:
            raise Stopped(signum)

    def _obey(self) -> None:
        if self.received is not None:
            raise Stopped(self.received)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._install()  # Lightning has put its own handler before ours, which leaves with exit status 0
        self.training = self.began = True

    def on_train_batch_end(self, *_: Any) -> None:
        self._obey()

    def on_validation_batch_end(self, *_: Any) -> None:
        self._obey()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.training = False
        self._obey()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.training = False
