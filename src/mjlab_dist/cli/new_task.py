"""new-task: create a task from an MJCF."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.cli.flags import by_flag, parse, split_name
from mjlab_dist.errors import Exit, UserError
from mjlab_dist.messages import listening

if TYPE_CHECKING:
    from mjlab_dist.authoring.new_task import NewTask


@dataclass(frozen=True, kw_only=True)
class NewTaskConfig:
    """Create a task from an MJCF or URDF: a config, terms, and a copy of the file with its meshes.

    In a checkout of mjlab_dist, the task is added to the tasks of the checkout; elsewhere, it becomes a new package.
    """

    mjcf: str = ""
    """The robot's MJCF or URDF."""
    robot: str = ""
    """Name of a robot, such as unitree_go2 or go2; replaces --mjcf. The package mujoco-menagerie downloads the robot's
    files, or robot_descriptions, which has URDFs."""
    robots_dir: str | None = None
    """Directory that contains the files of --robot, such as a checkout of MuJoCo Menagerie. With this flag, nothing is
    downloaded."""
    floating: bool = False
    """Add a free joint to the root link of a URDF, for a robot that walks."""
    goal: Literal["walk", "reach", "balance", "swing-up", "hold", "none"] | None = None
    """Goal of the task. walk: move forward. reach: move the end effector to targets. balance: keep the last link of a
    pendulum upright. swing-up: bring this link upright. hold: move the joints to targets, or, if the robot is not fixed
    to the world, stand still. none: no goal; write your own rewards. Default: a guess from the MJCF."""
    dir: str | None = None
    """Directory to create a package in, even in a checkout of mjlab_dist. It is created if it does not exist.
    Default: the current directory."""


def main(argv: Sequence[str], prog: str) -> None:
    """Create a task, and print the commands to run next."""
    task, flags = split_name(argv)
    config = parse(NewTaskConfig(), by_flag(flags), f"{prog} {task or 'NAME'}")
    if task is None:
        raise UserError(f"the new task has no name; type {prog} my-robot --mjcf robot.xml")
    if config.mjcf and config.robot:
        raise UserError(f"--mjcf {config.mjcf}: cannot be combined with --robot {config.robot}; drop one of the two")
    if not config.mjcf and not config.robot:
        raise UserError(f"--mjcf: is missing; type {prog} {task} --mjcf robot.xml, or add --robot NAME")
    if config.robots_dir is not None and not config.robot:
        raise UserError(f"--robots-dir {config.robots_dir}: needs a robot to search for; add --robot NAME")

    from mjlab_dist.authoring.new_task import create  # --help does not need it
    from mjlab_dist.authoring.new_task.robot_files import find_robot

    with EventPrinter(make_console(soft_wrap=True)) as printer, listening(printer.listen):
        directory = None if config.dir is None else Path(config.dir)
        robots = None if config.robots_dir is None else Path(config.robots_dir)
        file = find_robot(config.robot, robots) if config.robot else Path(config.mjcf)
        made = create(task, file, directory, goal=config.goal, floating=config.floating, robot=config.robot)
    _show(made)
    if made.problem:
        where = f"its files are in {_short(made.package)}"
        print(f"{prog}: {task} is not ready: {made.problem}; {where}", file=sys.stderr)
        sys.exit(Exit.FAILED)


def _show(made: NewTask) -> None:
    """Print what was found and guessed, the files, and the commands to run next."""
    from mjlab_dist.authoring.new_task import first_flags, found, guessed

    # The robot
    print(f"Found: {found(made.robot)}.")
    print("Guessed:")
    for line in guessed(made.robot):
        print(f"  {line}")
    for file in made.apart:
        print(f"{file} is not copied, because the MJCF refers to it by an absolute path.")
    # The files
    print("Files to read and change:")
    for name, what in (
        ("config.py", "the simulation, observations, actions and rewards"),
        ("terms.py", "the task's own terms"),
        ("model.py", "the MJCF, with missing parts added"),
    ):
        if (made.package / name).is_file():
            print(f"  {_short(made.package / name)}  {what}")
    if made.config is not None:
        print("Flags to try first:")
        for flag in first_flags(made.config):
            print(f"  {flag}")
    # The commands
    run = "uv run " if made.is_in_checkout else "mjlab-dist "
    install = [] if made.is_in_checkout else [f"uv pip install -e {shlex.quote(str(_short(made.folder)))}"]
    if made.problem:
        print("After a change, check the task with:")
        commands = [*install, f"{'uv run ' if made.is_in_checkout else ''}mjlab-dist check {made.task}"]
    else:
        print(f"{made.task} is ready. Next:")
        commands = [*install, f"{run}train {made.task}", f"{run}play {made.task} --video {made.task}.mp4"]
    for command in commands:
        print(f"  {command}")


def _short(path: Path) -> Path:
    """Return a path, relative to the current directory if the path is inside it."""
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path
