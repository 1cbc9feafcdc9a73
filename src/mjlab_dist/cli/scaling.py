"""scaling: measure how training scales with the number of ranks."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mjlab_dist.cli.console import make_console
from mjlab_dist.cli.run_flags import EVERYDAY, RunFlags, config_of, read_flags
from mjlab_dist.cli.with_ranks import waiting_for_ranks
from mjlab_dist.config.limits import PositiveInt
from mjlab_dist.errors import UserError
from mjlab_dist.figure_files import check_figure_file

if TYPE_CHECKING:
    from mjlab_dist.scaling.figures import Row
    from mjlab_dist.scaling.run import Scaling

# Number of iterations if --max-iterations is not given. With --until-return, the task's own number is used instead.
ITERATIONS = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalingFlags(RunFlags):
    """Train with 1, 2, 4, ... ranks for a few iterations.

    The speeds are printed, and how the ranks spend their time, and what limits the speeds.
    """

    rounds: PositiveInt = 2
    """Number of runs with each number of ranks."""
    until_return: float | None = None
    """Train until the mean return reaches this value."""
    plot: str | None = None
    """PNG file for plots of the speeds and of how the ranks spend time."""
    json: bool = False
    """Print one JSON object instead of the tables."""


def main(argv: Sequence[str], prog: str) -> None:
    """Measure how training scales, print the results, and plot them if requested."""
    # Flags
    line = read_flags(argv, prog, ScalingFlags(), ("rounds", "until_return", "plot", "json", *EVERYDAY))
    own, file = line.own, line.own.plot
    if own.until_return is not None and not math.isfinite(own.until_return):
        raise UserError(f"--until-return {own.until_return}: must be a number")
    length = {} if own.until_return is not None else {"max_iterations": ITERATIONS}
    config = config_of(line, total_timesteps=None, **length)

    from mjlab_dist.scaling.plot import plot  # --help needs none of it
    from mjlab_dist.scaling.run import measure

    if file is not None:
        check_figure_file("--plot", file, [".png"])

    # Runs
    with waiting_for_ranks(prog):
        scaling = measure(config, own.rounds, own.until_return)

    # Report
    if own.json:
        print(json.dumps({"task": config.task, **_plain(scaling)}))
    else:
        _show(scaling, own.until_return, make_console())
    if file is not None:
        plot(scaling.modes, f"{config.task}, {own.rounds} rounds", file)
        print(f"Plot: {file}", file=sys.stderr)


def _plain(scaling: Scaling) -> dict[str, object]:
    return {
        mode: {
            "rows": [
                {
                    **dataclasses.asdict(row),
                    "num_envs": row.num_envs,
                    "steps_per_s": row.steps_per_s,
                    "shares": dataclasses.asdict(row.shares),
                }
                for row in rows
            ],
            "limits": scaling.limits[mode],
        }
        for mode, rows in scaling.modes.items()
    }


def _show(scaling: Scaling, until_return: float | None, console: Console) -> None:
    from mjlab_dist.scaling.figures import Shares  # --help does not need it

    # Speeds
    reached = [] if until_return is None else [f"seconds to {until_return:g}"]
    speeds = Table(title="\nSpeed", title_justify="left")
    for column in ("scaling", "ranks", "envs per rank", "steps/s", "speed-up", "efficiency", *reached):
        speeds.add_column(column, justify="right", no_wrap=column == "steps/s")
    for mode, rows in scaling.modes.items():
        for row in rows:
            times = [", ".join(f"{one.seconds:.3g}" for one in row.reached) or "-"] if reached else []
            speeds.add_row(mode, *_speed(row), *times)
    console.print(speeds)
    # Shares of the time
    shares = Table(title="\nShares of the time", title_justify="left")
    for column in ("scaling", "ranks", *(field.name for field in dataclasses.fields(Shares))):
        shares.add_column("comm." if column == "communication" else column, justify="right", no_wrap=True)
    for mode, rows in scaling.modes.items():
        for row in rows:
            shares.add_row(mode, str(row.num_ranks), *(f"{one:.0%}" for one in dataclasses.astuple(row.shares)))
    console.print(shares)
    # Limits
    for mode, limits in scaling.limits.items():
        console.print(f"\nLimits of {mode} scaling:")
        for limit in limits:
            console.print(f"- {limit}", soft_wrap=True)


def _speed(row: Row) -> tuple[str, ...]:
    speeds = [one.steps_per_s for one in row.rounds]
    spread = f" ({min(speeds):,.0f} to {max(speeds):,.0f})" if len(speeds) > 1 else ""
    speed = f"{row.steps_per_s:,.0f}{spread}"
    return str(row.num_ranks), str(row.num_envs), speed, f"{row.speed_up:.2f}", f"{row.efficiency:.0%}"
