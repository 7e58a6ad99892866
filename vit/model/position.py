"""Where a token comes from, since attention itself sees a set without an order.

Added to the tokens once (learned, sincos), or turning queries and keys in every layer (rope).
"""

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


class AxialRotation(nn.Module):
    """Turn q or k by the row and the column of each patch: (B,h,T,d) → (B,h,T,d). Prefix tokens are left as they are.

    Pairs of channels, i and i + d/2, turn by row · 100^(-4i/d) for the first d/4 of them and by column likewise for the
    others, so that q kᵀ sees only how far apart two patches lie. Su et al. 2021 (arXiv 2104.09864), in its axial form:
    Heo et al. 2024 (arXiv 2403.13298), section 3. Raises ValueError if d is not divisible by 4.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, grid: tuple[int, int], width: int, *, prefix_tokens: int = 0) -> None:
        super().__init__()
        if width % 4:
            raise ValueError(f"rotary positions need a head width divisible by 4, not dim / heads = {width}")
        frequency = 100.0 ** -(torch.arange(width // 4) / (width // 4))  # (d/4,)
        rows, columns = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
        angle = torch.cat([rows.reshape(-1, 1) * frequency, columns.reshape(-1, 1) * frequency], dim=1)  # (N,d/2)
        angle = torch.cat([torch.zeros(prefix_tokens, width // 2), angle])  # (T,d/2)
        self.register_buffer("cos", torch.cat([angle.cos(), angle.cos()], dim=1), persistent=False)
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], dim=1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.cos.to(x.dtype) + x.roll(x.shape[3] // 2, dims=3) * self.sin.to(x.dtype)


# What is added to the tokens. With rope, which turns q and k instead, and with none, nothing is.
POSITIONS = {"learned": LearnedPosition, "sincos": SinCosPosition, "rope": nn.Identity, "none": nn.Identity}
