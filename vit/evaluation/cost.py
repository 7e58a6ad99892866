"""What a network costs."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vit.model import ViT


def forward_flops(vit: ViT) -> int:
    """Floating-point operations of the matrix products of one image's forward pass; multiply and add count as two."""
    image = torch.zeros(1, *vit.patch_embedding.image_shape, device=vit.head.weight.device)
    # The plain kernel consists of products that the counter knows.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        vit(image)
    return counter.get_total_flops()


def parameter_count(vit: ViT) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in vit.parameters())
