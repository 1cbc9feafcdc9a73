"""Parts of messages: suggestions for mistyped names, lists in words, sizes. Imports the standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal

# Minimum similarity, from 0 to 1, between a mistyped name and a name that is suggested instead
MIN_SIMILARITY = 0.62

# Names that end with the typed text count as closest only if the text has at least this many characters
MIN_END = 3

# Maximum difference in similarity between the first suggestion and further suggestions
MAX_GAP = 0.1


def listed(items: Iterable[object], last: Literal["and", "or"] = "and") -> str:
    """Return items as a list in words.

    Example:
        >>> listed(["rows", "contacts", "pairs"])
        'rows, contacts and pairs'
    """
    texts = [str(item) for item in items]
    return f" {last} ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def nearest(name: str, known: Iterable[str], max_names: int = 1) -> list[str]:
    """Return the known names that are closest to a mistyped one, the closest first; none if all are very different.

    Names that start or end with the typed text count as closest. Dashes in front of names are ignored.
    """
    typed = name.lstrip("-")
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(typed)
    similarity: dict[str, float] = {}
    for candidate in known:
        bare = candidate.lstrip("-")
        matcher.set_seq1(bare)
        ratio = matcher.ratio()
        if typed and bare.startswith(typed):
            ratio = 1.0
        elif len(typed) >= MIN_END and bare.endswith((f"_{typed}", f"-{typed}", f".{typed}")):
            # Names that end with the text follow those that start with it; among them, shorter names come first
            ratio = 1.0 - MAX_GAP * (1.0 - ratio)
        similarity[candidate] = ratio
    least = max(MIN_SIMILARITY, max(similarity.values(), default=0.0) - MAX_GAP)
    close = [candidate for candidate in similarity if similarity[candidate] >= least]
    return sorted(close, key=lambda candidate: (-similarity[candidate], candidate))[:max_names]


def did_you_mean(name: str, known: Iterable[str], otherwise: str, max_names: int = 1) -> str:
    """Return a question that suggests the known names closest to a mistyped one."""
    near = nearest(name, known, max_names)
    return f"did you mean {listed(near, 'or')}?" if near else otherwise


def printable(text: str) -> str:
    r"""Return a text on one line: line breaks and control characters become escapes such as \n."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def byte_size(num_bytes: float) -> str:
    """Return a number of bytes in a decimal unit, such as 3.1 MB; the number is less than 1000, except for GB."""
    for unit, size, digits in (("bytes", 1.0, 0), ("kB", 1e3, 1), ("MB", 1e6, 1)):
        number = f"{num_bytes / size:.{digits}f}"
        if float(number) < 1000:
            return f"{number} {unit}"
    return f"{num_bytes / 1e9:.1f} GB"
