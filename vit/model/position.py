"""Where a token comes from: added to the tokens, since attention itself sees a set without an order."""

import torch
from torch import Tensor, nn


class LearnedPosition(nn.Module):
    """A learned vector for each token: (B,T,D) → (B,T,D). Dosovitskiy et al. 2021, equation 1."""

    def __init__(self, grid: tuple[int, int], dim: int, *, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(1, prefix_tokens + grid[0] * grid[1], dim))
        nn.init.trunc_normal_(self.embedding, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.embedding


class SinCosPosition(nn.Module):
    """Fixed waves over columns and rows, zero for prefix tokens: (B,T,D) → (B,T,D).

    Chen, Xie, He 2021 (arXiv 2104.02057). Raises ValueError if dim is not divisible by 4.
    """

    embedding: Tensor

    def __init__(self, grid: tuple[int, int], dim: int, *, prefix_tokens: int = 0) -> None:
        super().__init__()
        if dim % 4:
            raise ValueError(f"sine-cosine positions need a dim divisible by 4, not dim={dim}")
        frequency = 10_000.0 ** -(torch.arange(dim // 4) / (dim // 4))  # (D/4,)
        rows, columns = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
        x, y = columns.reshape(-1, 1) * frequency, rows.reshape(-1, 1) * frequency  # (N,D/4)
        waves = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)
        embedding = torch.cat([torch.zeros(prefix_tokens, dim), waves])
        self.register_buffer("embedding", embedding.unsqueeze(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.embedding


POSITIONS = {"learned": LearnedPosition, "sincos": SinCosPosition}
