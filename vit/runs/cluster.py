"""Processes of one run that torchrun or SLURM has started: how many there are, and what the first tells the others."""

import functools
import os
from collections.abc import Callable

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment

from vit.settings import TrainSettings, UserError


@functools.cache
def launcher() -> ClusterEnvironment | None:
    """What has started this process as one of several; None if it is alone or Lightning is to start the others.

    Raises UserError for a job of SLURM that Lightning cannot do.
    """
    try:
        if TorchElasticEnvironment.detect():
            found: ClusterEnvironment = TorchElasticEnvironment()
        elif SLURMEnvironment.detect():
            found = SLURMEnvironment(auto_requeue=False)  # a stopped run is resumed by its command
        else:
            return None
    except RuntimeError as error:
        raise UserError(str(error)) from error
    return found if found.world_size() > 1 else None


def machines(settings: TrainSettings) -> int:
    """How many machines the run has. Raises UserError if the processes are not as many as the settings say."""
    environment = launcher()
    if environment is None:
        return 1
    total = environment.world_size()
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or settings.devices)
    if here != settings.devices or total % here:
        raise UserError(f"devices={settings.devices}, but {here} of the {total} processes were started here")
    if settings.batch_size % total:
        raise UserError(f"batch_size={settings.batch_size} must be divisible by the {total} processes")
    return total // here


def word_of_the_first(environment: ClusterEnvironment, say: Callable[[], str]) -> str:
    """What the first process says, in every process."""
    if environment.global_rank() == 0:
        _store(environment).set("word", say())
    return _store(environment).get("word").decode()


@functools.cache  # the first process serves it until it ends
def _store(environment: ClusterEnvironment) -> torch.distributed.Store:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
    rank, total = environment.global_rank(), environment.world_size()
    return next(iter(torch.distributed.rendezvous("env://", rank=rank, world_size=total)))[0]
