"""Refuse a config from a file if the config could run any code. The check imports no modules that the config names."""

from __future__ import annotations

import dataclasses
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import EntryPoints, entry_points, packages_distributions
from pathlib import Path
from typing import Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.entries import entries
from mjlab_dist.config.signatures import PARAMETERS, definition, find_module, is_function, makes
from mjlab_dist.errors import UserError
from mjlab_dist.registry import GROUP

OURS = ("mjlab_dist.mdp", "mjlab_dist.distributed.synchronizer")
"""Modules of this package whose functions are meant for configs. Functions of its other modules may run programs."""

INSTALLED = {"site-packages", "dist-packages"}
"""Names of directories of installed packages."""

SSH_DIRS = ("~/.ssh", "/etc/ssh")
"""A config may name only SSH config files in these directories, because SSH config files can run programs."""


def refuse_foreign(config: TrainConfig, file: Path, *, uses_ssh: bool) -> None:
    """Raise if a config that was read from a file can run code that is not trusted.

    The functions and classes that the config names must be from this package, from a distribution that provides tasks,
    or from the user's own modules. The user's own modules are those that are neither installed nor part of Python.

    Args:
        config: The config.
        file: The file that the config was read from.
        uses_ssh: Whether the config's ``ssh_config`` will be used.

    Raises:
        UserError: If the config names any other function, or an SSH config file that will be used and is not in SSH's
            own directories.
    """
    tasks = entry_points(group=GROUP)
    for name, reference in _references(config):
        fault = _fault(reference, file, tasks)
        if fault is not None:
            raise UserError(f"{name} {reference}: {fault}; check it, and add --trust to allow it")
    if uses_ssh and config.ssh_config is not None and not _is_within(config.ssh_config, SSH_DIRS):
        raise UserError(f"ssh_config {config.ssh_config}: can run any program; check it, and add --trust to allow it")


def _references(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the paths and values of all fields that name functions."""
    is_config = dataclasses.is_dataclass(value)
    for name, part in entries(value).items():
        if is_config and name in PARAMETERS:
            continue  # plain values, which name no functions
        if is_config and isinstance(part, str) and (name in {"func", "synchronizer"} or _names_model(name, part)):
            yield prefix + name, part
        if is_config and name == "logger":
            yield from ((prefix + name, logger) for logger in part)
        yield from _references(part, f"{prefix}{name}.")


def _names_model(name: str, value: str) -> bool:
    return name == "model" and is_function(value)


def _fault(reference: str, file: Path, tasks: EntryPoints) -> str | None:
    """Return why a function is not trusted; None if it is trusted, or if the text names no function."""
    module, colon, name = reference.partition(":")
    if not colon:
        return None
    if find_module(module) is None:
        return f"there is no module {module} here"
    first, *attributes = name.split(".")
    foreign = "is not from mjlab_dist, a task package or your own project, and could run any code"
    if not _is_trusted(module, file, tasks):
        return foreign
    found = definition(module, first)
    if found is not None and not _is_trusted(found[0], file, tasks):
        return foreign  # such as a library's function that the module imports
    is_known = found is not None or (not attributes and makes(module, first))
    if not is_known or any(part.startswith("_") for part in attributes):
        return f"{module} defines no such function or class"
    return None


def _is_trusted(module: str, file: Path, tasks: EntryPoints) -> bool:
    """Return whether a module is trusted: it is meant for configs, or belongs to a task package or to the user."""
    package = module.partition(".")[0]
    if package == "mjlab_dist":
        return any(module == one or module.startswith(f"{one}.") for one in OURS)
    if package in {point.module.partition(".")[0] for point in tasks}:
        return True
    spec = find_module(module)
    if spec is None or not spec.has_location or spec.origin is None:
        return False
    if not is_installed(spec.origin):
        # Code in a run directory does not count as the user's own, unless the user put the directory on the import path
        folder = file.resolve().parent
        is_imported = any(Path(entry).resolve().is_relative_to(folder) for entry in sys.path)
        return is_imported or not _is_within(spec.origin, (str(folder),))
    distributions = {point.dist.name for point in tasks if point.dist is not None}
    return not distributions.isdisjoint(packages_distributions().get(package, ()))


def is_installed(file: str) -> bool:
    """Return whether a module's file is part of Python or of an installed package."""
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = tuple(filter(None, map(sysconfig.get_path, names)))
    return _is_within(file, folders) or any(not INSTALLED.isdisjoint(place.parts) for place in _places(file))


def _is_within(file: str, folders: tuple[str, ...]) -> bool:
    """Return whether a file is in one of the directories, before or after resolving links.

    Both are checked, because installers may link files, and users may link directories.
    """
    return any(place.is_relative_to(root) for place in _places(file) for folder in folders for root in _places(folder))


def _places(path: str) -> tuple[Path, Path]:
    """Return both paths of a file: the given one, and the one with all links resolved."""
    known = os.path.expanduser(path)  # noqa: PTH111 (leaves ~user unchanged if there is no such user)
    return Path(os.path.abspath(known)), Path(os.path.realpath(known))  # noqa: PTH100
