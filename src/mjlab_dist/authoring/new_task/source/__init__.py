"""Text of the files of a new task: Python source code in the style of the formatter, with rounded numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable

# Maximum length of a line
WIDTH = 120


def text(value: str) -> str:
    """Return a string literal."""
    return json.dumps(value, ensure_ascii=False)


def tuple_lines(start: str, items: tuple[str, ...], end: str, indent: int) -> list[str]:
    """Return the lines of a tuple of strings: one line if it is short enough, else one per item."""
    inside = ", ".join(map(text, items)) + ("," if len(items) == 1 else "")
    line = f"{start}({inside}){end}"
    if indent + len(line) <= WIDTH:
        return [line]
    return [f"{start}(", *(f"    {text(item)}," for item in items), f"){end}"]


def joined(lines: Iterable[str]) -> str:
    """Join lines."""
    return "\n".join(lines)


def indented(lines: Iterable[str], spaces: int) -> str:
    """Join lines and indent those that are not empty."""
    return "\n".join(" " * spaces + line if line else "" for line in lines)


def rounded(number: float) -> float:
    """Return a number rounded to two significant digits."""
    return float(f"{number:.2g}")


def rounded_up(length_m: float) -> float:
    """Return a length in m, rounded up to the next centimeter."""
    return round(length_m + 0.005, 2)
