"""Looking inside: maps (pure functions), pictures, and the callback that logs them."""

from vit.inspection.attention_logger import AttentionLogger
from vit.inspection.maps import readout_maps

__all__ = ["AttentionLogger", "readout_maps"]
