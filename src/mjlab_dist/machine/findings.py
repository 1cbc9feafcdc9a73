"""Findings of the checks of a machine."""

from __future__ import annotations

import enum
from dataclasses import dataclass

GB = 10**9


class Status(enum.StrEnum):
    """The result of a check."""

    OK = "ok"
    """Nothing is wrong."""
    WARNING = "warning"
    """Runs work, but they may be slower, lack a feature that was requested, or end early."""
    FAIL = "fail"
    """Runs fail."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Finding of a check."""

    name: str
    """Name of the thing that was checked."""
    figure: str
    """Measured value, as text for the user."""
    status: Status = Status.OK
    """The result."""
    fix: str = ""
    """The fix; empty if the status is ok."""


def dotted(version: tuple[int, int]) -> str:
    """Format a version, such as 12.4."""
    return ".".join(map(str, version))
