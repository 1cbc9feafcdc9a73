"""doctor: whether this machine can train."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from mjlab_dist.cli.console import make_console
from mjlab_dist.cli.parsing import parse
from mjlab_dist.errors import Exit

if TYPE_CHECKING:
    from mjlab_dist.machine.preflight import Finding

STYLES = {"ok": "green", "warning": "yellow", "fail": "bold red"}
"""Style of each result in the table."""


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Check whether this machine can train, and print how to fix what prevents it. Exit with 3 if a check fails."""

    log_root: str = "logs"
    """Directory that holds all runs."""
    json: bool = False
    """Print one JSON object instead of the table."""


def main(argv: Sequence[str], prog: str) -> None:
    """Run the checks, print the results, and exit with 3 if a check failed.

    Raises:
        UserError: If the command line is wrong.
    """
    config = parse(DoctorConfig, DoctorConfig(), argv, prog)

    from mjlab_dist.machine.doctor import examine  # noqa: PLC0415 (--help does not need it)

    findings = examine(Path(config.log_root), os.environ)
    num_failed = sum(finding.status == "fail" for finding in findings)
    if config.json:
        print(json.dumps({"checks": [dataclasses.asdict(f) for f in findings], "passed": num_failed == 0}))
    else:
        _show(findings, num_failed)
    if num_failed:
        sys.exit(Exit.PREFLIGHT)


def _show(findings: Sequence[Finding], num_failed: int) -> None:
    table = Table("check", "figure", "")
    for finding in findings:
        seen = Text(finding.figure)
        if finding.fix:
            seen.append(f"\nFix: {finding.fix}", style="cyan")
        word = "FAIL" if finding.status == "fail" else finding.status
        table.add_row(finding.name, seen, Text(word, style=STYLES[finding.status]))
    console = make_console()
    console.print(table)
    checks = "1 check fails" if num_failed == 1 else f"{num_failed} checks fail"
    console.print(f"{checks}: fix that before training." if num_failed else "This machine can train.")
