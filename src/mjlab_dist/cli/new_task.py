"""new-task: create a task from an MJCF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mjlab_dist.cli.parsing import parse, split_task
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from mjlab_dist.new_task import NewTask


@dataclass(frozen=True, kw_only=True)
class NewTaskConfig:
    """Create a task from an MJCF: a config, terms, and a copy of the MJCF with its meshes.

    In a checkout of mjlab_dist the task is added to its tasks; elsewhere it is a new package.
    """

    mjcf: str = ""
    """The robot's MJCF."""
    goal: Literal["walk", "reach", "balance", "swing-up", "hold", "none"] | None = None
    """Goal of the task. walk: move forward. reach: move the end effector to targets. balance, swing-up: keep or bring
    the last link of a pendulum up. hold: move the joints to targets, or stand still. none: no goal; write your own
    rewards. Default: a guess from the MJCF."""
    dir: str | None = None
    """Directory to create a package in, even in a checkout of mjlab_dist. Default: the current directory."""


def main(argv: Sequence[str], prog: str) -> None:
    """Create a task, and print the commands to run next.

    Raises:
        UserError: If the command line is wrong, or the task cannot be created.
    """
    task, flags = split_task(argv)
    config = parse(NewTaskConfig, NewTaskConfig(), flags, f"{prog} {task or 'NAME'}")
    if task is None:
        raise UserError(f"the new task has no name; type {prog} my-robot --mjcf robot.xml")
    if not config.mjcf:
        raise UserError(f"--mjcf: is missing; type {prog} {task} --mjcf robot.xml")

    from mjlab_dist.new_task import create  # noqa: PLC0415 (--help does not need it)

    _show(create(task, Path(config.mjcf), None if config.dir is None else Path(config.dir), config.goal))


def _show(made: NewTask) -> None:
    robot = made.robot
    kind = "is fixed to the world"
    if robot.base:
        kind = f"{'has a floating base' if robot.base.is_free else 'moves along a plane'} (joint {robot.base.joint})"
    drives = "motors are added to its joints" if robot.motors else "its own actuators drive it"
    print(f"The robot {kind}; {drives}; {robot.control_hz:.4g} control steps per second.")
    if robot.stands is not None:
        falls = "" if robot.stands else ", in which it falls"
        print(f"It starts on bent legs, in a pose that was found by simulation{falls}.")
    print(f"The goal is {robot.goal}; other goals: --goal {'|'.join(one for one in robot.goals if one != robot.goal)}.")
    print(f"The files of {made.task}, to read and change:")
    for name, what in (
        ("config.py", "the simulation, observations, actions and rewards"),
        ("terms.py", "its own terms"),
        ("model.py", "the MJCF, with missing parts added"),
    ):
        if (made.package / name).is_file():
            print(f"  {_short(made.package / name)}  {what}")
    for file in made.apart:
        print(f"{file} is referred to by an absolute path, and is not copied.")
    print("Next:")
    if made.is_in_checkout:
        print(f"  uv run train {made.task}")
        print(f"  uv run play {made.task} --video {made.task}.mp4")
        return
    print(f"  uv pip install -e {_short(made.folder)}")
    print(f"  mjlab-dist train {made.task}")
    print(f"  mjlab-dist play {made.task} --video {made.task}.mp4")


def _short(path: Path) -> Path:
    """Return a path relative to the current directory if it is inside."""
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path
