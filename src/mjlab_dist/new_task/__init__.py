"""Creation of a task from an MJCF, as files for the user to edit."""

from __future__ import annotations

import contextlib
import importlib.util
import keyword
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mjlab_dist
from mjlab_dist import registry
from mjlab_dist.errors import UserError
from mjlab_dist.new_task.files import copy_files, find_files
from mjlab_dist.new_task.goals import Goal
from mjlab_dist.new_task.loading import load
from mjlab_dist.new_task.robot import Robot, examine
from mjlab_dist.new_task.source import (
    STUB_SOURCE,
    Names,
    config_source,
    entry_point,
    function_name,
    model_source,
    package_source,
    project_source,
    terms_source,
)

TASKS = Path("tasks", "mjlab_dist_tasks")
"""Folder of the tasks in a checkout of this project."""

HEADER = f'[project.entry-points."{registry.GROUP}"]'
"""Header of the tasks in a pyproject.toml."""


@dataclass(frozen=True, kw_only=True)
class NewTask:
    """A created task."""

    task: str
    """Name of the task."""
    folder: Path
    """Folder of its files: the package, or the project that contains the package."""
    package: Path
    """Folder of config.py."""
    is_in_checkout: bool
    """Whether the task was added to a checkout of this project; otherwise it is a package to install."""
    robot: Robot
    """The robot in the MJCF."""
    apart: list[Path]
    """Files that the MJCF names by an absolute path, which were not copied."""


def create(task: str, mjcf: Path, directory: Path | None, goal: Goal | None = None) -> NewTask:
    """Create a task.

    In a checkout of this project the task is added to its tasks. Elsewhere, or with ``directory``, it becomes a package
    of its own.

    Args:
        task: Name of the task: lowercase letters, digits and hyphens.
        mjcf: The MJCF of the robot.
        directory: Directory in which the package is created; the current directory by default.
        goal: Goal of the task; by default it is guessed.

    Raises:
        UserError: If the task cannot be created; in that case nothing is written.
    """
    # Place and names
    module = _module_name(task)
    checkout = find_checkout(Path.cwd()) if directory is None else None
    base = checkout / TASKS if checkout else directory or Path()
    folder = base / module
    _refuse_taken(task, module, folder, checkout)
    if not base.is_dir():
        raise UserError(f"--dir {base}: there is no such directory; create it first")
    if not mjcf.is_file():
        raise UserError(f"--mjcf {mjcf}: there is no such file")

    # Files of the MJCF, and the robot in it
    files, apart = find_files(mjcf)
    robot = examine(mjcf, goal=goal)

    # Files of the task
    with _made_at_once(folder) as made:
        package = made if checkout else made / module
        package.mkdir(exist_ok=True)
        names = Names(
            task=task,
            module=f"{TASKS.name}.{module}" if checkout else module,
            function=function_name(module),
            file=copy_files(files, package),
        )
        load(f"--mjcf {mjcf}: a copy of it", package / names.file)
        (package / "__init__.py").write_text(package_source(names))
        (package / "config.py").write_text(config_source(names, robot))
        (package / "terms.py").write_text(terms_source(names, robot))
        if robot.lacks:
            (package / "model.py").write_text(model_source(names, robot))
        if not checkout:
            (made / "pyproject.toml").write_text(project_source(names))
            if robot.lacks:
                _write_stub(made)
    if checkout:
        _register(checkout / "pyproject.toml", names, folder)
    return NewTask(
        task=task,
        folder=folder,
        package=folder if checkout else folder / module,
        is_in_checkout=checkout is not None,
        robot=robot,
        apart=apart,
    )


def find_checkout(directory: Path) -> Path | None:
    """Return the checkout of this project that contains a directory, if this code runs from it.

    Args:
        directory: Any directory.
    """
    running = Path(mjlab_dist.__file__).resolve().parents[1]
    for parent in (directory.resolve(), *directory.resolve().parents):
        if (parent / "src") == running and (parent / TASKS).is_dir() and (parent / "pyproject.toml").is_file():
            return parent
    return None


def _module_name(task: str) -> str:
    module = task.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", task) or keyword.iskeyword(module):
        raise UserError(f"{task}: is not a task name; use lowercase letters, digits and hyphens, such as my-robot")
    return module


def _refuse_taken(task: str, module: str, folder: Path, checkout: Path | None) -> None:
    registered = (checkout / "pyproject.toml").read_text() if checkout else ""
    if task in registry.task_names() or re.search(rf"^{re.escape(task)}\s*=.*\.config:", registered, re.MULTILINE):
        raise UserError(f"{task}: a task with this name exists; choose another name")
    if folder.exists():
        raise UserError(f"{task}: {folder} already exists; choose another name, or remove it")
    if checkout is None and importlib.util.find_spec(module) is not None:
        raise UserError(f"{task}: a Python module {module} already exists; choose another name")


def _write_stub(project: Path) -> None:
    """Write a stub for MuJoCo, which the module model of the task imports."""
    stub = project / "typings" / "mujoco" / "__init__.pyi"
    stub.parent.mkdir(parents=True)
    stub.write_text(STUB_SOURCE)


@contextlib.contextmanager
def _made_at_once(folder: Path) -> Iterator[Path]:
    """Create a folder under a temporary name, rename it when it is complete, and remove it on failure.

    Raises:
        UserError: If it cannot be written.
    """
    try:
        made = Path(tempfile.mkdtemp(prefix=".new-task-", dir=folder.parent))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}; choose another --dir") from error
    try:
        yield made
        made.chmod(0o755)
        made.rename(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _register(project: Path, names: Names, folder: Path) -> None:
    """Add a task to the pyproject.toml of a checkout, after the other tasks."""
    head, header, tail = project.read_text().partition(HEADER)
    section, blank, rest = tail.partition("\n\n")
    try:
        if not header:
            raise UserError(f"{project}: has no {HEADER}; add it")
        copy = project.with_suffix(".toml.new")
        copy.write_text(f"{head}{header}{section.rstrip()}\n{entry_point(names)}{blank or chr(10)}{rest}")
        copy.replace(project)
    except OSError as error:
        shutil.rmtree(folder)
        raise UserError(f"{project}: cannot be written: {error.strerror}") from error
    except UserError:
        shutil.rmtree(folder)
        raise
