"""Training and checks of tasks from Python: in a script, a notebook or any thread.

Imports no heavy libraries before training starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mjlab_dist import registry
from mjlab_dist.check import NUM_CHECKED
from mjlab_dist.config import TrainConfig
from mjlab_dist.config.alternatives import drop_replaced
from mjlab_dist.config.entries import entry, replaced, without
from mjlab_dist.config.serialization import from_plain, paths, to_plain
from mjlab_dist.config.signatures import PARAMETERS, parameters_of
from mjlab_dist.errors import CheckError, UserError
from mjlab_dist.run_dir import find_run_to_resume, read_config_file
from mjlab_dist.wording import did_you_mean

if TYPE_CHECKING:
    from mjlab_dist.worker import RunResult


def train(task: str | TrainConfig, *, quiet: bool = False, **fields: Any) -> RunResult:
    """Train a policy and wait for the result, like the command ``train``.

    A single rank trains in this process, and its errors are raised unchanged. Several ranks train in separate
    processes, which have all ended when this function returns or raises. Ctrl-C raises KeyboardInterrupt.

    Args:
        task: Name of a task, or the config to start from.
        quiet: Print no progress.
        fields: Fields of :class:`~mjlab_dist.config.TrainConfig`, such as ``gpu_ids="all"``, ``cpu_ranks=2`` or
            ``num_envs=64``. Nested fields are named as on the command line, but with underscores:
            ``**{"agent.learning_rate": 1e-3, "env.rewards.smooth.weight": 2.0}``.

    Returns:
        The run directory, the last checkpoint and the last metrics.

    Raises:
        UserError: If a field is unknown, or the config cannot train here.
        RankError: If one of several ranks ended early. The error includes that rank's traceback.
    """
    # Config; mistakes are reported before anything heavy is imported
    config = configured(_start(task, fields), fields)

    from mjlab_dist.launch.train import train as launch  # noqa: PLC0415

    # Training
    if quiet:
        return launch(config, lambda _: None, lambda *_: None)
    from rich.console import Console  # noqa: PLC0415

    from mjlab_dist.cli.console import TrainConsole  # noqa: PLC0415

    # Plain lines, because a live display and the caller's own output would overwrite each other
    plain = Console(force_terminal=False, force_jupyter=False, highlight=False, soft_wrap=True)
    console = TrainConsole(config.task, plain)
    result = launch(config, console.listen, console.started)
    console.finished(result.run_dir, result.stopped)
    return result


def check_task(task: str | TrainConfig, **fields: Any) -> None:
    """Check a task on the CPU, like the command ``mjlab-dist check``. The random generators keep their states.

    A test of a package of tasks is one line: ``mjlab_dist.check_task("my-task")``.

    Args:
        task: Name of a task, or its config.
        fields: Fields of the config, as :func:`train` takes them. ``num_envs`` is 16 by default.

    Raises:
        UserError: If a field is unknown, or the config cannot train.
        CheckError: If the task fails checks. The message has one line for each, with the guilty term and the fix.
    """
    base = dataclasses.replace(_start(task, {}), num_envs=NUM_CHECKED, total_num_envs=None, total_timesteps=None)
    config = configured(base, fields)

    from mjlab_dist.check.run import check  # noqa: PLC0415

    failures = [f"{result.name}: {result.text}" for result in check(config) if not result.passed]
    if failures:
        raise CheckError("\n".join([f"{config.task} fails {len(failures)} checks", *failures]))


def _start(task: str | TrainConfig, fields: Mapping[str, Any]) -> TrainConfig:
    """Return the config before fields are applied: that of the task, or of the run to resume."""
    if not isinstance(task, str):
        return task
    config = registry.task_config(task)
    if fields.get("resume") is None:
        return config
    return read_config_file(find_run_to_resume(fields.get("log_root", config.log_root), task, fields["resume"]))


def configured(base: TrainConfig, fields: Mapping[str, Any]) -> TrainConfig:
    """Return a config with other values.

    Args:
        base: The config to start from.
        fields: Values by name; nested names have dots. A whole object, such as ``agent``, is set before its fields.

    Raises:
        UserError: If a field does not exist, its value has another type, or two fields exclude each other.
    """
    config = base
    for name in sorted(fields, key=lambda name: name.count(".")):
        config = _put(config, name, fields[name])
    return drop_replaced(from_plain(to_plain(config)), fields)


def _put(config: TrainConfig, name: str, value: Any) -> TrainConfig:
    """Set a value by its dotted name; None removes an entry of a mapping, such as a term."""
    path = name.split(".")
    *parent, last = path
    is_parameter = bool(parent) and parent[-1] in PARAMETERS
    known = [known for known, _ in paths(to_plain(config))]
    is_known = name in known or (is_parameter and last in parameters_of(entry(config, parent[:-1]), parent[-1]))
    if not is_known or name == "task":
        raise UserError(f"{name}: unknown field; {did_you_mean(name, known, 'see train --help')}")
    if value is None and not is_parameter and isinstance(entry(config, parent), Mapping):
        return without(config, path)
    return replaced(config, path, value)
