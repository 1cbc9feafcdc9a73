"""verify: check that all ranks, on one or several machines, train the same policy, and measure how fast they are."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mjlab_dist.cli.console import make_console, waiting_for_ranks
from mjlab_dist.cli.run_flags import EVERYDAY, RunFlags, config_of, read_flags
from mjlab_dist.config.limits import PositiveInt
from mjlab_dist.errors import Exit, UserError
from mjlab_dist.runs.outputs import check_figure_file

if TYPE_CHECKING:
    from mjlab_dist.distributed.exchange import RankInfo
    from mjlab_dist.launch.verify.evidence import Check
    from mjlab_dist.launch.verify.speeds import Mode, Row, Speeds

# Number of iterations if --max-iterations is not given. With --until-return, the task's own number is used instead.
ITERATIONS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyFlags(RunFlags):
    """Train for a few iterations with one rank and with all, and check that all ranks train the same policy.

    The exit code is 1 if they do not. How fast the ranks are, and what limits them, is only printed.
    """

    scaling: bool = False
    """Also measure numbers of ranks in between, and strong scaling (the same number of envs in total)."""
    rounds: PositiveInt = 1
    """Number of runs with each number of ranks."""
    until_return: float | None = None
    """Train until the mean return reaches this value, and print the times."""
    plot: str | None = None
    """PNG file for plots of the speeds and of how the ranks spend time."""
    json: bool = False
    """Print one JSON object instead of the tables."""


def main(argv: Sequence[str], prog: str) -> None:
    """Run the checks, print the results, plot the speeds if requested, and exit with 1 if a check failed."""
    # Flags
    line = read_flags(argv, prog, VerifyFlags(), ("scaling", "rounds", "until_return", "plot", "json", *EVERYDAY))
    own, file = line.own, line.own.plot
    if own.until_return is not None and not math.isfinite(own.until_return):
        raise UserError(f"--until-return {own.until_return}: must be a number")
    length = {} if own.until_return is not None else {"max_iterations": ITERATIONS}
    config = config_of(line, total_timesteps=None, **length)

    from mjlab_dist.launch.verify.speeds import plot  # --help needs none of it
    from mjlab_dist.launch.verify.verification import verify

    if file is not None:
        check_figure_file("--plot", file, [".png"])
    # Runs
    with waiting_for_ranks(prog):
        report = verify(config, scaling=own.scaling, rounds=own.rounds, until_return=own.until_return)
    # Report
    if own.json:
        print(json.dumps({"task": config.task, "passed": report.passed, **dataclasses.asdict(report)}))
    else:
        console = make_console()
        console.print(_ranks(report.ranks))
        console.print(_checks(report.checks))
        _show_speeds(report.speeds, own.until_return, console)
    if file is not None:
        plot(report.speeds, config.task, file)
        print(f"Plot: {file}", file=sys.stderr)
    if not report.passed:
        sys.exit(Exit.FAILED)


def _ranks(ranks: Sequence[RankInfo]) -> Table:
    device = Column("device", overflow="fold")  # the UUID of a GPU is one long word
    table = Table("rank", "host", device, "memory", "envs", "env ids", "seed")
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            rank.host,
            f"{rank.visible or rank.device}, {rank.name}",
            f"{rank.memory_gb} GB",
            str(rank.num_envs),
            f"{rank.first_env_id} to {rank.first_env_id + rank.num_envs - 1}",
            str(rank.seed),
        )
    return table


def _checks(checks: Sequence[Check]) -> Table:
    table = Table("check", "figure", "")
    for check in checks:
        verdict = Text("pass", style="green") if check.passed else Text("FAIL", style="bold red")
        table.add_row(check.name, check.figure if check.passed else f"{check.figure}\n{check.why}", verdict)
    return table


def _show_speeds(speeds: dict[Mode, Speeds], until_return: float | None, console: Console) -> None:
    from mjlab_dist.launch.verify.speeds import Shares  # --help does not need it

    names = [field.name for field in dataclasses.fields(Shares)]
    reached = [] if until_return is None else [f"s to {until_return:g}"]
    table = Table(title="\nSpeed", title_justify="left")
    shares = Table(title="\nShares of the time", title_justify="left")
    for column in ("scaling", "ranks", "envs/rank", "steps/s", "speed-up", "efficiency", *reached):
        table.add_column(column, justify="right", no_wrap=column not in reached)
    for column in ("scaling", "ranks", *names):
        shares.add_column("comm." if column == "communication" else column, justify="right", no_wrap=True)
    for mode, found in speeds.items():
        for row in found.rows:
            table.add_row(mode, *_speed(row), *([_times(row)] if reached else []))
            shares.add_row(mode, str(row.num_ranks), *(f"{one:.0%}" for one in dataclasses.astuple(row.shares)))
    console.print(table)
    console.print(shares)
    for mode, found in speeds.items():
        for text in (f"\n{mode.capitalize()} scaling: {found.verdict}", *(f"- {limit}" for limit in found.limits)):
            console.print(text, soft_wrap=True)


def _speed(row: Row) -> tuple[str, ...]:
    speeds = [one.steps_per_s for one in row.rounds]
    spread = f" ±{(max(speeds) - min(speeds)) / 2 / row.steps_per_s:.0%}" if len(speeds) > 1 else ""
    speed = f"{row.steps_per_s:,.0f}{spread}"
    return str(row.num_ranks), str(row.num_envs), speed, f"{row.speed_up:.2f}", f"{row.efficiency:.0%}"


def _times(row: Row) -> str:
    return ", ".join("-" if one.reached is None else f"{one.reached.seconds:.3g}" for one in row.rounds)
