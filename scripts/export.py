"""Write a network for use elsewhere: python scripts/export.py checkpoint=RUN format=onnx."""

from pathlib import Path

from vit.command_line import export

if __name__ == "__main__":
    export(Path(__file__).resolve().parent.parent / "configs")
