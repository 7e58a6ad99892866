"""The part of a layer that treats each token by itself."""

import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Two projections with a GELU between them, for each token alone: (B,T,D) → (B,T,D)."""

    def __init__(self, dim: int, hidden: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.fc2(self.dropout(F.gelu(self.fc1(x)))))
