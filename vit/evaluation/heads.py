"""Which heads matter, and what writes the answer."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.model import Attention, ViT

Edit = Callable[[int, Tensor], Tensor]


def without(heads: Tensor) -> Edit:
    """For `ViT.attend`: those heads, true in bool (L,h), attend to nothing, and so add nothing."""
    return lambda layer, weights: weights * ~heads[layer, :, None, None].to(weights.device)


def each_head(depth: int, heads: int) -> Iterable[Tensor]:
    """One head at a time, layer by layer: bool (L,h)."""
    return torch.eye(depth * heads, dtype=torch.bool).view(-1, depth, heads)


class Attribution(NamedTuple):
    """What each part of the network adds to the true class's logit; together they are the logit."""

    embedding: Tensor  # (B,): patches, positions and prefix tokens
    heads: Tensor  # (B,L,h)
    mlps: Tensor  # (B,L)
    bias: Tensor  # (B,): of the attention's projections, the final norm and the classifier

    def sum(self) -> Tensor:
        """The logit: (B,)."""
        return self.embedding + self.heads.sum(dim=(1, 2)) + self.mlps.sum(1) + self.bias


@torch.no_grad()
def logit_attribution(vit: ViT, images: Tensor, labels: Tensor, seen: Attention) -> Attribution:
    """Of normalised images (B,C,H,W) and what `vit.attend` saw of them.

    All that a layer adds to the tokens reaches the logit by the final norm, pool and classifier, which are linear once
    the norm's deviation and the pool's weights are given. Elhage et al. 2021, "A Mathematical Framework for Transformer
    Circuits"; for ViT, Gandelsman et al. 2023 (arXiv 2310.05916), section 3.
    """
    last = seen.tokens[-1]
    deviation = (last.var(2, correction=0, keepdim=True) + vit.norm.eps).sqrt()
    row = vit.head.weight[labels]  # (B,D)
    towards = vit.norm.weight * row
    towards = (towards - towards.mean(1, keepdim=True))[:, None] * seen.readout[..., None] / deviation  # (B,T,D)
    x = embedded = vit.embed(images)
    bias = vit.head.bias[labels] + row @ vit.norm.bias
    heads, mlps = [], []
    layers: Any = vit.layers
    for layer, weights, after in zip(layers, seen.maps, seen.tokens, strict=True):
        attention = layer.attention
        mixed = weights @ attention.split_heads(layer.norm1(x))[2]
        back = (towards @ attention.proj.weight).unflatten(2, (attention.heads, -1)).transpose(1, 2)
        heads.append((mixed * back).sum(dim=(2, 3)))
        bias = bias + (towards @ attention.proj.bias).sum(1)
        attended = attention.combine_heads(mixed)
        mlps.append(((after - x - attended) * towards).sum(dim=(1, 2)))
        x = after
    return Attribution((embedded * towards).sum(dim=(1, 2)), torch.stack(heads, 1), torch.stack(mlps, 1), bias)
