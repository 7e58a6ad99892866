"""How the weights begin."""

from torch import nn


def initialize(network: nn.Module) -> None:
    """Truncated normal of deviation 0.02 for every matrix, zero for every bias. Dosovitskiy et al. 2021's code."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
