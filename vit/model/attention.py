"""Multi-head self-attention, and the choice of the kernel that computes it."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.model.position import AxialRotation

SIMILARITIES = ("dot", "cosine")

# On a CPU the explicit products win up to so many tokens: in bf16 the fused kernel's backward alone takes half a step.
EXPLICIT_TOKENS = {torch.bfloat16: 256, torch.float32: 96}


def attention_kernel(tokens: int, *, device: str, dtype: torch.dtype) -> str:
    """'explicit' (weights are formed, then applied) or 'fused' (`scaled_dot_product_attention`)."""
    return "explicit" if device == "cpu" and tokens <= EXPLICIT_TOKENS.get(dtype, 0) else "fused"


class MultiHeadSelfAttention(nn.Module):
    """Each head compares every token with every other and mixes their values: (B,T,D) → (B,T,D).

    Vaswani et al. 2017 (arXiv 1706.03762), section 3.2. Raises ValueError if heads does not divide dim, or
    an option does not fit.

        x ─ qkv ─ split ─► q, k, v (B,h,T,d) ─► weights = softmax(q kᵀ / √d) (B,h,T,T) ─ @ v ─ combine ─ proj ─►

    similarity "cosine" compares the directions of q and k alone: softmax(s · cos(q, k)), with a learned scale s of each
    head that begins at 10 and is at most 100 (Henry et al. 2020, arXiv 2010.04245; bounded as by Liu et al. 2022, arXiv
    2111.09883). With rotary_grid, q and k are first turned by where their patch lies: see `AxialRotation`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        similarity: str = "dot",
        rotary_grid: tuple[int, int] | None = None,
        prefix_tokens: int = 0,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"heads={heads} does not divide dim={dim}")
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity={similarity} is unknown; it is one of {' '.join(SIMILARITIES)}")
        self.heads = heads
        self.scale = (dim // heads) ** -0.5  # the width of a head, not of the token
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attention_dropout = nn.Dropout(attention_dropout)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.log_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10))) if similarity == "cosine" else None
        self.rotation = None
        if rotary_grid is not None:
            self.rotation = AxialRotation(rotary_grid, dim // heads, prefix_tokens=prefix_tokens)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split_heads(x)
        if attention_kernel(x.shape[1], device=q.device.type, dtype=q.dtype) == "explicit":
            mixed = self.attention_dropout(self.weights(q, k)) @ v
        else:
            dropout = self.attention_dropout.p if self.training else 0.0
            mixed = F.scaled_dot_product_attention(*self.comparable(q, k), v, dropout_p=dropout, scale=self.scale)
        return self.combine_heads(mixed)

    def attend(self, x: Tensor, edit: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The same output, and the weights (B,h,T,T) that made it, before dropout; rows sum to 1 over the keys.

        `edit` takes the weights and returns those to use instead, e.g. with a head set to zero.
        """
        q, k, v = self.split_heads(x)
        weights = self.weights(q, k)
        if edit is not None:
            weights = edit(weights)
        return self.combine_heads(self.attention_dropout(weights) @ v), weights

    def split_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B,T,D) → q, k, v, each (B,h,T,d)."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """softmax(q kᵀ / √d): (B,h,T,T), queries in rows."""
        q, k = self.comparable(q, k)
        return (q * self.scale @ k.transpose(-2, -1)).softmax(dim=-1)

    def comparable(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q and k as they are or, by the options, turned, and of fixed length: q kᵀ / √d is their similarity."""
        if self.rotation is not None:
            q, k = self.rotation(q), self.rotation(k)
        if self.log_scale is not None:
            scale = self.log_scale.exp().clamp(max=100) * self.scale  # rms_norm makes vectors of length √d
            q, k = (F.rms_norm(part, part.shape[3:], eps=1e-6) for part in (q, k))
            q = q * scale.to(q.dtype)
        return q, k

    def combine_heads(self, mixed: Tensor) -> Tensor:
        """(B,h,T,d) → (B,T,D), through the output projection."""
        return self.dropout(self.proj(mixed.transpose(1, 2).flatten(2)))
