"""Vision Transformers of other libraries, of the same architecture: pre-norm, GELU, ten classes.

Each is built in two ways: as it comes, and with explicit attention, where products, softmax and products again take
the place of a fused kernel. What no library can be told to leave out stays: see `PEERS`. And torchvision's way of
augmenting, an image at a time.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from vit.data import Augmentation, Split
from vit.model import ViT

CLASSES = 10


class Architecture(NamedTuple):
    """What all of them have in common. Sides in pixels."""

    dim: int
    depth: int
    heads: int
    patch_size: int
    mlp_ratio: float
    image_size: int

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def hidden(self) -> int:
        return int(self.dim * self.mlp_ratio)


def this_vit(size: Architecture, *, pool: str = "mean") -> ViT:
    return ViT(**size._asdict(), classes=CLASSES, pool=pool)


def timm_vit(size: Architecture, explicit: bool) -> nn.Module:
    from timm.layers import set_fused_attn, use_fused_attn
    from timm.models.vision_transformer import VisionTransformer

    before = use_fused_attn()
    set_fused_attn(before and not explicit)  # read while layers are built
    try:
        return VisionTransformer(
            img_size=size.image_size,
            patch_size=size.patch_size,
            num_classes=CLASSES,
            global_pool="avg",
            embed_dim=size.dim,
            depth=size.depth,
            num_heads=size.heads,
            mlp_ratio=size.mlp_ratio,
            class_token=False,
        )
    finally:
        set_fused_attn(before)


def vit_pytorch_vit(size: Architecture, explicit: bool) -> nn.Module:
    from vit_pytorch import ViT

    return ViT(
        image_size=size.image_size,
        patch_size=size.patch_size,
        num_classes=CLASSES,
        dim=size.dim,
        depth=size.depth,
        heads=size.heads,
        mlp_dim=size.hidden,
        dim_head=size.dim // size.heads,
        pool="mean",
    )


def vit_pytorch_simple_vit(size: Architecture, explicit: bool) -> nn.Module:
    from vit_pytorch import SimpleViT

    return SimpleViT(
        image_size=size.image_size,
        patch_size=size.patch_size,
        num_classes=CLASSES,
        dim=size.dim,
        depth=size.depth,
        heads=size.heads,
        mlp_dim=size.hidden,
        dim_head=size.dim // size.heads,
    )


def torchvision_vit(size: Architecture, explicit: bool) -> nn.Module:
    from torchvision.models import VisionTransformer

    network = VisionTransformer(
        image_size=size.image_size,
        patch_size=size.patch_size,
        num_layers=size.depth,
        num_heads=size.heads,
        hidden_dim=size.dim,
        mlp_dim=size.hidden,
        num_classes=CLASSES,
    )
    return PlainKernel(network) if explicit else network


def transformers_vit(size: Architecture, explicit: bool) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(  # type: ignore[call-arg]
        hidden_size=size.dim,
        num_hidden_layers=size.depth,
        num_attention_heads=size.heads,
        intermediate_size=size.hidden,
        image_size=size.image_size,
        patch_size=size.patch_size,
        num_labels=CLASSES,
        attn_implementation="eager" if explicit else None,
    )
    return Logits(ViTForImageClassification(config))


class PlainKernel(nn.Module):
    """A network whose `scaled_dot_product_attention` is the plain one: (B,C,H,W) → (B,K)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return self.network(images)


class Logits(nn.Module):
    """The logits of a network that returns more: (B,C,H,W) → (B,K)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images).logits


class Peer(NamedTuple):
    """Another library's network."""

    build: Callable[[Architecture, bool], nn.Module]  # the second: with explicit attention
    package: str  # its name on PyPI
    class_token: bool = False  # has one that cannot be left out
    always_explicit: bool = False


PEERS = {
    "timm": Peer(timm_vit, "timm"),
    "vit-pytorch ViT": Peer(vit_pytorch_vit, "vit-pytorch", always_explicit=True),
    "vit-pytorch SimpleViT": Peer(vit_pytorch_simple_vit, "vit-pytorch", always_explicit=True),
    "torchvision": Peer(torchvision_vit, "torchvision", class_token=True),
    "transformers": Peer(transformers_vit, "transformers", class_token=True),
}
QUICK = ("timm", "vit-pytorch ViT", "vit-pytorch SimpleViT")


class OneByOne(Dataset):
    """Each image of a split by itself through transforms, as uint8 tensors or as Pillow's images."""

    def __init__(self, split: Split, transform: Callable, *, pillow: bool) -> None:
        self.images = [v2.functional.to_pil_image(image) for image in split.images] if pillow else split.images
        self.labels, self.transform = split.labels.tolist(), transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def torchvision_loader(
    split: Split,
    augmentation: Augmentation,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    batch_size: int,
    workers: int,
    pillow: bool,
) -> DataLoader:
    """Batches of float32 (B,C,H,W): torchvision crops, flips, applies TrivialAugment, normalises and erases."""
    transform = v2.Compose(
        [
            v2.RandomCrop(split.images.shape[2:], padding=augmentation.crop, padding_mode="reflect"),
            v2.RandomHorizontalFlip(),
            v2.TrivialAugmentWide(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean, std),
            v2.RandomErasing(augmentation.erasing, value="random"),
        ]
    )
    images = OneByOne(split, transform, pillow=pillow)
    return DataLoader(images, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
