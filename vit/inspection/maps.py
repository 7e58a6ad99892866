"""From attention weights to one map an image: pure functions, for the shapes' letters see the README.

A method's map is rᵀM without the columns of prefix tokens: r is the weight of each token in the pooled vector
(`ViT.attend`'s readout), so that it means the same for every pool; M is a head's matrix, or what joins the layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vit.model import Attention, ViT


def readout_maps(weights: Tensor, readout: Tensor, *, grid: tuple[int, int]) -> Tensor:
    """What the pooled vector attends to, head by head: (B,h,T,T), (B,T) → (B,h,rows,columns).

    What prefix tokens received is missing from the sum.
    """
    received = (readout[:, None, None, :] @ weights).squeeze(2)  # (B,h,T)
    patches = grid[0] * grid[1]
    return received[:, :, -patches:].unflatten(2, grid)


def rollout(maps: Sequence[Tensor]) -> Tensor:
    """Attention through all layers, each half attention (mean over heads) and half residual: L × (B,h,T,T) → (B,T,T).

    Rows sum to 1. Abnar & Zuidema 2020 (arXiv 2005.00928), section 3.
    """
    joined = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype, device=maps[0].device)
    for weights in maps:
        joined = (weights.mean(dim=1) @ joined + joined) / 2
    return joined


def relevance(maps: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """How much each token contributed to an output by way of attention: 2 × L × (B,h,T,T) → (B,T,T).

    gradients are those of the output by the maps. R ← R + mean over heads of (∇A ⊙ A)⁺ · R, from R = 1; the 1 is taken
    away at the end. Chefer, Gur, Wolf 2021 (arXiv 2103.15679), equations 5 and 6.
    """
    one = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype, device=maps[0].device)
    joined = one.expand(len(maps[0]), -1, -1)
    for weights, gradient in zip(maps, gradients, strict=True):
        joined = joined + (gradient * weights).clamp(min=0).mean(dim=1) @ joined
    return joined - one


def method_matrices(seen: Attention, *, classes: Tensor | None = None) -> dict[str, Tensor]:
    """One matrix an image, (B,T,T), by each method: the last layer's mean over heads, rollout, relevance.

    Relevance is that for `classes` (B,), or else for the class found. It needs the graph of `seen`, which comes from
    neither no_grad nor inference mode, and is missing where the logits have no gradient.
    """
    maps = [weights.detach() for weights in seen.maps]
    matrices = {"last layer": maps[-1].mean(dim=1), "rollout": rollout(maps)}
    if seen.logits.requires_grad:
        chosen = seen.logits.argmax(1) if classes is None else classes
        gradients = torch.autograd.grad(seen.logits.gather(1, chosen[:, None]).sum(), seen.maps)
        matrices["relevance"] = relevance(maps, gradients)
    return matrices


def read_matrices(matrices: dict[str, Tensor], readout: Tensor, *, grid: tuple[int, int]) -> dict[str, Tensor]:
    """The map (B,rows,columns) of each matrix (B,T,T)."""
    read = readout.detach()
    return {name: readout_maps(matrix[:, None], read, grid=grid).squeeze(1) for name, matrix in matrices.items()}


def method_maps(seen: Attention, *, grid: tuple[int, int], classes: Tensor | None = None) -> dict[str, Tensor]:
    """One map an image, (B,rows,columns), by each method of `method_matrices`."""
    return read_matrices(method_matrices(seen, classes=classes), seen.readout, grid=grid)


def logit_lens(vit: ViT, tokens: Tensor) -> Tensor:
    """The class probabilities that norm and head would read from each patch alone: (B,T,D) → (B,K,rows,columns).

    tokens: those after any layer. nostalgebraist 2020, "interpreting GPT: the logit lens", applied to patches.
    """
    patches = tokens[:, vit.prefix_tokens :]
    return vit.head(vit.norm(patches)).softmax(dim=2).mT.unflatten(2, vit.grid)
