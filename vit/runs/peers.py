"""Vision Transformers of other libraries, of the same architecture: pre-norm, GELU, ten classes.

Each is built in two ways: as it comes, and with explicit attention, where products, softmax and products again take
the place of a fused kernel. What no library can be told to leave out stays: see `PEERS`. And torchvision's way of
augmenting, an image at a time.
"""

import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset
from torchvision.models import VisionTransformer
from torchvision.transforms import v2

from vit.data import Augmentation, ImageData, Split
from vit.model import ViT

CLASSES = 10


class Architecture(NamedTuple):
    """What all of them have in common. Sides in pixels."""

    dim: int
    depth: int
    heads: int
    patch_size: int
    image_size: int
    mlp_ratio: float

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    def named(self, names: str) -> dict[str, Any]:
        """The first five, the number of classes and, if named too, the MLP's hidden width, as a library calls them."""
        hidden = int(self.dim * self.mlp_ratio)
        return dict(zip(names.split(), (*self[:5], CLASSES, hidden), strict=False))


def this_vit(size: Architecture, *, pool: str = "mean") -> ViT:
    return ViT(**size._asdict(), classes=CLASSES, pool=pool)


def timm_vit(size: Architecture, explicit: bool) -> nn.Module:
    from timm.layers import set_fused_attn, use_fused_attn
    from timm.models.vision_transformer import VisionTransformer

    sizes = size.named("embed_dim depth num_heads patch_size img_size num_classes")
    before = use_fused_attn()
    set_fused_attn(before and not explicit)  # read while layers are built
    try:
        return VisionTransformer(**sizes, mlp_ratio=size.mlp_ratio, global_pool="avg", class_token=False)
    finally:
        set_fused_attn(before)


def vit_pytorch_vit(size: Architecture, explicit: bool) -> nn.Module:
    from vit_pytorch import ViT

    sizes = size.named("dim depth heads patch_size image_size num_classes mlp_dim")
    return ViT(**sizes, dim_head=size.dim // size.heads, pool="mean")


def vit_pytorch_simple_vit(size: Architecture, explicit: bool) -> nn.Module:
    from vit_pytorch import SimpleViT

    sizes = size.named("dim depth heads patch_size image_size num_classes mlp_dim")
    return SimpleViT(**sizes, dim_head=size.dim // size.heads)


def torchvision_vit(size: Architecture, explicit: bool) -> nn.Module:
    sizes = size.named("hidden_dim num_layers num_heads patch_size image_size num_classes mlp_dim")
    network = VisionTransformer(**sizes)
    return Through(network, plain_kernel) if explicit else network


def transformers_vit(size: Architecture, explicit: bool) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    names = "hidden_size num_hidden_layers num_attention_heads patch_size image_size num_labels intermediate_size"
    attention: dict[str, Any] = {"attn_implementation": "eager"} if explicit else {}
    config = ViTConfig(**size.named(names), **attention)
    return Through(ViTForImageClassification(config), lambda network, images: network(images).logits)


class Through(nn.Module):
    """A network called in a way that gives logits: (B,C,H,W) → (B,K)."""

    def __init__(self, network: nn.Module, way: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.way = network, way

    def forward(self, images: Tensor) -> Tensor:
        return self.way(self.network, images)


def plain_kernel(network: nn.Module, images: Tensor) -> Tensor:
    """In the precision of its products: left alone, torch's plain kernel computes bf16 in float32, on CPUs too."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            return network(images)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


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


def leave_interrupts(worker: int) -> None:
    """Ctrl-C reaches a loader's workers too; the process that they serve ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def torchvision_loader(split: Split, augmentation: Augmentation, data: ImageData, *, pillow: bool) -> DataLoader:
    """Batches float32 (B,C,H,W) from a worker a core: torchvision crops, flips, applies TrivialAugment and erases."""
    crop = v2.RandomCrop(split.images.shape[2:], padding=augmentation.crop, padding_mode="reflect")
    before = [crop, v2.RandomHorizontalFlip(), v2.TrivialAugmentWide(), v2.ToImage()]
    after = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.mean, data.std)]
    transform = v2.Compose([*before, *after, v2.RandomErasing(augmentation.erasing, value="random")])
    images = OneByOne(split, transform, pillow=pillow)
    return DataLoader(
        images,
        data.batch_size,
        shuffle=True,
        num_workers=torch.get_num_threads(),
        persistent_workers=True,
        worker_init_fn=leave_interrupts,
    )
