"""check: check a task, for authors of tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from mjlab_dist.check import NUM_CHECKED
from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.cli.help import Page
from mjlab_dist.cli.train import read_config
from mjlab_dist.errors import Exit
from mjlab_dist.imports import import_learner
from mjlab_dist.machine.preflight import require_kernel_cache
from mjlab_dist.messages import listening

if TYPE_CHECKING:
    from mjlab_dist.check.checks import Check

HELP = Page(
    summary="Check a task on the CPU: terms, physics, NaN, seeds, resuming, host syncs, replays and buffers.",
    groups={"Run": ("config", "num_envs", "seed")},
)


def main(argv: Sequence[str], prog: str) -> None:
    """Run the checks, print a line for each, and exit with 1 if one failed."""
    config = read_config(argv, prog, HELP, num_envs=NUM_CHECKED, total_num_envs=None, total_timesteps=None)

    require_kernel_cache(os.environ)
    import_learner()
    from mjlab_dist.check.run import check  # --help does not need it

    console, results = make_console(soft_wrap=True), []
    with EventPrinter(console) as printer, listening(printer.listen):
        for result in check(config):
            console.print(_line(result))
            results.append(result)
    if not all(result.passed for result in results):
        sys.exit(Exit.FAILED)


def _line(result: Check) -> Text:
    verdict = ("pass", "green") if result.passed else ("FAIL", "bold red")
    return Text.assemble(f"{result.name:<12}", verdict, f"  {result.text}")
