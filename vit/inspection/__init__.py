"""Looking inside: maps (pure functions), pictures, and the callbacks that log them."""

from vit.inspection.attention_logger import AttentionLogger, Shown
from vit.inspection.data_logger import DataLogger
from vit.inspection.maps import readout_maps

__all__ = ["AttentionLogger", "DataLogger", "Shown", "readout_maps"]
