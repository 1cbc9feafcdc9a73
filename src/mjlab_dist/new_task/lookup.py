"""Find the file of a robot by the robot's name."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from mjlab_dist.errors import UserError
from mjlab_dist.wording import did_you_mean, listed

SUFFIXES = (".xml", ".urdf")
"""Suffixes of the files of robots, in order of preference."""

MODULES = ("{name}_mj_description", "{name}_description", "{name}")
"""Modules of robot_descriptions for a name, in order of preference: an MJCF before a URDF."""


def find_robot(name: str, directory: Path | None) -> Path:
    """Return the MJCF or URDF of a robot.

    Args:
        name: Name of the robot, such as ``go2``.
        directory: Directory with files of robots, such as a checkout of MuJoCo Menagerie. None: download the files with
            the package robot_descriptions.

    Raises:
        UserError: If there is no such robot, or its files cannot be downloaded.
    """
    name = name.lower().replace("-", "_")
    return _find_description(name) if directory is None else _find_file(name, directory)


def _find_file(name: str, directory: Path) -> Path:
    """Return the file with the robot's name from a directory."""
    if not directory.is_dir():
        raise UserError(f"--robots-dir {directory}: there is no such directory")
    files = sorted(path for path in directory.rglob("*") if path.suffix in SUFFIXES)
    for suffix in SUFFIXES:
        found = [path for path in files if path.stem.lower() == name and path.suffix == suffix]
        if len(found) > 1:
            raise UserError(
                f"--robot {name}: {directory} has {len(found)} files with this name; choose one with --mjcf: "
                + listed(found, "or")
            )
        if found:
            return found[0]
    near = did_you_mean(name, {path.stem for path in files}, "choose one of its files with --mjcf")
    raise UserError(f"--robot {name}: {directory} has no {name}.xml or {name}.urdf; {near}")


def _find_description(name: str) -> Path:
    """Return the file of a robot from the package robot_descriptions, which downloads the file if necessary."""
    try:
        from robot_descriptions import DESCRIPTIONS  # noqa: PLC0415
    except ImportError as error:
        raise UserError(
            f"--robot {name}: needs the package robot_descriptions, which downloads robots; install it with "
            "uv pip install robot_descriptions, or name a directory of robots with --robots-dir"
        ) from error
    modules = [module.format(name=name) for module in MODULES]
    module = next((module for module in modules if module in DESCRIPTIONS), None)
    if module is None:
        names = {known.removesuffix("_description").removesuffix("_mj") for known in DESCRIPTIONS}
        near = did_you_mean(name, names, "choose a robot of the package robot_descriptions")
        raise UserError(f"--robot {name}: robot_descriptions has no such robot; {near}")
    description = _import_description(name, module)
    path = getattr(description, "MJCF_PATH", None) or getattr(description, "URDF_PATH", None)
    if path is None:
        raise UserError(f"--robot {name}: robot_descriptions has neither an MJCF nor a URDF of it; use --mjcf")
    return Path(path)


def _import_description(name: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(f"robot_descriptions.{module}")
    except Exception as error:  # errors of git, of the network and of the file system
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise UserError(
            f"--robot {name}: cannot be downloaded: {reason[0].strip()}; without a network, name a directory of "
            "robots with --robots-dir"
        ) from error
