"""list-tasks: print the installed tasks, one per line."""

from __future__ import annotations

from collections.abc import Sequence

from mjlab_dist.config import registry
from mjlab_dist.errors import UserError


def main(argv: Sequence[str], prog: str) -> None:
    """Print every installed task with its summary."""
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: {prog}\n\nPrint the installed tasks, one per line.")
        return
    if argv:
        raise UserError(f"{argv[0]}: {prog} takes no arguments")
    summaries = registry.task_summaries()
    if not summaries:
        raise UserError(
            f"no task is installed: the entry point group {registry.GROUP} has no entries; install mjlab-dist again"
        )
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        print(f"{name:<{width}}  {summary}")
