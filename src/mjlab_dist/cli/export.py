"""export: write a trained policy as files that run without this package."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.cli.flags import by_flag, known_task, parse, split_task
from mjlab_dist.cli.play import chosen_run
from mjlab_dist.config import ExportConfig, PlayConfig
from mjlab_dist.errors import CheckError
from mjlab_dist.imports import import_learner
from mjlab_dist.messages import listening


def main(argv: Sequence[str], prog: str) -> None:
    """Export a policy, and print its inputs and outputs. Exit with 1 if a file does not act like the policy."""
    # Flags
    task, flags = split_task(argv)
    config = parse(ExportConfig(), by_flag(flags), f"{prog} {task or 'TASK'}")
    task = known_task(task, prog)

    from mjlab_dist.policies.export import check, export  # --help does not need it

    check(config)

    # Export
    console = make_console(soft_wrap=True)
    same = ("run", "checkpoint", "seed", "log_root", "trust")
    chosen = PlayConfig(**{name: getattr(config, name) for name in same})
    with EventPrinter(console) as printer, listening(printer.listen):
        train_config, checkpoint = chosen_run(task, chosen, prog, ())
        import_learner()
        console.print(f"Exporting {checkpoint}")
        try:
            exported = export(train_config, checkpoint, config)
        except CheckError as error:
            print(f"{prog}: {error}", file=sys.stderr)
            sys.exit(error.exit_code)

    # Report
    made = exported.made
    _show(made.description, console)
    compared = f"outputs of the files and of the policy for {made.num_checked} observations"
    print(f"Largest difference between the {compared}: {made.max_difference:.1e}")
    here = Path.cwd()
    for file in exported.files:
        print(f"Wrote {file.relative_to(here) if file.is_relative_to(here) else file}")


def _show(description: Mapping[str, Any], console: Console) -> None:
    table = Table("observation", "columns of obs", "scale", "history")
    for one in description["observations"]:
        table.add_row(one["name"], _where(one["columns"]), f"{one['scale']:g}", str(one["history"]))
    console.print(table)
    table = Table("action", "scale", "offset", "clip")
    for one in description["actions"]:
        clip = "" if one["clip"] is None else "{:g} to {:g}".format(*one["clip"])
        table.add_row(one["name"], f"{one['scale']:g}", f"{one['offset']:g}", clip)
    console.print(table)


def _where(columns: tuple[int, int] | None) -> str:
    if columns is None:
        return "in state"
    first, last = columns[0], columns[1] - 1
    return f"{first}" if first == last else f"{first} to {last}"
