"""What a network costs."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from vit.model import ViT

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")  # of torch.ops.aten; what a linear layer and attention end in


def forward_flops(vit: ViT) -> int:
    """Floating-point operations of the matrix products of one image's forward pass; multiply and add count as two."""
    image = torch.zeros(1, *vit.patch_embedding.image_shape, device=vit.head.weight.device)
    # The plain kernel consists of products that the counter knows.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        vit(image)
    return counter.get_total_flops()


def parameter_count(vit: torch.nn.Module) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in vit.parameters())


class Operand(NamedTuple):
    """How a matrix, or a batch of them, lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Operand":
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def make(self, device: str) -> Tensor:
        """Random numbers that lie so."""
        size = 1 + sum((side - 1) * step for side, step in zip(self.shape, self.stride, strict=True))
        return torch.randn(size, device=device).to(self.dtype).as_strided(self.shape, self.stride)


class Product(NamedTuple):
    """A matrix product, or a batch of them."""

    left: Operand
    right: Operand

    @property
    def flops(self) -> int:
        """Multiply and add count as two."""
        *batch, rows, inner = self.left.shape
        return 2 * torch.Size(batch).numel() * rows * inner * self.right.shape[-1]

    def alone(self, device: str) -> Callable[[], Tensor]:
        """This product and nothing else, to be timed."""
        left, right = self.left.make(device), self.right.make(device)
        return lambda: left @ right


class RecordProducts(TorchDispatchMode):
    """Within it, every matrix product is counted, of forward and backward passes; those inside a fused kernel are not.

    `counts` says how often each product was computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Product] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in PRODUCTS:
            left, right = args[-2:]  # before them, what is added
            self.counts[Product(Operand.of(left), Operand.of(right))] += 1
        return func(*args, **(kwargs or {}))
