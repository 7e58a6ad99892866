"""Measure this ViT beside other libraries': python scripts/benchmark.py output=FILE.json. --help lists every key."""

from pathlib import Path

from vit.command_line import benchmark

if __name__ == "__main__":
    benchmark(Path(__file__).resolve().parent.parent / "configs")
