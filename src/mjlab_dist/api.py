"""Training, simulation and checks of tasks from Python: in a script, a notebook or any thread.

Imports no heavy libraries before training starts.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from mjlab_dist.authoring.check import NUM_CHECKED
from mjlab_dist.config import Algorithm, PlayConfig, TrainConfig, registry
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.config.trust import chosen_places
from mjlab_dist.errors import CheckError, UserError, counted
from mjlab_dist.imports import prepare_opengl
from mjlab_dist.messages import Listener, listening
from mjlab_dist.runs.run_dir import (
    AUTO,
    check_same_run,
    choose_checkpoint,
    find_any_run,
    find_named_run,
    find_run_to_resume,
    read_config_file,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mjlab_dist.launch.worker import RunResult
    from mjlab_dist.learn.networks import Policy
    from mjlab_dist.policies import PlayResult
    from mjlab_dist.simulate.envs import Envs


def train(
    task: str | TrainConfig,
    *,
    algorithm: Algorithm | None = None,
    quiet: bool = False,
    trust: bool = False,
    **fields: Any,
) -> RunResult:
    """Train a policy and wait for the result, like the command ``train``.

    A single rank trains in this process, and its errors are raised unchanged. Ranks train in separate processes if
    there are several of them, if ``max_restarts`` is set, or if this process cannot see the rank's GPU. All separate
    processes have ended when this function returns or raises. Ctrl-C raises KeyboardInterrupt.

    Args:
        task: Name of a task, or the config to start from.
        algorithm: Algorithm for a named task; its fields, ``agent.*``, start from the task's settings for it. Default:
            the task's own.
        quiet: Print no progress.
        trust: Allow the config of a resumed run to name functions of any module. Such a config can run any code: read
            it first.
        fields: Fields of :class:`~mjlab_dist.config.TrainConfig`, such as ``gpu_ids="all"``, ``cpu_ranks=2`` or
            ``num_envs=64``. Nested fields are named as on the command line, but with underscores:
            ``**{"agent.learning_rate": 1e-3, "env.rewards.smooth.weight": 2.0}``.

    Returns:
        The run directory, the last checkpoint and the last metrics.

    Raises:
        UserError: If a field is unknown, or the config is invalid or does not fit the machine.
        RankError: If a rank in a separate process ended early. The error includes that rank's traceback.
    """
    # Config; mistakes are reported before anything heavy is imported
    start = _start(task, fields, trust=trust, algorithm=algorithm)
    if fields.get("resume") == AUTO:
        fields = {**fields, "resume": start.resume or AUTO}
    config = with_values(start, fields)
    if start.resume is not None:
        check_same_run(config, start)

    from mjlab_dist.launch.train import train as launch

    # Training
    if quiet:
        return launch(config, lambda _: None, lambda *_: None)
    from mjlab_dist.cli.console import TrainConsole, make_console

    # Plain lines, because a live display and the caller's own output would overwrite each other
    plain = make_console(force_terminal=False, force_jupyter=False, soft_wrap=True)
    console = TrainConsole(config.task, plain)
    if "resume" in fields and (places := chosen_places(start, [*fields, "log_root"])):
        console.print_line(f"{fields['resume']} sets {places}")
    result = launch(config, console.listen, console.started)
    console.finished(result.run_dir, result.stopped)
    return result


def make(
    task: str | TrainConfig,
    *,
    variants: Sequence[Mapping[str, Any] | TrainConfig] = (),
    arrays: Literal["torch", "numpy"] = "torch",
    final_observations: bool = False,
    quiet: bool = False,
    **fields: Any,
) -> Envs:
    """Simulate a task without training. Its envs form one batch, which can span several devices and machines.

    With one device, this process simulates. With several devices, each has its own rank, which stays alive until the
    envs are closed. For a given seed, the results do not depend on the number of ranks.

    Args:
        task: Name of a task, or its config.
        variants: Configs to simulate side by side, for example for a sweep. Each is a mapping of fields to values, or a
            whole config. All configs get the same number of envs and the same random numbers. They may differ in
            everything except the widths of observations and the number of actions.
        arrays: Type of returned arrays: ``torch`` or ``numpy``.
        final_observations: Whether steps also return the observations before resets, for algorithms that bootstrap
            from the last state of an episode. If true, each step evaluates the observations twice.
        quiet: Print no warnings, and no progress of kernel compilation.
        fields: Fields of the config, as :func:`train` takes them, such as ``gpu_ids="all"``, ``cpu_ranks=2``,
            ``hosts=("localhost", "node7")``, ``total_num_envs=4096`` or ``seed=1``. ``num_envs`` is per rank. Fields
            for learning, such as those of ``agent``, have no effect.

    Returns:
        The envs. The object is also a context manager that closes the envs on exit.

    Raises:
        UserError: If a field is unknown, or the task cannot be simulated on this machine.
        RankError: If one of several ranks ended before it was ready.
    """
    config = with_values(_start(task, {}, trust=False), fields)
    configs = [one if isinstance(one, TrainConfig) else with_values(config, one) for one in variants]

    from mjlab_dist.simulate.make import make as make_envs

    listen = _printer(quiet=quiet)
    return make_envs(config, configs or [config], arrays, listen, final_observations=final_observations)


def _printer(*, quiet: bool) -> Listener:
    """Return a listener that prints plain lines, or, with ``quiet``, one that prints nothing."""
    if quiet:
        return lambda _: None
    from mjlab_dist.cli.console import EventPrinter, make_console

    return EventPrinter(make_console(force_terminal=False, force_jupyter=False, soft_wrap=True)).listen


def play(
    task: str,
    *,
    run: str | Path = "latest",
    checkpoint: str | None = None,
    seconds: float | None = 5.0,
    num_envs: int = 1,
    env: Sequence[int] = (0,),
    camera: str | None = None,
    width: int | None = None,
    height: int | None = None,
    disturbances: bool = True,
    seed: int = 1,
    log_root: str = "logs",
    quiet: bool = False,
    trust: bool = False,
    **fields: Any,
) -> PlayResult:
    """Play a trained policy on the CPU without exploration, and draw it, like the command ``play --video``.

    A notebook shows the result as a video, if it is the last value of a cell.

    Args:
        task: Name of a task.
        run: A run directory or its name, a pack, ``latest`` for the task's newest run, or ``pretrained`` for the policy
            in the task's package.
        checkpoint: ``latest`` (the default), ``best``, an iteration, or a checkpoint file.
        seconds: Simulated time to play, in s; None to play until every env has played one episode.
        num_envs: Number of envs to play in parallel.
        env: Envs to draw, side by side.
        camera: Name of the model's camera. Default: the first camera.
        width: Width of a frame in pixels, an even number. Default: 848.
        height: Height of a frame in pixels, an even number. Default: 480.
        disturbances: Keep the noise, delays, pushes and randomizations of training.
        seed: Seed of the start states.
        log_root: Directory of all runs.
        quiet: Print no progress and no warnings.
        trust: Allow the run's config to name functions of any module. Such a config can run any code: read it first.
        fields: Fields of the run's env to change:
            ``**{"env.commands.velocity.params.forward_m_s": (1.0, 1.0)}``.

    Returns:
        An object with ``frames``, (num_frames, height, width, 3) of uint8, their rate ``fps`` in 1/s, and ``returns``,
        ``lengths`` and ``outcomes`` of the episodes that ended.

    Raises:
        UserError: If the run or the checkpoint does not exist or is damaged, or a value is invalid.
    """
    if others := [name for name in fields if not name.startswith("env.")]:
        raise UserError(f"{others[0]}: play has no such parameter; of the run's config, it takes only fields of env")
    config = PlayConfig(
        run=str(run),
        checkpoint=checkpoint,
        seconds=seconds,
        num_envs=num_envs,
        env=tuple(env),
        camera=camera,
        width=width,
        height=height,
        disturbances=disturbances,
        seed=seed,
        log_root=log_root,
        trust=trust,
    )

    from mjlab_dist import policies  # slow to import

    with listening(_printer(quiet=quiet)):
        train_config, path = policies.resolve(task, config, keeps_frames=True)
        return policies.play(policies.with_changes(train_config, config, fields), path, config, keeps_frames=True)


def load_policy(
    run: str | Path,
    *,
    checkpoint: str = "latest",
    device: str = "cpu",
    log_root: str = "logs",
    trust: bool = False,
) -> Policy:
    """Load the policy of a run without building or simulating its task.

    Args:
        run: A run directory, a pack (a file that ``mjlab-dist pack`` writes), or ``latest`` for the newest run.
        checkpoint: ``latest``, ``best`` (the checkpoint with the highest mean return), or the name of a file in the
            run's checkpoints directory.
        device: ``cpu`` or ``cuda:<index>``.
        log_root: Directory of all runs. ``latest`` is the newest run in this directory.
        trust: Allow the run's config to name functions of any module. Such a config can run any code: read it first.

    Returns:
        A function from observations, (num_envs, width), to actions, (num_envs, num_actions), without exploration.

    Raises:
        UserError: If the run or the checkpoint does not exist or is damaged.
    """
    from mjlab_dist.learn.networks import Policy  # imports torch

    run_dir = find_any_run(log_root, str(run))
    config = read_config_file(run_dir, trust=trust, uses_ssh=False)
    return Policy(config, choose_checkpoint(run_dir, checkpoint), device)


def check_task(task: str | TrainConfig, **fields: Any) -> None:
    """Check a task on the CPU, like the command ``mjlab-dist check``.

    Afterwards, the global random generators have the same states as before.

    A package of tasks can test a task in one line: ``mjlab_dist.check_task("my-task")``.

    Args:
        task: Name of a task, or its config.
        fields: Fields of the config, as :func:`train` takes them. ``num_envs`` is 16 by default.

    Raises:
        UserError: If a field is unknown, or the config cannot train.
        CheckError: If the task fails checks. The message has one line per failed check, with the faulty term and the
            fix.
    """
    base = dataclasses.replace(
        _start(task, {}, trust=False), num_envs=NUM_CHECKED, total_num_envs=None, total_timesteps=None
    )
    config = with_values(base, fields)

    from mjlab_dist.authoring.check.run_checks import check

    failures = [f"{result.name}: {result.text}" for result in check(config) if not result.passed]
    if failures:
        raise CheckError("\n".join([f"{config.task} fails {counted(len(failures), 'check')}", *failures]))


def _start(
    task: str | TrainConfig, fields: Mapping[str, Any], *, trust: bool, algorithm: Algorithm | None = None
) -> TrainConfig:
    """Return the config to which the fields are applied: the config of the task, or of the run to resume."""
    if "mujoco" not in sys.modules and (text := prepare_opengl(os.environ)):
        warnings.warn(text, stacklevel=3)
    if isinstance(task, TrainConfig):
        return task
    if not isinstance(task, str):
        raise UserError(f"task {task!r}: takes the name of a task, or a TrainConfig")
    config = registry.task_config(task, algorithm)
    asked = with_values(config, {name: fields[name] for name in ("resume", "log_root", "run_name") if name in fields})
    if asked.resume is None:
        return config
    if asked.resume == AUTO:
        run_dir = find_named_run(asked.log_root, task, asked.run_name)
        if run_dir is None:
            return config
    elif "init_from" in fields:
        raise UserError(f"resume {asked.resume!r}: cannot be combined with init_from; drop one of the two")
    else:
        run_dir = find_run_to_resume(asked.log_root, task, asked.resume)
    started = read_config_file(run_dir, trust=trust, uses_ssh="ssh_config" not in fields)
    return dataclasses.replace(started, resume=str(run_dir) if asked.resume == AUTO else None)
