"""train: a task's name, flags over its config, and the run."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Sequence
from pathlib import Path

from mjlab_dist import registry, runs
from mjlab_dist.cli.parsing import parse, split_task, take_flag
from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import RankError, UserError


def main(argv: Sequence[str], prog: str) -> None:
    """Train a policy.

    Raises:
        UserError: If the command line, or what it asks for, cannot be.
        RankError: If training failed; already shown.
    """
    config = _config(argv, prog)

    from mjlab_dist.cli.console import TrainConsole  # noqa: PLC0415
    from mjlab_dist.launch.train import train  # noqa: PLC0415 (--help needs none of it)

    console = TrainConsole(config.task, config.max_iterations)
    try:
        result = train(config, console.listen, console.started, console.stopped)
    except UserError:
        raise
    except RankError as error:
        console.failed(error.report, str(error))
        raise
    except Exception as error:
        console.failed(traceback.format_exc(), f"failed: {type(error).__name__}: {error}")
        raise RankError(str(error), 0) from error
    console.finished(Path(result.run_dir))


def _config(argv: Sequence[str], prog: str) -> TrainConfig:
    usage = f"usage: {prog} TASK [flags]\n       {prog} --config RUN/config.yaml [flags]\n\n" + _tasks(prog)
    file, rest = take_flag(argv, "--config")
    task, flags = split_task(rest, usage)
    if file is not None:
        default = runs.read_config(Path(file))
        registry.task_config(default.task)  # refuses a task that is not installed here
        if task not in (None, default.task):
            raise UserError(f"--config {file}: is of {default.task}, not of {task}; name {default.task}, or no task")
    elif task is None:
        raise UserError(f"no task is named; type {prog} TASK, with one of {', '.join(registry.task_names())}")
    else:
        default = registry.task_config(task)
    config = parse(TrainConfig, default, flags, f"{prog} {default.task}")
    if config.task != default.task:
        raise UserError(f"--task {config.task}: the task is named first, without a flag: {prog} {config.task}")
    return dataclasses.replace(config, task=default.task)


def _tasks(prog: str) -> str:
    names = registry.task_names()
    return f"Train a policy for a task: {', '.join(names)}.\nIts flags: {prog} {names[0] if names else 'TASK'} --help"
