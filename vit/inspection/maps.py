"""From attention weights to what a picture shows: pure functions."""

from torch import Tensor


def readout_maps(weights: Tensor, readout: Tensor, *, grid: tuple[int, int]) -> Tensor:
    """What the pooled vector attends to, head by head: (B,h,T,T), (B,T) → (B,h,rows,columns).

    rᵀM with r the weight of each token in the pooled vector (`ViT.attend`'s readout), so that it means the same for
    every pool. Prefix tokens are cut; what they received is missing from the sum.
    """
    received = (readout[:, None, None, :] @ weights).squeeze(2)  # (B,h,T)
    patches = grid[0] * grid[1]
    return received[:, :, -patches:].unflatten(2, grid)
