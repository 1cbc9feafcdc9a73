"""This machine: its devices, the checks before a run, the doctor, and control groups. Here: what a check finds."""

from __future__ import annotations

import enum
from dataclasses import dataclass

GB = 10**9


class Status(enum.StrEnum):
    """The result of a check."""

    # Nothing is wrong
    OK = "ok"
    # Runs work, but they may be slower, lack a feature that was requested, or end early
    WARNING = "warning"
    # Runs fail
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Finding of a check."""

    # Name of the thing that was checked
    name: str
    # Measured value, as text for the user
    figure: str
    status: Status = Status.OK
    # The fix; empty if the status is ok
    fix: str = ""
