"""verify: check that all ranks, on one or several machines, train the same policy."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mjlab_dist.cli.console import make_console
from mjlab_dist.cli.run_flags import EVERYDAY, RunFlags, config_of, read_flags
from mjlab_dist.cli.with_ranks import waiting_for_ranks
from mjlab_dist.errors import Exit

if TYPE_CHECKING:
    from mjlab_dist.verify.judge import Check, RankRow, VerifyReport

# Number of iterations if --max-iterations is not given
ITERATIONS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyFlags(RunFlags):
    """Train for a few iterations and check that all ranks train the same policy."""

    json: bool = False
    """Print one JSON object instead of the tables."""


def main(argv: Sequence[str], prog: str) -> None:
    """Run the checks, print the results, and exit with 1 if a check failed."""
    # Flags
    line = read_flags(argv, prog, VerifyFlags(), ("json", *EVERYDAY))
    config = config_of(line, max_iterations=ITERATIONS, total_timesteps=None)

    from mjlab_dist.verify.run import verify  # --help does not need it

    # Checks
    with waiting_for_ranks(prog):
        report = verify(config)
    # Report
    print(json.dumps(_plain(report))) if line.own.json else _show(report, make_console())
    if not report.passed:
        sys.exit(Exit.FAILED)


def _plain(report: VerifyReport) -> dict[str, object]:
    return {**dataclasses.asdict(report), "passed": report.passed}


def _show(report: VerifyReport, console: Console) -> None:
    console.print(_ranks(report.ranks))
    console.print(_checks(report.checks))


def _ranks(rows: Sequence[RankRow]) -> Table:
    table = Table("rank", "host", "device", "memory", "env ids", "seed", "EGL device", "rank time")
    for row in rows:
        table.add_row(
            str(row.rank),
            row.host,
            row.device,
            f"{row.memory_gb} GB",
            row.env_ids,
            str(row.seed),
            row.egl_device or "-",
            f"{1000 * row.rank_time_s:.0f} ms",
        )
    return table


def _checks(checks: Sequence[Check]) -> Table:
    table = Table("check", "figure", "")
    for check in checks:
        verdict = Text("pass", style="green") if check.passed else Text("FAIL", style="bold red")
        table.add_row(check.name, check.figure if check.passed else f"{check.figure}\n{check.why}", verdict)
    return table
