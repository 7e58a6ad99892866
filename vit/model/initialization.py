"""How the weights begin."""

from torch import nn


def initialize(network: nn.Module) -> None:
    """Normal of standard deviation 0.02 for every matrix, zero for every bias, as timm and DeiT begin."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
