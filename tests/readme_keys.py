"""Writes the README's table of keys from the one in vit/settings.py: python -m tests.readme_keys."""

import typing
from pathlib import Path

from vit.settings import TrainSettings, describe, show

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"


def keys_table() -> str:
    hints = typing.get_type_hints(TrainSettings)
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in TrainSettings.fields().items():
        key = field.metadata["key"]
        lines.append(f"| `{name}` | `{show(field.default)}` | {key.meaning} ({describe(key, hints[field.name])}) |")
    return "\n".join(lines) + "\n"


def with_table(readme: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    return before + BEGIN + "\n" + keys_table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
