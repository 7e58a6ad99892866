"""How the weights begin."""

from torch import nn


def initialize(network: nn.Module) -> None:
    """Xavier uniform for every matrix (Glorot & Bengio 2010), zero for every bias, as the ViT authors' code begins."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
