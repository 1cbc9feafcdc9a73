"""train: a task's name, flags over its config, and the run."""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist import registry, runs
from mjlab_dist.budget import ALTERNATIVES, keep_given
from mjlab_dist.cli.parsing import is_given, parse, split_task, take_flag
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import outside_launcher
from mjlab_dist.errors import Exit, RankError, UserError, exit_code_of

if TYPE_CHECKING:
    pass


def main(argv: Sequence[str], prog: str) -> None:
    """Train a policy.

    Raises:
        UserError: If the command line, or what it asks for, cannot be.
        RankError: If training failed; already shown.
    """
    config = read_config(argv, prog, "Train a policy for a task")

    from mjlab_dist.cli.console import TrainConsole  # noqa: PLC0415
    from mjlab_dist.control import Control  # noqa: PLC0415
    from mjlab_dist.launch.signals import stopping_on_signal, stopping_with_others  # noqa: PLC0415
    from mjlab_dist.launch.train import train  # noqa: PLC0415 (--help needs none of it)

    console, control = TrainConsole(config.task), Control()
    try:
        with stopping_with_others(control) if outside_launcher(os.environ) else stopping_on_signal(control, console):
            result = train(config, console.listen, console.started, control, own_process=True)
    except UserError:
        raise
    except RankError as error:
        console.failed(error.report, str(error))
        raise
    except Exception as error:
        console.failed(traceback.format_exc(), f"failed: {type(error).__name__}: {error}")
        raise RankError(str(error), 0, exit_code=exit_code_of(error)) from error
    console.finished(result.run_dir, result.stopped)
    if result.stopped:
        sys.exit(Exit.RESUMABLE)


def read_config(argv: Sequence[str], prog: str, summary: str, **defaults: Any) -> TrainConfig:
    """Read a task's name, or an earlier run's file, and flags over its config. Prints help and exits if asked to.

    Args:
        argv: The command's arguments.
        prog: The command.
        summary: What it does, for help; names of tasks follow.
        defaults: Values of fields where no flag is given, whatever the task or the file says.

    Raises:
        UserError: If there is no such task or file, or a flag is wrong.
    """
    names = registry.task_names()
    usage = (
        f"usage: {prog} TASK [flags]\n       {prog} --config RUN/config.yaml [flags]\n\n"
        f"{summary}: {', '.join(names)}.\nIts flags: {prog} {names[0] if names else 'TASK'} --help"
    )
    file, rest = take_flag(argv, "--config")
    run, rest = take_flag(rest, "--resume")
    task, flags = split_task(rest, usage)
    if run is not None:
        if file is not None:
            raise UserError(f"--resume {run}: takes the run's own config, not --config {file}; drop one of the two")
        run_dir = runs.find_run_to_resume(take_flag(flags, "--log-root")[0] or TrainConfig.log_root, task, run)
        default = dataclasses.replace(runs.read_config(run_dir), resume=str(run_dir))
        registry.task_config(default.task)  # refuses a task that is not installed here
    elif file is not None:
        default = runs.read_config(Path(file))
        registry.task_config(default.task)  # refuses a task that is not installed here
        if task not in (None, default.task):
            raise UserError(f"--config {file}: is of {default.task}, not of {task}; name {default.task}, or no task")
    elif task is None:
        raise UserError(f"no task is named; type {prog} TASK, with one of {', '.join(names)}")
    else:
        default = registry.task_config(task)
    config = parse(TrainConfig, dataclasses.replace(default, **defaults), flags, f"{prog} {default.task}")
    if config.task != default.task:
        raise UserError(f"--task {config.task}: the task is named first, without a flag: {prog} {config.task}")
    given = [name for name in ALTERNATIVES if is_given(flags, f"--{name.replace('_', '-')}")]
    return keep_given(dataclasses.replace(config, task=default.task), given)
