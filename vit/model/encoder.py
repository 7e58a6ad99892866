"""One layer of the encoder."""

from collections.abc import Callable

from torch import Tensor, nn

from vit.model.attention import MultiHeadSelfAttention
from vit.model.mlp import MLP


class EncoderLayer(nn.Module):
    """Attention, then MLP, each on the normalised tokens and added to them: (B,T,D) → (B,T,D).

    Dosovitskiy et al. 2021, equations 2 and 3.
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
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = MultiHeadSelfAttention(
            dim, heads, qkv_bias=qkv_bias, dropout=dropout, attention_dropout=attention_dropout
        )
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim, max(1, int(dim * mlp_ratio)), dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def attend(self, x: Tensor, edit: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The same output, and the attention weights (B,h,T,T)."""
        attended, weights = self.attention.attend(self.norm1(x), edit)
        x = x + attended
        return x + self.mlp(self.norm2(x)), weights
