"""check: check a task, for authors of tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from mjlab_dist.authoring.check import NUM_CHECKED
from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.cli.run_flags import RunFlags, config_of, read_flags
from mjlab_dist.errors import Exit
from mjlab_dist.imports import import_learner
from mjlab_dist.machine.preflight import require_kernel_cache
from mjlab_dist.messages import listening

if TYPE_CHECKING:
    from mjlab_dist.authoring.check.task_checks import Check


class CheckFlags(RunFlags):
    """Check a task on the CPU: terms, physics, NaN, seeds, resuming, host syncs, replays and buffers."""


def main(argv: Sequence[str], prog: str) -> None:
    """Run the checks, print a line for each, and exit with 1 if one failed."""
    line = read_flags(argv, prog, CheckFlags(), ("config", "num_envs", "seed"))
    config = config_of(line, num_envs=NUM_CHECKED, total_num_envs=None, total_timesteps=None)

    require_kernel_cache(os.environ)
    import_learner()
    from mjlab_dist.authoring.check.run_checks import check  # --help does not need it

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
