"""The troubleshooting page quotes messages that are in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

HOLE = "<>"
"""Replaces a value in a message."""


def test_every_quoted_message_starts_like_one_in_the_source() -> None:
    quotes = re.findall(r"^- \*\*`(.+?)`\*\*:", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(quotes) >= 25
    assert len(set(quotes)) == len(quotes)
    messages = {text for file in (ROOT / "src").rglob("*.py") for text in _messages(ast.parse(file.read_text()))}
    starts = {quote: re.sub(r"<[A-Z]+>", HOLE, quote) for quote in quotes}
    assert not [quote for quote, start in starts.items() if not any(text.startswith(start) for text in messages)]


def _messages(tree: ast.Module) -> Iterator[str]:
    """Yield strings and f-strings, but no docstrings. HOLE replaces each value in an f-string."""
    nodes = list(ast.walk(tree))
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    left_out |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
