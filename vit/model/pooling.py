"""From all tokens to the one vector that is classified."""

from torch import Tensor, nn


class Pool(nn.Module):
    """A weighted mean of the tokens: (B,T,D) → (B,D).

    `readout` says with which weights, so that looking inside means the same for every pool.
    """

    prefix_tokens = 0

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return (self.readout(x).unsqueeze(1) @ x).squeeze(1)

    def readout(self, x: Tensor) -> Tensor:
        """The weights, which sum to 1: (B,T)."""
        raise NotImplementedError


class MeanPool(Pool):
    """1/N at every patch."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)

    def readout(self, x: Tensor) -> Tensor:
        return x.new_full(x.shape[:2], 1 / x.shape[1])


class ClassTokenPool(Pool):
    """The class token alone, which attention has filled. Dosovitskiy et al. 2021, equation 4."""

    prefix_tokens = 1

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def readout(self, x: Tensor) -> Tensor:
        weights = x.new_zeros(x.shape[:2])
        weights[:, 0] = 1
        return weights


class SequencePool(Pool):
    """Weights that each token earns by a learned score. Hassani et al. 2021 (arXiv 2104.05704)."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.score = nn.Linear(dim, 1, bias=False)  # softmax would cancel a bias

    def readout(self, x: Tensor) -> Tensor:
        return self.score(x).squeeze(2).softmax(dim=1)


POOLS = {"mean": MeanPool, "cls": ClassTokenPool, "sequence": SequencePool}
