"""Train a Vision Transformer: python scripts/train.py heads=8 data=shapes. --help lists every key."""

from pathlib import Path

from vit.command_line import train

if __name__ == "__main__":
    train(Path(__file__).resolve().parent.parent / "configs")
