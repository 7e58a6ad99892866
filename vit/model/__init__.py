"""The network, in the order in which data passes: torch only, no file here knows of training."""

from vit.model.attention import MultiHeadSelfAttention, attention_kernel
from vit.model.encoder import EncoderLayer
from vit.model.mlp import MLP
from vit.model.patch_embedding import PatchEmbedding
from vit.model.vit import Attention, ViT

__all__ = [
    "MLP",
    "Attention",
    "EncoderLayer",
    "MultiHeadSelfAttention",
    "PatchEmbedding",
    "ViT",
    "attention_kernel",
]
