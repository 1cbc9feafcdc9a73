"""scaling: measure how training scales with the number of ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mjlab_dist.cli.console import make_console
from mjlab_dist.cli.help import EVERYDAY, Flag, Page
from mjlab_dist.cli.parsing import positive_number, take_flag, take_switch
from mjlab_dist.cli.train import read_config
from mjlab_dist.cli.with_ranks import waiting_for_ranks
from mjlab_dist.errors import UserError
from mjlab_dist.figure_files import check_figure_file

if TYPE_CHECKING:
    from mjlab_dist.scaling.figures import Row
    from mjlab_dist.scaling.run import Scaling

# Number of iterations if --max-iterations is not given. With --until-return, the task's own number is used instead.
ITERATIONS = 12

# Number of rounds if --rounds is not given
ROUNDS = 2

HELP = Page(
    summary="Train with 1, 2, 4, ... ranks for a few iterations. Print the speeds, how the ranks spend their time, and "
    "what limits the speeds.",
    own=(
        Flag(path="rounds", metavar="INT", default=str(ROUNDS), text="Number of runs with each number of ranks."),
        Flag(path="until_return", metavar="FLOAT", text="Train until the mean return reaches this value."),
        Flag(path="plot", metavar="FILE", text="PNG file for plots of the speeds and of how the ranks spend time."),
        Flag(path="json", metavar="", text="Print one JSON object instead of the tables."),
    ),
    groups={
        "Run": ("rounds", "until_return", "plot", "json", "config", "seed"),
        "Devices": ("gpu_ids", "cpu_ranks", "hosts"),
        **{title: EVERYDAY[title] for title in ("Budget", "Synchronizing")},
    },
)


def main(argv: Sequence[str], prog: str) -> None:
    """Measure how training scales, print the results, and plot them if requested."""
    # Flags
    as_json, rest = take_switch(argv, "--json")
    rounds, rest = take_flag(rest, "--rounds")
    until, rest = take_flag(rest, "--until-return")
    file, rest = take_flag(rest, "--plot")
    num_rounds = ROUNDS if rounds is None else positive_number("--rounds", rounds)
    until_return = None if until is None else _return(until)
    length = {} if until_return is not None else {"max_iterations": ITERATIONS}
    config = read_config(rest, prog, HELP, total_timesteps=None, **length)

    from mjlab_dist.scaling.plot import plot  # --help needs none of it
    from mjlab_dist.scaling.run import measure

    if file is not None:
        check_figure_file("--plot", file, [".png"])

    # Runs
    with waiting_for_ranks(prog):
        scaling = measure(config, num_rounds, until_return)

    # Report
    if as_json:
        print(json.dumps({"task": config.task, **_plain(scaling)}))
    else:
        _show(scaling, until_return, make_console())
    if file is not None:
        plot(scaling.modes, f"{config.task}, {num_rounds} rounds", file)
        print(f"Plot: {file}", file=sys.stderr)


def _return(text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise UserError(f"--until-return {text}: must be a number")


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
