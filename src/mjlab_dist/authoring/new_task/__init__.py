"""Creation of a task from an MJCF, as files for the user to edit; a test of the new task, and a summary of it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import keyword
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mjlab_dist
from mjlab_dist.authoring.new_task.goals import Goal
from mjlab_dist.authoring.new_task.lacks import Lacks
from mjlab_dist.authoring.new_task.presets import matched_joints
from mjlab_dist.authoring.new_task.robot import Robot, examine
from mjlab_dist.authoring.new_task.robot_files import copy_files, find_files, load, parse
from mjlab_dist.authoring.new_task.source import (
    STUB_SOURCE,
    Names,
    entry_point,
    function_name,
    package_source,
    project_source,
)
from mjlab_dist.authoring.new_task.source.config import config_source
from mjlab_dist.authoring.new_task.source.model import model_source
from mjlab_dist.authoring.new_task.source.terms import terms_source
from mjlab_dist.authoring.new_task.urdf import convert
from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.errors import UserError, counted, describe, listed
from mjlab_dist.messages import emit

if TYPE_CHECKING:
    from mjlab_dist.authoring.check.task_checks import Check

# Folder of the tasks in a checkout of this project
TASKS = Path("tasks", "mjlab_dist_tasks")

# Maximum number of times that a task is tested again with larger buffers
MAX_RETRIES = 3

# Header of the section of a pyproject.toml that lists tasks
HEADER = f'[project.entry-points."{registry.GROUP}"]'

# Number of envs that are stepped
NUM_TRIAL_ENVS = 8


@dataclass(frozen=True, kw_only=True)
class NewTask:
    """A created task."""

    # Name of the task
    task: str
    # Folder of its files: the package, or the project that contains the package
    folder: Path
    # Folder of config.py
    package: Path
    # Whether the task was added to a checkout of this project; otherwise it is a package to install
    is_in_checkout: bool
    # The robot in the MJCF
    robot: Robot
    # Files that the MJCF names by an absolute path. They were not copied.
    apart: list[Path]
    # Config of the task; None if the task's config.py cannot be imported
    config: TrainConfig | None
    # What is wrong with the task, in one line; empty if the task is ready
    problem: str


def create(
    task: str, mjcf: Path, directory: Path | None, *, goal: Goal | None = None, floating: bool = False, robot: str = ""
) -> NewTask:
    """Create a task, and test it on the CPU.

    In a checkout of this project, the task is added to the tasks of the project. Elsewhere, or with ``directory``, the
    task becomes a separate package. If the test fails, the files of the task are kept, so that the user can edit them.
    """
    # Names and folder of the task
    module = _module_name(task)
    checkout = find_checkout(Path.cwd()) if directory is None else None
    folder = (checkout / TASKS if checkout else directory or Path()) / module
    _refuse_taken(task, module, folder, checkout)
    if not mjcf.is_file():
        raise UserError(f"--mjcf {mjcf}: {'is a directory' if mjcf.is_dir() else 'there is no such file'}")
    emit("status", text=f"Reading {mjcf}...")

    from mjlab_dist.sim.quiet import quiet  # imports MuJoCo

    with tempfile.TemporaryDirectory(prefix="new-task-") as scratch, quiet():
        # Find the files of the MJCF, and examine the robot
        flag = f"--mjcf {mjcf}"
        files = find_files(_as_mjcf(flag, mjcf, Path(scratch), floating=floating))
        found = examine(files.to_copy[0], flag, goal, names=(robot, mjcf.stem, mjcf.absolute().parent.name))

        # Write the files of the task, and test the task
        with _made_at_once(folder) as made:
            package = made if checkout else made / module
            package.mkdir(exist_ok=True)
            full_name = f"{TASKS.name}.{module}" if checkout else module
            file = copy_files(files, package)
            names = Names(task=task, module=full_name, function=function_name(module), file=file)
            load(f"{flag}: a copy of it", package / file)
            found, config, problem = _write_and_try(names, found, package, None if checkout else made)
    if checkout:
        _register(checkout / "pyproject.toml", names, folder)
    return NewTask(
        task=task,
        folder=folder,
        package=folder if checkout else folder / module,
        is_in_checkout=checkout is not None,
        robot=found,
        apart=files.apart,
        config=config,
        problem=problem,
    )


def _as_mjcf(flag: str, file: Path, scratch: Path, *, floating: bool) -> Path:
    """Return an MJCF unchanged, or convert a URDF to an MJCF in the folder ``scratch`` and return that."""
    tree = parse(file)
    if tree.tag == "robot":
        return convert(flag, file, tree, scratch, floating=floating)
    if floating:
        raise UserError(f"{flag}: is an MJCF, but --floating needs a URDF; add <freejoint/> to the base body instead")
    return file


def _write_and_try(
    names: Names, robot: Robot, package: Path, project: Path | None
) -> tuple[Robot, TrainConfig | None, str]:
    """Write the files of a task and test the task. Repeat this with larger buffers if its buffers are too small.

    Returns:
        The robot, with the sizes of the buffers; the config; and a line about what is wrong with the task, which is
        empty if the task is ready.
    """
    for is_last in (False,) * MAX_RETRIES + (True,):
        _write_files(names, robot, package, project)
        config, failed = try_task(names, package.parent)
        # If the buffers are too small, constraints are dropped, and other checks can fail because of this. Therefore,
        # enlarge the buffers before any other failure is reported.
        sizes = {name: size for check in failed for name, size in check.sizes.items()}
        if is_last or not sizes:
            return robot, config, failed[0].text if failed else ""
        robot = dataclasses.replace(robot, **sizes)
        emit("status", text=f"Trying again with njmax {robot.njmax} and nconmax {robot.nconmax}...")
    raise AssertionError


def _write_files(names: Names, robot: Robot, package: Path, project: Path | None) -> None:
    """Write the Python files of a task and, if it is a separate package, the files of its project."""
    (package / "__init__.py").write_text(package_source(names), "utf-8")
    (package / "config.py").write_text(config_source(names, robot), "utf-8")
    (package / "terms.py").write_text(terms_source(names, robot), "utf-8")
    if robot.lacks:
        (package / "model.py").write_text(model_source(names, robot), "utf-8")
    if project is not None:
        (project / "pyproject.toml").write_text(project_source(names), "utf-8")
        if robot.lacks:
            # A type stub for MuJoCo, which has no types, so that type checkers accept the task's model.py
            stub = project / "typings" / "mujoco" / "__init__.pyi"
            stub.parent.mkdir(parents=True, exist_ok=True)
            stub.write_text(STUB_SOURCE, "utf-8")


def find_checkout(directory: Path) -> Path | None:
    """Return the checkout that contains a directory and the code that is running; None if there is none."""
    running = Path(mjlab_dist.__file__).resolve().parents[1]
    for parent in (directory.resolve(), *directory.resolve().parents):
        if (parent / "src") == running and (parent / TASKS).is_dir() and (parent / "pyproject.toml").is_file():
            return parent
    return None


def _module_name(task: str) -> str:
    module = task.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", task) or keyword.iskeyword(module):
        raise UserError(
            f"{task}: is not a valid task name; use lowercase letters, digits and hyphens, start with a letter, and "
            "avoid keywords of Python; for example, my-robot"
        )
    return module


def _refuse_taken(task: str, module: str, folder: Path, checkout: Path | None) -> None:
    registered = (checkout / "pyproject.toml").read_text("utf-8") if checkout else ""
    if task in registry.task_names() or re.search(rf"^{re.escape(task)}\s*=.*\.config:", registered, re.MULTILINE):
        raise UserError(f"{task}: a task with this name exists; choose another name")
    if folder.exists():
        raise UserError(f"{task}: {folder} already exists; choose another name, or remove it")
    if checkout is None and importlib.util.find_spec(module) is not None:
        raise UserError(f"{task}: a Python module {module} already exists; choose another name")


@contextlib.contextmanager
def _made_at_once(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder for the caller to fill. Move it to ``folder`` afterward, or remove it on failure.

    Parents of ``folder`` that do not exist are created.
    """
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        around = Path(tempfile.mkdtemp(prefix=".new-task-", dir=folder.parent))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}; choose another --dir") from error
    try:
        made = around / folder.name
        made.mkdir()
        yield made
        made.rename(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(around, ignore_errors=True)
        for parent in missing:
            with contextlib.suppress(OSError):  # after a success, the parents are not empty, and rmdir fails
                parent.rmdir()


def _register(project: Path, names: Names, folder: Path) -> None:
    """Add a task to the pyproject.toml of a checkout, after the other tasks."""
    head, header, tail = project.read_text("utf-8").partition(HEADER)
    section, blank, rest = tail.partition("\n\n")
    try:
        if not header:
            raise UserError(f"{project}: has no section {HEADER}; add this section")
        copy = project.with_suffix(".toml.new")
        copy.write_text(f"{head}{header}{section.rstrip()}\n{entry_point(names)}{blank or chr(10)}{rest}", "utf-8")
        copy.replace(project)
    except OSError as error:
        shutil.rmtree(folder)
        raise UserError(f"{project}: cannot be written: {error.strerror}") from error
    except UserError:
        shutil.rmtree(folder)
        raise


def try_task(names: Names, parent: Path) -> tuple[TrainConfig | None, list[Check]]:
    """Import the config of a task, build its envs on the CPU, and step them.

    Return the config, or None if it cannot be imported, and the failed checks.
    """
    from mjlab_dist.authoring.check.run_checks import try_out
    from mjlab_dist.authoring.check.task_checks import failed  # imports torch

    with importable(names.module, parent):
        try:
            config: TrainConfig = getattr(importlib.import_module(f"{names.module}.config"), names.function)()
        except Exception as error:  # noqa: BLE001 (the config is code, which may raise anything)
            return None, [failed("config", describe(error, names.module))]
        try:
            checks = try_out(dataclasses.replace(config, num_envs=NUM_TRIAL_ENVS, total_num_envs=None))
            return config, [check for check in checks if not check.passed]
        except UserError as error:
            return config, [failed("config", str(error))]


@contextlib.contextmanager
def importable(module: str, parent: Path) -> Iterator[None]:
    """Allow Python to import a package that is not installed, without writing bytecode to its folder."""
    outer, _, _ = module.rpartition(".")
    path = importlib.import_module(outer).__path__ if outer else sys.path
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    path.append(str(parent))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        path.remove(str(parent))
        sys.dont_write_bytecode = writes
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{module}.")]:
            del sys.modules[name]


def found(robot: Robot) -> str:
    """Return what the MJCF contains, in one line."""
    kinds = dict.fromkeys(block.kind for block in robot.blocks.values())
    base = "a fixed base"
    if robot.base is not None:
        kind = "a floating base" if robot.base.is_free else "a base that moves in a plane"
        base = f"{kind} (joint {robot.base.joint})"
    parts = [
        base,
        counted(len(robot.joints), "driven joint") if robot.joints else "no driven joints",
        _actuators(robot, listed(kinds)),
        "no keyframe" if robot.keyframe is None or robot.lacks.home else f"the keyframe {robot.keyframe}",
    ]
    return listed(parts)


def guessed(robot: Robot) -> list[str]:
    """Return the guesses in the config, one per line, each with the place to change it."""
    others = " or ".join(f"--goal {goal}" for goal in robot.goals if goal != robot.goal)
    lines = [f"its goal is {robot.goal}" + (f" (or: {others})" if others else "")]
    lines += _several(robot)
    if robot.gait is not None:
        gait = "trots" if len(robot.gait.feet.ids) == 4 else "walks"
        strides = f"{robot.gait.frequency_hz:.2g} strides per second"
        lines.append(f"it {gait} at up to {robot.gait.forward_m_s[1]} m/s, with {strides} (commands, sensors)")
    elif robot.base is not None and robot.goal == "walk":
        lines.append(f"it can move at up to {robot.base.speed_m_s:.2g} m/s (rewards)")
    if robot.motors and (robot.preset is None or robot.preset.motors.keys() != robot.motors.keys()):
        lines.append("its motors have gains and torques that suit the inertia and weight on each joint (sim.actuators)")
    if "wheels" in robot.motors:
        wheels = matched_joints(robot.motors["wheels"], robot.joints)
        lines.append(f"its wheels are {listed(wheels)}, and actions set their velocities (actions)")
    if robot.stands is not None:
        falls = "" if robot.stands else "; it falls in this pose"
        lines.append(f"it starts on bent legs, in a pose that was found by simulation{falls}")
    elif robot.keyframe is None:
        lines.append("it starts in the reference positions of its joints (sim.keyframe)")
    if "hold" not in robot.goals:
        lines.append(f"no goal suits the ball joint {listed(robot.observed.balls)}: add a reward for it (rewards)")
    lines += [f"actions do not move the joint {joint}, because {reason}" for joint, reason in robot.jams.items()]
    return [*lines, *_changes(robot.lacks)]


def first_flags(config: TrainConfig) -> list[str]:
    """Return the three flags to try first, with the values of the config.

    The flags set a number in the first (most important) reward, the scale of the actions, and the stiffness of added
    motors. Without added motors, the third flag sets the weight of the last reward.
    """
    env = config.env
    flags: dict[str, object] = {}
    for name, term in list(env.rewards.items())[:1]:
        numbers = {f"params.{key}": value for key, value in term.params.items() if isinstance(value, float)}
        key, value = next(iter(numbers.items()), ("weight", term.weight))
        flags[f"rewards.{name}.{key}"] = value
    for name, block in list(env.actions.items())[:1]:
        flags[f"actions.{name}.scale"] = block.scale
    for name, motor in list(env.sim.actuators.items())[:1]:
        gain = "stiffness" if motor.kind == "position" else "damping"
        flags[f"sim.actuators.{name}.{gain}"] = getattr(motor, gain)
    if not env.sim.actuators:
        for name, term in list(env.rewards.items())[-1:]:
            flags[f"rewards.{name}.weight"] = term.weight
    return [
        f"--env.{path.replace('_', '-')} {value}" for path, value in flags.items() if isinstance(value, float | int)
    ]


def _several(robot: Robot) -> list[str]:
    """Return the guesses about which robots and objects are driven, one per line."""
    lines: list[str] = []
    if len(robot.trees.driven) > 1:
        whose = "" if robot.base is None else f"; the goal is for the robot whose base has the joint {robot.base.joint}"
        lines.append(f"one policy drives {listed(robot.trees.driven)}{whose} (actions)")
    if robot.trees.idle:
        lines.append(f"the policy drives {listed(robot.trees.driven)}, and not {listed(robot.trees.idle)} (actions)")
    return lines


def _changes(lacks: Lacks) -> list[str]:
    """Return what model.py changes and adds, one change per line."""
    lines: list[str] = []
    lines += [
        f"{one} and {other} touch, so contacts between them are ignored (model.py)" for one, other in lacks.touching
    ]
    if lacks.mocap_welds:
        lines.append("its motors, instead of its mocap body, move it (model.py)")
    if lacks.weightless:
        lines.append("gravity is compensated, because the robot sags with torque motors (model.py)")
    added = [
        text
        for text, is_added in (
            ("a ground", bool(lacks.ground)),
            ("a floor for videos", bool(lacks.backdrop)),
            ("a camera", bool(lacks.camera)),
            ("a light", bool(lacks.light)),
            ("a site at its end effector", lacks.end_site is not None),
            ("a body that shows the target", bool(lacks.target)),
            (f"names for {counted(len(lacks.joint_names), 'joint')}", bool(lacks.joint_names)),
            (f"names for {counted(len(lacks.actuator_names), 'actuator')}", bool(lacks.actuator_names)),
            (f"names for {counted(len(lacks.geom_names), 'foot', 'feet')}", bool(lacks.geom_names)),
        )
        if is_added
    ]
    if added:
        lines.append(f"it needs {listed(added)} (model.py)")
    return lines


def _actuators(robot: Robot, kinds: str) -> str:
    if robot.preset is not None:
        return f"the published motors of the {robot.preset.label}"
    return "no actuators" if robot.motors else f"actuators ({kinds})"
