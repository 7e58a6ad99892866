"""The precision follows from what the device can do, and the reason is said."""

import pytest
import torch

from vit.model import attention_kernel
from vit.settings import UserError
from vit.training.precision import choose, choose_device


@pytest.mark.parametrize(
    ("ability", "allowed", "precision"),
    [
        ("avx512_bf16", None, "bf16-mixed"),
        ("amx_tile", None, "bf16-mixed"),
        ("neither", None, "32-true"),
        ("avx512_bf16", "AVX2", "32-true"),
        ("avx512_bf16", "AVX512_CORE", "32-true"),
        ("avx512_bf16", "AVX512_CORE_BF16", "bf16-mixed"),
    ],
)
def test_V14_V15_bf16_only_where_it_is_native(
    ability: str, allowed: str | None, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda name=name: name == ability)
    if allowed is None:
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    else:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", allowed)
    assert choose("cpu", "auto").precision == precision
    asked = choose("cpu", "bf16-mixed")
    assert asked.precision == "bf16-mixed"
    assert ("would be faster" in asked.reason) == (precision == "32-true")


def test_V14_half_precision_is_refused_on_a_cpu() -> None:
    with pytest.raises(UserError, match="16-mixed needs a GPU"):
        choose("cpu", "16-mixed")


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(UserError, match="device=cpu works everywhere"):
            choose_device(name)


def test_one_function_decides_which_kernel_computes_attention() -> None:
    assert attention_kernel(64, device="cpu", dtype=torch.bfloat16) == "explicit"
    assert attention_kernel(1024, device="cpu", dtype=torch.bfloat16) == "fused"
    assert attention_kernel(64, device="cpu", dtype=torch.float32) == "explicit"
    assert attention_kernel(196, device="cpu", dtype=torch.float32) == "fused"
    assert attention_kernel(64, device="cuda", dtype=torch.bfloat16) == "fused"
