"""pytest plugin of the GPU report: it appends a line of JSON to a file when a test starts, and another when it ends.

The file therefore contains the results so far even if pytest is killed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

VARIABLE = "MJLAB_DIST_TEST_LOG"
"""Environment variable with the path of the file that the plugin writes."""


def pytest_runtest_logstart(nodeid: str) -> None:
    """Record that a test begins."""
    _write(nodeid, "started", 0.0, "")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome of a test. Record the outcome of its set-up or tear-down only if that did not pass."""
    if report.when == "call" or report.outcome != "passed":
        _write(report.nodeid, report.outcome, report.duration, _reason(report))


def _reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped or failed, in one line."""
    if report.passed:
        return ""
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash else report.longrepr).strip()
    return text.partition("\n")[0]


def _write(test: str, outcome: str, seconds: float, reason: str) -> None:
    row = {"test": test, "outcome": outcome, "seconds": seconds, "reason": reason}
    with Path(os.environ[VARIABLE]).open("a") as file:
        file.write(json.dumps(row) + "\n")
