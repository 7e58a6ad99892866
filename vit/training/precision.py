"""Which device computes, and in which precision."""

import os
from typing import NamedTuple

import torch

from vit.settings import UserError


def choose_device(asked: str) -> str:
    """'cpu', 'cuda' or 'mps'. Raises UserError if what was asked for is not there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return next(name for name, present in there.items() if present)
    if not there[asked]:
        raise UserError(f"device={asked} is not available here; device=cpu works everywhere")
    return asked


def native_bf16(device: str) -> bool:
    """Whether the device multiplies bf16 matrices itself. Where it does not, bf16 is slower than float32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "mps":
        return False
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()  # what the library of products was told to use
    told = allowed in ("ALL", "DEFAULT") or "BF16" in allowed or "FP16" in allowed or "AMX" in allowed
    return told and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())  # public since 2.11


class Device(NamedTuple):
    """What computes, and how."""

    name: str  # cpu, cuda or mps
    precision: str  # Lightning's name
    reason: str  # why this precision, in a few words
    native_bf16: bool

    @property
    def dtype(self) -> torch.dtype:
        """The type of the network's matrix products."""
        return {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}[self.precision]


def choose(device: str, precision: str, *, devices: int = 1) -> Device:
    """The device and precision for what was asked. Raises UserError for what cannot be had."""
    name = choose_device(device)
    there = {"cuda": torch.cuda.device_count(), "mps": 1}.get(name, devices)
    if devices > there:
        raise UserError(f"devices={devices}, but there are {there} of device={name}")
    native = native_bf16(name)
    if precision == "16-mixed" and name == "cpu":
        raise UserError("precision=16-mixed needs a GPU; on a CPU use bf16-mixed or 32-true")
    if precision == "bf16-mixed" and not native:
        return Device(name, precision, "as asked, but without native bf16 here 32-true would be faster", native)
    if precision != "auto":
        return Device(name, precision, "as asked", native)
    if native:
        return Device(name, "bf16-mixed", "bf16 products are native here", native)
    return Device(name, "32-true", "bf16 products are not native here", native)
