"""train: read a task's config and flags, and train."""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist import registry
from mjlab_dist.cli.help import Flag, HelpRequest, Page, flags_of, general_config, prefix_page, short_page, take_help
from mjlab_dist.cli.parsing import (
    COMPLETION,
    is_given,
    print_completion,
    refuse_unknown,
    split_task,
    take_flag,
    take_switch,
)
from mjlab_dist.cli.term_flags import parse_config
from mjlab_dist.config import TrainConfig
from mjlab_dist.config.alternatives import ALTERNATIVES, drop_replaced
from mjlab_dist.config.checks import validate
from mjlab_dist.distributed import outside_launcher, rank_from_environment
from mjlab_dist.errors import (
    BufferOverflowError,
    DiskFullError,
    Exit,
    RankError,
    TakenOverError,
    UserError,
    exit_code_of,
)
from mjlab_dist.imports import import_learner
from mjlab_dist.messages import Event, listening
from mjlab_dist.places import named, with_notes
from mjlab_dist.resuming import AUTO, check_same_run, find_named_run, is_complete
from mjlab_dist.run_dir import find_run_to_resume, read_config_file, to_yaml
from mjlab_dist.trust import PLACES, chosen_places
from mjlab_dist.wording import listed

HELP = Page(
    summary="Train a policy for a task.",
    own=(
        Flag(path="print_config", metavar="", text="Print the config as YAML and exit."),
        Flag(path="dry_run", metavar="", text="Print the run's devices, envs, memory and directories, and exit."),
        Flag(path="verbose", metavar="", text="Print each step of the set-up."),
    ),
)

if TYPE_CHECKING:
    from mjlab_dist.cli.console import EventPrinter


def main(argv: Sequence[str], prog: str) -> None:
    """Train a policy."""
    # Flags
    print_config, rest = take_switch(argv, "--print-config")
    only_plan, rest = take_switch(rest, "--dry-run")
    verbose, rest = take_switch(rest, "--verbose")
    shell, rest = take_flag(rest, COMPLETION)
    config = read_config(rest, prog, HELP)
    print_completion(config, shell)
    # Print the config or the plan, and train nothing
    if print_config:
        validate(config)
        print(to_yaml(config), end="")
        return
    if only_plan:
        _show_dry_run(config)
        return
    if take_flag(rest, "--resume")[0] == AUTO and config.resume and is_complete(Path(config.resume), config):
        if rank_from_environment(os.environ).is_main:
            print(f"Nothing is left to train: {config.resume} has done all {config.max_iterations} iterations.")
        return
    validate(config)  # before the imports, so that mistakes are reported at once

    from mjlab_dist.cli.console import TrainConsole
    from mjlab_dist.control import Control
    from mjlab_dist.launch.signals import stopping_on_signal, stopping_with_others
    from mjlab_dist.launch.train import train  # --help does not need it

    # Train
    console, control = TrainConsole(config.task, verbose=verbose), Control()
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


def read_config(argv: Sequence[str], prog: str, page: Page, **defaults: Any) -> TrainConfig:
    """Return the config of a task or of an earlier run, changed by the flags. Print help and exit if requested."""
    # Flags that are not fields of the config
    asked, rest = take_help(argv)
    file, rest = take_flag(rest, "--config")
    run, rest = take_flag(rest, "--resume")
    trust, rest = take_switch(rest, "--trust")
    task, flags = split_task(rest)
    uses_ssh = not is_given(flags, "--ssh-config")
    if asked and task is None and asked.prefix in registry.task_names():
        task, asked = asked.prefix, HelpRequest()  # train --help TASK
    # Config that the flags change: the config of a run, a file or the task
    with listening(lambda event: _printer().listen(event)):
        run_dir = None if run is None else _find_run(run, task, file, flags, prog)
    if run_dir is not None:
        default = read_config_file(run_dir, trust=trust, uses_ssh=uses_ssh)
        default = dataclasses.replace(default, resume=str(run_dir))
        registry.task_config(default.task)  # refuses a task that is not installed
    elif file is not None:
        default = read_config_file(Path(file), trust=trust, uses_ssh=uses_ssh)
        registry.task_config(default.task)  # refuses a task that is not installed
        if task not in (None, default.task):
            raise UserError(
                f"--config {file}: is a config of {default.task}, not of {task}; name {default.task}, or no task"
            )
    elif task is not None:
        default = dataclasses.replace(registry.task_config(task), resume=run)  # auto: no run has the name yet
    elif asked is not None:
        _print_general_help(asked, prog, page, **defaults)
        sys.exit(0)
    else:
        of_no_task = [arg for arg in rest if not arg.startswith("--env.")]
        refuse_unknown(of_no_task, [*flags_of(general_config()), *page.all_own], prog)
        raise UserError(f"no task is named; type {prog} TASK, with one of {listed(registry.task_names(), 'or')}")
    # Help
    command, default = f"{prog} {default.task}", dataclasses.replace(default, **defaults)
    if asked is not None and not asked.everything:
        short = asked.prefix is None
        print(short_page(page, command, default) if short else prefix_page(asked.prefix or "", command, default))
        sys.exit(0)
    # Other flags
    config = parse_config(default, ["--help-all"] if asked else flags, command, page.all_own)
    if config.task != default.task:
        raise UserError(f"--task {config.task}: the task is named first, without a flag; type {prog} {config.task}")
    if run == AUTO and run_dir is not None:
        check_same_run(config, default)
    _name_places(default, run_dir or file, flags, is_resumed=run_dir is not None)
    given = [name for name in ALTERNATIVES if is_given(flags, f"--{name.replace('_', '-')}")]
    return drop_replaced(dataclasses.replace(config, task=default.task), given)


def _name_places(read: TrainConfig, source: Path | str | None, flags: Sequence[str], *, is_resumed: bool) -> None:
    """Name the machines and directories that a config file chooses, before anything is started there."""
    given = [name for name in PLACES if is_given(flags, f"--{name.replace('_', '-')}")]
    places = chosen_places(read, [*given, "log_root"] if is_resumed else given) if source is not None else ""
    if places:
        _printer().listen({"kind": "status", "text": f"{source} sets {places}"})


def _printer() -> EventPrinter:
    from mjlab_dist.cli.console import EventPrinter, make_console  # imports rich

    # Standard error, because --print-config writes YAML to standard output
    return EventPrinter(make_console(stderr=True, soft_wrap=True))


def _find_run(run: str, task: str | None, file: str | None, flags: Sequence[str], prog: str) -> Path | None:
    """Return the directory of the run that ``--resume`` names; None if ``--resume auto`` finds no run."""
    log_root = take_flag(flags, "--log-root")[0] or TrainConfig.log_root
    if run == AUTO:
        if task is None:
            raise UserError(f"--resume {AUTO}: no task is named; type {prog} TASK --resume {AUTO}")
        return find_named_run(log_root, task, take_flag(flags, "--run-name")[0] or "")
    if file is not None:
        raise UserError(f"--resume {run}: takes the run's own config, not --config {file}; drop one of the two")
    if is_given(flags, "--init-from"):
        raise UserError(f"--resume {run}: continues from the run's own checkpoint; drop --init-from")
    return find_run_to_resume(log_root, task, run)


def _print_general_help(asked: HelpRequest, prog: str, page: Page, **defaults: Any) -> None:
    """Print the help of a command line that names no task."""
    if asked.everything or (asked.prefix or "").lstrip("-").partition(".")[0] == "env":
        what = "--help-all" if asked.everything else f"--help {asked.prefix}"
        raise UserError(f"{what}: these flags depend on the task; type {prog} TASK {what}")
    config = dataclasses.replace(general_config(), **defaults)
    if asked.prefix is not None:
        print(prefix_page(asked.prefix, f"{prog} TASK", config))
    else:
        print(short_page(page, prog, config, registry.task_names()))
