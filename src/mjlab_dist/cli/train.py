"""train: read a task's config and flags, and train."""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from mjlab_dist.cli.run_flags import EVERYDAY, RunFlags, config_of, read_flags
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import outside_launcher, rank_from_environment
from mjlab_dist.errors import (
    BufferOverflowError,
    DiskFullError,
    Exit,
    RankError,
    TakenOverError,
    UserError,
    exit_code_of,
    named,
    with_notes,
)
from mjlab_dist.imports import import_learner
from mjlab_dist.launch.budget import validate_training
from mjlab_dist.messages import Event, listening
from mjlab_dist.runs.run_dir import AUTO, is_complete, to_yaml

# Flags on the short page of help
ON_SHORT_PAGE = (
    *EVERYDAY,
    "print_config",
    "dry_run",
    "verbose",
    "run_name",
    "log_root",
    "resume",
    "init_from",
    "max_restarts",
    "logger",
    "wandb_project",
    "video_interval",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainFlags(RunFlags):
    """Train a policy for a task."""

    print_config: bool = False
    """Print the config as YAML and exit."""
    dry_run: bool = False
    """Print the run's devices, envs, memory and directories, and exit."""
    verbose: bool = False
    """Print each step of the set-up."""


def main(argv: Sequence[str], prog: str) -> None:
    """Train a policy."""
    # Flags
    line = read_flags(argv, prog, TrainFlags(), ON_SHORT_PAGE)
    config, own = config_of(line), line.own
    if _print_instead(config, own):
        return
    if line.values.get("resume") == AUTO and config.resume and is_complete(Path(config.resume), config):
        if rank_from_environment(os.environ).is_main:
            print(f"Nothing is left to train: {config.resume} has done all {config.max_iterations} iterations.")
        return
    validate_training(config)  # before the imports, so that mistakes are reported at once

    from mjlab_dist.cli.console import TrainConsole
    from mjlab_dist.distributed.heartbeat import Control
    from mjlab_dist.launch.signals import stopping_on_signal, stopping_with_others
    from mjlab_dist.launch.train import train  # --help does not need it

    # Train
    console, control = TrainConsole(config.task, verbose=own.verbose), Control()
    try:
        with stopping_with_others(control) if outside_launcher(os.environ) else stopping_on_signal(control, console):
            result = train(config, console.listen, console.started, control, own_process=True)
    except UserError:
        raise
    except RankError as error:
        console.failed(error.report, str(error))
        raise
    except (BufferOverflowError, DiskFullError, TakenOverError) as error:
        console.failed("", str(error))
        raise RankError(str(error), exit_code=error.exit_code) from error
    except Exception as error:
        console.failed(traceback.format_exc(), f"failed: {named(type(error).__name__, with_notes(error))}")
        raise RankError(str(error), 0, exit_code=exit_code_of(error)) from error
    # Result
    console.finished(result.run_dir, result.stopped)
    if result.stopped:
        sys.exit(Exit.RESUMABLE)


def _print_instead(config: TrainConfig, own: TrainFlags) -> bool:
    """Print the config or the plan if requested. Return whether this was all."""
    if own.print_config:
        validate_training(config)
        print(to_yaml(config), end="")
    elif own.dry_run:
        _show_dry_run(config)
    return own.print_config or own.dry_run


def _show_dry_run(config: TrainConfig) -> None:
    from rich.table import Table
    from rich.text import Text

    from mjlab_dist.cli.console import EventPrinter, make_console
    from mjlab_dist.launch.dry_run import describe, dry_run  # --help needs none of it

    import_learner()
    warnings: list[tuple[str, str]] = []
    with EventPrinter(make_console(stderr=True, soft_wrap=True)) as printer:

        def listen(event: Event) -> None:
            if event["kind"] == "warning":
                warnings.append(("Warning", event["text"]))
            else:
                printer.listen(event)

        with listening(listen):
            run = dry_run(config)
    table = Table.grid(padding=(0, 2))
    for row in [*describe(config, run), *warnings]:
        table.add_row(*map(Text, row))
    make_console().print(table)
    print("Nothing was started.")
