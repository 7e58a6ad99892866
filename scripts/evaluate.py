"""Score a checkpoint on its test images: python scripts/evaluate.py checkpoint=RUN. --help lists every key."""

from pathlib import Path

from vit.command_line import evaluate

if __name__ == "__main__":
    evaluate(Path(__file__).resolve().parent.parent / "configs")
