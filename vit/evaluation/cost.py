"""What a network costs."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from vit.model import ViT


def forward_flops(vit: ViT) -> int:
    """Floating-point operations of one image's forward pass, a multiplication and an addition counted as two."""
    image = torch.zeros(1, *vit.patch_embedding.image_shape, device=vit.head.weight.device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        vit.attend(image)  # in which attention's products are explicit, and so counted on every device
    return counter.get_total_flops()


def parameter_count(vit: ViT) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in vit.parameters())
