"""One layer of the encoder."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vit.model.attention import MultiHeadSelfAttention
from vit.model.mlp import MLP


class EncoderLayer(nn.Module):
    """Attention, then MLP, each on the normalised tokens and added to them: (B,T,D) → (B,T,D).

    Dosovitskiy et al. 2021, equations 2 and 3. The keywords are those of the two halves; see `DropPath` for the last.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        similarity: str = "dot",
        rotary_grid: tuple[int, int] | None = None,
        prefix_tokens: int = 0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attention = MultiHeadSelfAttention(
            dim,
            heads,
            qkv_bias=qkv_bias,
            dropout=dropout,
            attention_dropout=attention_dropout,
            similarity=similarity,
            rotary_grid=rotary_grid,
            prefix_tokens=prefix_tokens,
        )
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = MLP(dim, max(1, int(dim * mlp_ratio)), dropout=dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attention(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def attend(self, x: Tensor, edit: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The same output, and the attention weights (B,h,T,T)."""
        attended, weights = self.attention.attend(self.norm1(x), edit)
        x = x + self.drop_path(attended)
        return x + self.drop_path(self.mlp(self.norm2(x))), weights


class DropPath(nn.Module):
    """In training, leave out a half-layer for some images, and scale it up for the others: (B,T,D) → (B,T,D).

    Stochastic depth: Huang et al. 2016 (arXiv 1603.09382). Raises ValueError unless p is at least 0 and below 1.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"drop_path={p} is not at least 0 and below 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = torch.rand(len(x), 1, 1, device=x.device) >= self.p
        return x * (kept / (1 - self.p)).to(x.dtype)
