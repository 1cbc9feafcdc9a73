"""train: a task's name, flags over its config, and the run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mjlab_dist import registry, runs
from mjlab_dist.budget import ALTERNATIVES, keep_given
from mjlab_dist.cli.parsing import is_given, parse, split_task, take_flag
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import outside_launcher
from mjlab_dist.errors import RankError, UserError


def main(argv: Sequence[str], prog: str) -> None:
    """Train a policy.

    Raises:
        UserError: If the command line, or what it asks for, cannot be.
        RankError: If training failed; already shown.
    """
    config = read_config(argv, prog, "Train a policy for a task")

    from mjlab_dist.cli.console import TrainConsole  # noqa: PLC0415
    from mjlab_dist.launch.processes import ending_on_signal  # noqa: PLC0415
    from mjlab_dist.launch.train import train  # noqa: PLC0415 (--help needs none of it)

    console = TrainConsole(config.task)
    try:
        # Where another launcher started the ranks, it ends them too.
        with contextlib.nullcontext() if outside_launcher(os.environ) else ending_on_signal(console.stopped):
            result = train(config, console.listen, console.started)
    except UserError:
        raise
    except RankError as error:
        console.failed(error.report, str(error))
        raise
    except Exception as error:
        console.failed(traceback.format_exc(), f"failed: {type(error).__name__}: {error}")
        raise RankError(str(error), 0) from error
    console.finished(result.run_dir)


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
    task, flags = split_task(rest, usage)
    if file is not None:
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
