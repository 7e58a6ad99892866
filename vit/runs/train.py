"""One training run, from checked settings to a result: reads top to bottom."""

import dataclasses
import json
import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.profilers import Profiler
from rich.console import Console

from vit.data import Augmentation, ImageData, ImageSet, load_images
from vit.data.image_set import fingerprint
from vit.evaluation.score import Score, score
from vit.inspection.attention_logger import Shown, ViTLogger
from vit.inspection.data_logger import DataLogger
from vit.inspection.fonts import drawable
from vit.inspection.pictures import printable
from vit.model import ViT
from vit.runs.banner import banner, script_command, tensorboard_command
from vit.runs.cluster import launcher, machines
from vit.runs.fine_tuning import begin_from, in_words
from vit.runs.folder import is_leader, lock_folder, shared_folder
from vit.runs.machine import advise_on_memory, plain_console, silence_unneeded, tune_allocator
from vit.runs.result import RESULT, describe, tested_epoch
from vit.runs.resume import SETTINGS, Resumed, resume
from vit.settings import PLACES, Stopped, TrainSettings, UserError
from vit.training.averaging import AverageWeights
from vit.training.checkpoint import (
    LAST,
    AtomicCheckpointIO,
    Facts,
    SaveCheckpoints,
    in_short,
    load_own,
    write_atomically,
)
from vit.training.classifier import Classifier
from vit.training.logger import RunLogger, StopWhereDiverged, WriteMetrics
from vit.training.optimizer import learning_rate_factor
from vit.training.precision import Device, choose
from vit.training.pretrained import fitted
from vit.training.progress import ShowProgress, count, duration
from vit.training.signals import StopOnSignal

PICTURES = "pictures"
SHOWN = 10  # images whose attention is logged


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    folder: Path
    validation_accuracy: float | None
    test: Score


def train(
    settings: TrainSettings,
    given: Mapping[str, str],
    *,
    typed: Mapping[str, str],
    began: float,
    images: ImageSet | None = None,
    profiler: Profiler | None = None,
) -> Outcome | None:
    """Train, test, and leave a run folder behind.

    `given` says who set each key beside the table, `typed` holds the words of the command line by key, and `began` is
    the time at which the command did. Images at hand need not be loaded; a profiler is told what happens in training.
    Returns None in a process that only helped on a further device. Raises UserError and Stopped.
    """
    console = plain_console()
    leader = is_leader()
    silence_unneeded()
    tune_allocator()
    with StopOnSignal() as stop, advise_on_memory(_smaller(settings)):
        resumed = None
        if settings.resume is not None:
            settings, resumed = resume(settings, {key: settings.values()[key] for key in typed})
            default = TrainSettings().values()
            given = {key: "the run" for key, value in settings.values().items() if value != default[key]}
            given |= {key: "command line" for key in typed if key != "resume"}
        source = None
        if settings.init_from is not None:  # which a run that has finished an epoch no longer needs
            settings, by_file, source = begin_from(settings, settings.names() if resumed else typed)
            given = {**given, **by_file}
        device = choose(settings.device, settings.precision, devices=settings.devices)
        nodes = machines(settings)
        processes = nodes * settings.devices
        root = Path(settings.data_root or "data").expanduser().resolve()
        image_set = images or load_images(
            settings.data, root=root, url=settings.data_url, image_size=settings.image_size, say=console.print
        )
        data = ImageData(
            image_set,
            validation=settings.validation,
            batch_size=settings.batch_size,
            seed=settings.seed,
            workers=settings.workers,
            pin=device.name == "cuda",
        )
        if 0 < len(data.validation) < processes:
            raise UserError(f"validation={len(data.validation)} is less than one image for each of devices={processes}")
        torch.manual_seed(settings.seed)
        facts = _facts(settings, image_set, data, device, resumed, in_words(*source) if source else "")
        began -= 60 * facts.minutes  # as if one process had done it all, without a break
        vit = fitted(*source, facts) if source else ViT(**facts.model)
        changed = {key: settings.values()[key] for key in typed}
        folder = resumed.folder if resumed else shared_folder(Path(settings.runs), changed)
        command = _command(typed, resumed)
        if leader:
            lock = lock_folder(folder)  # noqa: F841 - held until this function ends
            kept = {**settings.values(), "data.root": None if settings.data == "shapes" else str(root)}
            write_atomically(folder / SETTINGS, _json({"command": command, "settings": kept}))
            console.print(
                banner(settings, given, vit=vit, image_set=image_set, data=data, device=device, folder=folder)
            )
            if source:
                console.print(f"begins with {settings.init_from}: {facts.begun_from}")
            if resumed:
                console.print(_where_it_goes_on(settings, resumed, len(data.train_dataloader()), device))
        classes = tuple(map(printable, image_set.classes))
        say = console.print if leader else lambda _: None
        if settings.compile:
            vit.compile()
        trainer = Trainer(
            accelerator=device.name,
            devices=settings.devices,
            num_nodes=nodes,
            strategy="ddp" if processes > 1 else "auto",
            precision=device.precision,  # type: ignore[arg-type]
            max_epochs=settings.epochs,
            gradient_clip_val=settings.clip or None,
            deterministic=settings.deterministic or None,
            callbacks=[
                ShowProgress(console),
                StopWhereDiverged(folder),
                ViTLogger(
                    vit,
                    _shown(data, classes),
                    (data.validation.images, data.validation.labels),
                    folder=folder / PICTURES,
                    say=say,
                ),
                DataLogger(
                    data.train.images,
                    data.train.labels,
                    drawable(classes, lambda _: None),
                    folder=folder / PICTURES,
                ),
                WriteMetrics(folder, finished=resumed.epoch if resumed else 0),
                SaveCheckpoints(folder, facts, began=began),
                *averaging(settings, device),
                stop,
            ],
            logger=_logger(settings, folder, resumed, console) if leader else False,
            plugins=[AtomicCheckpointIO(), *([environment] if (environment := launcher()) else [])],
            profiler=profiler,
            use_distributed_sampler=False,  # ImageData has its own
            limit_val_batches=1.0 if len(data.validation) else 0,
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder / "none",  # it would resume from any hpc_ckpt_*.ckpt that it found
        )
        try:
            checkpoint = resumed.checkpoint if resumed else None
            if checkpoint is not None and checkpoint.name != LAST:  # from here on this is where the run stands
                write_atomically(folder / LAST, checkpoint.read_bytes())
            if facts.epoch < settings.epochs:
                _fit(trainer, classifier(vit, settings, data, device), data, checkpoint, stop)
            if not leader:
                return None
            # The one look at the test images: the file that evaluate reads, by the function that it calls.
            vit, facts = load_own(folder)
            console.print(f"testing {LAST}, epoch {facts.epoch}, on {len(image_set.test):,} images in float32")
            test = score(
                vit,
                image_set.test,
                mean=facts.mean,
                std=facts.std,
                device=device.name,
                batch_size=settings.batch_size,
            )
        except OSError as error:
            again = script_command("train", f"resume={folder}")
            raise UserError(
                f"{folder} cannot be written ({error.strerror or error}); when it can, go on: {again}"
            ) from error
        except Stopped as stopped:
            if leader:
                again = script_command("train", f"resume={folder}")
                where = (
                    "after the last whole epoch"
                    if (folder / LAST).exists()
                    else "from the beginning, no epoch being whole"
                )
                console.print(f"stopped by {stopped}; to go on {where}: {again}")
                if trainer.strategy.launcher is not None:  # the other devices' processes have nothing to save
                    trainer.strategy.launcher.kill(signal.SIGKILL)
            raise

    minutes = (time.time() - began) / 60
    result = describe(vit, facts, test, folder=folder, device=device, minutes=minutes, command=command)
    tested_before = tested_epoch(folder) == facts.epoch
    write_atomically(folder / RESULT, _json(result))
    if isinstance(trainer.logger, RunLogger) and not tested_before:
        trainer.logger.log_metrics({"test/accuracy": test.accuracy, "test/loss": test.loss}, step=facts.step)
        trainer.logger.experiment.close()
    places = [f"data.root={root}"] if settings.data_root else []
    console.print(f"test accuracy {test}")
    passes = f"{count(facts.epoch, 'epoch')} of {facts.train_images:,} images"
    console.print(f"{facts.images} · {passes} · {duration(60 * minutes)} in all")
    console.print("evaluate  " + script_command("evaluate", f"checkpoint={folder}", *places))
    console.print("look      " + tensorboard_command(folder.parent))
    return Outcome(folder, facts.validation_accuracy, test)


def _facts(
    settings: TrainSettings,
    image_set: ImageSet,
    data: ImageData,
    device: Device,
    resumed: Resumed | None,
    begun_from: str,
) -> Facts:
    facts = Facts(
        model={
            "image_size": settings.image_size,
            "channels": image_set.train.images.shape[1],
            "classes": len(image_set.classes),
            **settings.group("model"),
        },
        settings={key: value for key, value in settings.values().items() if key not in PLACES},
        classes=image_set.classes,
        mean=data.mean,
        std=data.std,
        images=image_set.description,
        train_images=len(data.train),
        precision=device.precision,
        weights="averaged" if settings.ema else "raw",
        validation_fingerprint=fingerprint(data.validation.images),
        begun_from=begun_from,
    )
    if resumed is None or resumed.facts is None:
        return facts
    earlier = resumed.facts
    for name in ("classes", "train_images", "mean", "std"):
        if getattr(facts, name) != getattr(earlier, name):
            raise UserError(f"these are not the images that the run has learned from: their {name} differ")
    carried_on = {name: getattr(earlier, name) for name in ("epoch", "step", "minutes", "begun_from")}
    return dataclasses.replace(facts, **carried_on)


def _smaller(settings: TrainSettings) -> str:
    if settings.resume is not None:
        return "a resumed run keeps its sizes; free memory, try device=cpu, or begin a run with a smaller batch_size"
    return f"lower batch_size={settings.batch_size}, dim or depth, or image_size"


def _fit(trainer: Trainer, model: Classifier, data: ImageData, checkpoint: Path | None, stop: StopOnSignal) -> None:
    """Raises Stopped if a signal came, and UserError if the checkpoint does not hold what Lightning goes on from."""
    try:
        trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    except (OSError, UserError):
        raise
    except Exception as error:
        if stop.received is not None:  # another process stopped first, and the connection to it broke
            raise Stopped(stop.received) from error
        if checkpoint is not None and not stop.began:
            raise UserError(f"{checkpoint} cannot be gone on with ({in_short(error)})") from error
        raise


def averaging(settings: TrainSettings, device: Device) -> list[Callback]:
    """The callback that averages weights, if they are to be averaged."""
    return [AverageWeights(settings.ema, device=device.name)] if settings.ema else []


def classifier(vit: ViT, settings: TrainSettings, data: ImageData, device: Device) -> Classifier:
    return Classifier(
        vit,
        mean=data.mean,
        std=data.std,
        lr=settings.lr,
        muon_lr=settings.muon_lr if settings.optimizer == "muon" else None,
        body_lr=settings.body_lr,
        weight_decay=settings.weight_decay,
        warmup=settings.warmup,
        flat=settings.flat,
        label_smoothing=settings.label_smoothing,
        augmentation=Augmentation(**settings.group("augmentation")),
        augment_until=settings.augment_until,
        patch_dropout=settings.patch_dropout,
        seed=settings.seed,
        muon_dtype=torch.bfloat16 if device.native_bf16 else torch.float32,
    )


def _shown(data: ImageData, classes: tuple[str, ...]) -> Shown:
    """Ten fixed images, one of each class in turn, of the validation images or else unaugmented training images."""
    part, note = (data.validation, "") if len(data.validation) else (data.train, "train: ")
    of_class = [(part.labels == label).nonzero().flatten().tolist() for label in range(len(classes))]
    in_turn = [row[turn] for turn in range(SHOWN) for row in of_class if turn < len(row)][:SHOWN]
    masks = None if part.masks is None else part.masks[in_turn]
    return Shown(part.images[in_turn], part.labels[in_turn], classes, data.mean, data.std, masks, note)


def _logger(settings: TrainSettings, folder: Path, resumed: Resumed | None, console: Console) -> RunLogger | bool:
    try:
        logger = RunLogger(folder, resumed_at=resumed.step if resumed else None)
        logger.log_settings(settings.values())
    except Exception as error:  # a viewer that is missing, or broken in whatever way, must not stop the training
        console.print(f"no TensorBoard ({error}): numbers go to metrics.csv and pictures to {PICTURES}/ only")
        return False
    return logger


def _command(typed: Mapping[str, str], resumed: Resumed | None) -> str:
    """What leads to this run's result: its first command, and those that gave a resumed run more to do."""
    command = shlex.join(["python", "scripts/train.py", *typed.values()])
    if resumed is None:
        return command
    return f"{resumed.command} && {command}" if "epochs" in typed else resumed.command


def _where_it_goes_on(settings: TrainSettings, resumed: Resumed, steps: int, device: Device) -> str:
    """From which file and epoch; and what makes the rest differ from what was planned."""
    if resumed.facts is None:
        return "resuming: no epoch was finished, so from the beginning"
    left = f"going on with step {resumed.step}" if resumed.epoch < settings.epochs else "only the test is left"
    line = f"resuming {resumed.checkpoint}: epoch {resumed.epoch} is finished, {left}"
    if device.precision != resumed.facts.precision:
        line += f"\nprecision was {resumed.facts.precision} and is now {device.precision}: not bit for bit the same"
    before = resumed.facts.settings["epochs"]
    if settings.epochs != before and settings.augment_until < 1:
        until = settings.augment_until * settings.epochs
        line += f"\nepochs {before} → {settings.epochs}: augment_until now ends with epoch {until:.1f}"
    if settings.epochs != before:
        old, new = (
            learning_rate_factor(
                min(resumed.step, n * steps), total=n * steps, warmup=settings.warmup, flat=settings.flat
            )
            for n in (before, settings.epochs)
        )
        line += (
            f"\nepochs {before} → {settings.epochs}: the learning rate is planned anew and goes on at {100 * new:.0f} %"
            f" of its peak instead of {100 * old:.0f} %"
        )
    return line


def _json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
