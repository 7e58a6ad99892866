"""The Vision Transformer: assembles the parts in the order in which data passes."""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vit.model.encoder import EncoderLayer
from vit.model.initialization import INITS, initialize
from vit.model.patch_embedding import PatchEmbedding
from vit.model.pooling import POOLS, Pool
from vit.model.position import POSITIONS


class Attention(NamedTuple):
    """What `ViT.attend` saw. In float32, as the weights are, also under autocast."""

    logits: Tensor  # (B,K)
    maps: tuple[Tensor, ...]  # one a layer, (B,h,T,T): queries in rows, which sum to 1; order of tokens as in `ViT`
    readout: Tensor  # (B,T): the weight of each token in the pooled vector
    features: Tensor  # (B,D): the pooled vector, which the head classifies
    tokens: tuple[Tensor, ...]  # (B,T,D): what each layer leaves, before the final norm


class ViT(nn.Module):
    """An image classifier: (B,C,H,W) → logits (B,K). Dosovitskiy et al. 2021 (arXiv 2010.11929).

    image_size is a side or (height, width) in pixels. registers are learned tokens without a place, which no pool reads
    (Darcet et al. 2023, arXiv 2309.16588). drop_path is the last layer's rate; it rises evenly from 0, as in timm.
    Raises ValueError where sizes do not fit together.

        images ─ patch_embedding ─► (B,N,D) ─ class token, position, registers ─► (B,T,D) ─ layers ─ norm ─►
               ─ pool ─► (B,D) ─ head ─► (B,K)

    The tokens are, in this order: class token (only with pool="cls"), registers, patches row by row.
    """

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int] = 32,
        patch_size: int = 4,
        channels: int = 3,
        classes: int = 10,
        dim: int = 192,
        depth: int = 6,
        heads: int = 8,
        mlp_ratio: float = 4.0,
        pool: str = "mean",
        position: str = "sincos",
        registers: int = 0,
        similarity: str = "dot",
        qkv_bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
        init: str = "xavier",
    ) -> None:
        super().__init__()
        size = (image_size, image_size) if isinstance(image_size, int) else image_size
        _refuse_unknown("pool", pool, POOLS)
        _refuse_unknown("position", position, POSITIONS)
        _refuse_unknown("init", init, INITS)
        self.patch_embedding = PatchEmbedding(size, patch_size, channels=channels, dim=dim)
        self.pool: Pool = POOLS[pool](dim)
        # Not zeros: where no position is added to it, layers that begin as the identity and a head of zeros would leave
        # the class token, and every gradient, at zero for ever.
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim)) if self.pool.prefix_tokens else None
        self.position: nn.Module = POSITIONS[position](self.grid, dim, prefix_tokens=self.pool.prefix_tokens)
        if registers < 0:
            raise ValueError(f"registers={registers} is negative")
        self.registers = nn.Parameter(0.02 * torch.randn(1, registers, dim)) if registers else None
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(
                dim,
                heads,
                mlp_ratio=mlp_ratio,
                qkv_bias=qkv_bias,
                dropout=dropout,
                attention_dropout=attention_dropout,
                similarity=similarity,
                rotary_grid=self.grid if position == "rope" else None,
                prefix_tokens=self.prefix_tokens,
                drop_path=drop_path * index / (depth - 1) if depth > 1 else drop_path,
                norm_eps=norm_eps,
            )
            for index in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.head = nn.Linear(dim, classes)

        initialize(self, init)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.patch_embedding.grid

    @property
    def prefix_tokens(self) -> int:
        """How many tokens that are no patch stand before the patches."""
        return self.pool.prefix_tokens + (0 if self.registers is None else self.registers.shape[1])

    def forward(self, images: Tensor, patches: Tensor | None = None) -> Tensor:
        """Logits by all patches, or by those with the numbers (B,K) alone, which is not for position="rope"."""
        return self.head(self.features(images, patches))

    def features(self, images: Tensor, patches: Tensor | None = None) -> Tensor:
        """The pooled vector, which the head classifies: (B,C,H,W) → (B,D)."""
        x = self.embed(images, patches)
        for layer in self.layers:
            x = layer(x)
        return self.pool(self.without_registers(self.norm(x)))

    def embed(self, images: Tensor, patches: Tensor | None = None) -> Tensor:
        """(B,C,H,W) → (B,T,D)."""
        embedded = x = self.patch_embedding(images)
        batch = x.shape[0]  # not len(x), which torch.export would take for a constant
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(batch, -1, -1), x], dim=1)
        x = self.position(x)
        if patches is not None:
            first = self.pool.prefix_tokens
            kept = x[:, first:].gather(1, patches[..., None].expand(-1, -1, x.shape[2]))
            x = torch.cat([x[:, :first], kept], dim=1)
        if self.registers is not None:
            first = self.pool.prefix_tokens
            x = torch.cat([x[:, :first], self.registers.expand(batch, -1, -1), x[:, first:]], dim=1)
        return self.dropout(x.to(embedded.dtype))  # under autocast bf16, as all that layers add: less memory and time

    def without_registers(self, x: Tensor) -> Tensor:
        """(B,T,D) → the class token, if there is one, and the patches."""
        if self.registers is None:
            return x
        return torch.cat([x[:, : self.pool.prefix_tokens], x[:, self.prefix_tokens :]], dim=1)

    def attend(self, images: Tensor, edit: Callable[[int, Tensor], Tensor] | None = None) -> Attention:
        """The same forward pass in float32, with everything that it attended to. Gradients flow.

        `edit(layer, weights)` takes a layer's index and its weights (B,h,T,T) and returns those to use instead.
        """
        maps, tokens = [], []
        with torch.autocast(images.device.type, enabled=False):
            x = self.embed(images)
            for index, layer in enumerate(self.layers):
                x, weights = layer.attend(x, edit and functools.partial(edit, index))  # type: ignore[operator]
                maps.append(weights)
                tokens.append(x)
            x = self.without_registers(self.norm(x))
            features, read, first = self.pool(x), self.pool.readout(x), self.pool.prefix_tokens
            unread = read.new_zeros(x.shape[0], self.prefix_tokens - first)
            readout = torch.cat([read[:, :first], unread, read[:, first:]], dim=1)
            return Attention(self.head(features), tuple(maps), readout, features, tuple(tokens))

    @torch.no_grad()
    def attention_maps(self, images: Tensor) -> Tensor:
        """The attention weights of every layer and head: (B,L,h,T,T)."""
        return torch.stack(self.attend(images).maps, dim=1)


def _refuse_unknown(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ValueError(f"{what}={name} is unknown; it is one of {' '.join(known)}")
