"""What a check of this machine found."""

from __future__ import annotations

import enum
from dataclasses import dataclass

GB = 10**9


class Status(enum.StrEnum):
    """The result of a check."""

    OK = "ok"
    """Nothing is wrong."""
    WARNING = "warning"
    """Runs work, but slower, or without something that was asked for, or they may end early."""
    FAIL = "fail"
    """Runs fail."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found."""

    name: str
    """Name of the thing that was checked."""
    figure: str
    """What was measured, for people."""
    status: Status = Status.OK
    """The result."""
    fix: str = ""
    """What to do; empty if the status is ok."""


def shown_size(num_bytes: float) -> str:
    """Return a number of bytes for people.

    Args:
        num_bytes: Number of bytes.
    """
    return f"{num_bytes / GB:.1f} GB" if num_bytes >= GB else f"{num_bytes / 10**6:.1f} MB"


def dotted(version: tuple[int, int]) -> str:
    """Return a version for people.

    Args:
        version: Major and minor number.
    """
    return ".".join(map(str, version))
