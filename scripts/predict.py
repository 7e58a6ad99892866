"""Classify any image and see where the network looked: python scripts/predict.py checkpoint=RUN images=PATH."""

from pathlib import Path

from vit.command_line import predict

if __name__ == "__main__":
    predict(Path(__file__).resolve().parent.parent / "configs")
