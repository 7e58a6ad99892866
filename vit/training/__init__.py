"""How the network learns, and the checkpoints that it leaves."""

from vit.training.checkpoint import Facts
from vit.training.pretrained import load

__all__ = ["Facts", "load"]
