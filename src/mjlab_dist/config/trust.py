"""Refuse a config from a file if the config could run any code. The check imports no modules that the config names."""

from __future__ import annotations

import ast
import dataclasses
import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import EntryPoints, entry_points, packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.dotted_names import entries
from mjlab_dist.config.registry import GROUP
from mjlab_dist.config.signatures import PARAMETERS, definition, find_module, is_function, made_from, member
from mjlab_dist.errors import UserError

# Modules of this package whose functions are meant for configs. Functions of its other modules may run programs.
OURS = ("mjlab_dist.mdp", "mjlab_dist.distributed.synchronizer")

# Names of directories of installed packages
INSTALLED = {"site-packages", "dist-packages"}

# A config may name only SSH config files in these directories, because SSH config files can run programs
SSH_DIRS = ("~/.ssh", "/etc/ssh")

# Fields that choose machines and directories
PLACES = ("hosts", "log_root", "torchrunx_log_dir")

# A module, and the function or class that it defines
Definition = tuple[str, ast.FunctionDef | ast.ClassDef]


class _Named(NamedTuple):
    """A function or class that a config names."""

    # Path of the field, such as env.rewards.speed.func
    path: str
    # The function or class, as package.module:name
    reference: str
    # Returns why a definition is not of the kind that the field needs; None if it is
    lacks: Callable[[Definition], str | None]


def refuse_foreign(config: TrainConfig, file: Path, *, uses_ssh: bool) -> None:
    """Raise if a config that was read from a file can run code that is not trusted.

    The functions and classes that the config names must be public, of the kind that their field needs, and from this
    package, from a distribution that provides tasks, or from the user's own modules. The user's own modules are those
    that are neither installed nor part of Python.
    """
    tasks = entry_points(group=GROUP)
    for named in _references(config):
        fault = _fault(named, file, tasks)
        if fault is not None:
            raise UserError(f"{named.path} {named.reference}: {fault}; check it, and add --trust to allow it")
    if uses_ssh and config.ssh_config is not None and not _is_within(config.ssh_config, SSH_DIRS):
        raise UserError(f"ssh_config {config.ssh_config}: can run any program; check it, and add --trust to allow it")


def chosen_places(config: TrainConfig, given: Collection[str] = ()) -> str:
    """Return the flags for machines and directories that a config from a file chooses; empty if there are none."""
    defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    values = {name: getattr(config, name) for name in PLACES if name not in given}
    return " ".join(
        f"--{name.replace('_', '-')} {' '.join(value) if isinstance(value, tuple) else value}"
        for name, value in values.items()
        if value != defaults[name]
    )


def _references(value: Any, prefix: str = "") -> Iterator[_Named]:
    """Yield all functions and classes that fields name."""
    is_config = dataclasses.is_dataclass(value)
    for name, part in entries(value).items():
        if is_config and name in PARAMETERS:
            continue  # plain values, which name no functions
        if is_config and name in _KINDS and part is not None and (name != "model" or is_function(part)):
            for reference in (part,) if isinstance(part, str) else part:
                yield _Named(prefix + name, reference, _KINDS[name])
        yield from _references(part, f"{prefix}{name}.")


def _fault(named: _Named, file: Path, tasks: EntryPoints) -> str | None:
    """Return why a function is not trusted; None if it is trusted, or if the text names no function."""
    module, colon, name = named.reference.partition(":")
    if not colon:
        return None
    if find_module(module) is None:
        return f"there is no module {module} here"
    first, *attributes = name.split(".")
    foreign = "is not from mjlab_dist, a task package or your own project, and could run any code"
    if not _is_trusted(module, file, tasks):
        return foreign
    found = definition(module, first) or made_from(module, first)
    if found is not None and not _is_trusted(found[0], file, tasks):
        return foreign  # such as a library's function that the module imports
    for attribute in attributes:
        found = _member(found, attribute) if found is not None else None
    if found is None or any(part.startswith("_") for part in (first, *attributes)):
        return f"{module} defines no such public function or class"
    return named.lacks(found)


def _member(found: Definition, name: str) -> Definition | None:
    """Return a method or class of a class; None for a function."""
    module, node = found
    return member(module, node, name) if isinstance(node, ast.ClassDef) else None


def _lacks_of_a_term(found: Definition) -> str | None:
    is_class = isinstance(found[1], ast.ClassDef)
    function = _member(found, "__init__") if is_class else found
    if function is not None and isinstance(function[1], ast.FunctionDef):
        args = function[1].args
        first = [*args.posonlyargs, *args.args][is_class:][:1]
        if any(arg.arg == "env" or _type(arg.annotation) == "Env" for arg in first):
            return None
    return "is not a term, because its first parameter is not env"


def _lacks_of_a_model(found: Definition) -> str | None:
    if isinstance(found[1], ast.FunctionDef) and _type(found[1].returns) == "MjSpec":
        return None
    return "is not a function that is annotated to return a mujoco.MjSpec"


def _lacks_methods(kind: str, *methods: str) -> Callable[[Definition], str | None]:
    def lacks(found: Definition) -> str | None:
        if all(_member(found, method) for method in methods):
            return None
        return f"is not a {kind}, a class with {' and '.join(methods)}"

    return lacks


def _type(annotation: ast.expr | None) -> str:
    """Return the last part of the name of a type, such as MjSpec."""
    return ast.unparse(annotation).strip("'").rpartition(".")[2] if annotation is not None else ""


# For each field of a config that names functions or classes: what a definition lacks to be of the right kind
_KINDS: dict[str, Callable[[Definition], str | None]] = {
    "func": _lacks_of_a_term,
    "model": _lacks_of_a_model,
    "synchronizer": _lacks_methods("synchronizer", "reduce", "due"),
    "logger": _lacks_methods("logger", "log"),
}


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
        # Code beside the config does not count as the user's own, unless the user put the directory on the import path.
        # If the config is a link, this also applies to the directory of its target.
        places = [file]
        while places[-1].is_symlink():
            places.append(places[-1].parent / places[-1].readlink())
        beside = [str(place.parent) for place in places if _is_within(spec.origin, (str(place.parent),))]
        return all(any(_is_within(entry, (folder,)) for entry in sys.path) for folder in beside)
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
