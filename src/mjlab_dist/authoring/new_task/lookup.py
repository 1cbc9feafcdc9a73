"""Find the file of a robot by the robot's name."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from mjlab_dist.errors import UserError
from mjlab_dist.machine.packages import require_extra
from mjlab_dist.wording import did_you_mean, listed

# Suffixes of the files of robots, in order of preference
SUFFIXES = (".xml", ".urdf")

# Modules of robot_descriptions with the URDF of a robot, in order of preference
MODULES = ("{name}_description", "{name}")


def find_robot(name: str, directory: Path | None) -> Path:
    """Return the MJCF or URDF of a robot."""
    name = name.lower().replace("-", "_")
    return _download(name) if directory is None else _find_file(name, directory)


def _find_file(name: str, directory: Path) -> Path:
    """Return the file with the robot's name from a directory; unitree_go2/go2.xml also has the name of its folder."""
    if not directory.is_dir():
        raise UserError(f"--robots-dir {directory}: there is no such directory")
    files = sorted(path for path in directory.rglob("*") if path.suffix in SUFFIXES)
    for suffix in SUFFIXES:
        named = {path: path.stem.lower() for path in files if path.suffix == suffix}
        found = [path for path, stem in named.items() if stem == name]
        found = found or [
            path for path, stem in named.items() if path.parent.name.lower() == name and name.endswith(f"_{stem}")
        ]
        if len(found) > 1:
            raise UserError(
                f"--robot {name}: {directory} has {len(found)} files with this name; choose one with --mjcf: "
                + listed(found, "or")
            )
        if found:
            return found[0]
    near = did_you_mean(
        name, {word for path in files for word in (path.stem, path.parent.name)}, "choose one of its files with --mjcf"
    )
    raise UserError(f"--robot {name}: {directory} has no {name}.xml or {name}.urdf; {near}")


def _download(name: str) -> Path:
    """Return the file of a robot from a package that downloads it if necessary."""
    require_extra("robots", f"--robot {name}")
    known: set[str] = set()
    for find in (_from_menagerie, _from_descriptions):
        path, names = find(name)
        if path is not None:
            return path
        known |= names
    near = did_you_mean(name, known, "name a directory of robots with --robots-dir")
    raise UserError(f"--robot {name}: there is no such robot in mujoco-menagerie or robot_descriptions; {near}")


def _from_menagerie(name: str) -> tuple[Path | None, set[str]]:
    """Return the MJCF of a robot of MuJoCo Menagerie, or None, and the names of all robots.

    A name may be that of a folder, such as ``unitree_go2``, some of its words, or that of the MJCF.
    """
    import mujoco_menagerie as menagerie  # an optional package

    robots = {robot.name: robot for robot in menagerie.robots()}
    found = [robots[name]] if name in robots else []
    found = found or [one for one in robots.values() if name == one.default_model.lower()]
    found = found or [one for one in robots.values() if f"_{name}_" in f"_{one.name}_"]
    if len(found) > 1:
        choices = listed((robot.name for robot in found), "or")
        raise UserError(f"--robot {name}: several robots have this name; choose {choices}")
    if not found:
        return None, {*robots, *(robot.default_model for robot in robots.values())}
    try:
        return found[0].xml(found[0].default_model), {*robots}
    except (menagerie.MenagerieError, OSError) as error:
        raise _undownloaded(name, error) from error


def _from_descriptions(name: str) -> tuple[Path | None, set[str]]:
    """Return the URDF of a robot of the package robot_descriptions, or None, and the names of all robots."""
    from robot_descriptions import DESCRIPTIONS  # an optional package

    with_urdf = [module for module in DESCRIPTIONS if not module.endswith("_mj_description")]
    module = next((module for pattern in MODULES if (module := pattern.format(name=name)) in with_urdf), None)
    path = getattr(_import_description(name, module), "URDF_PATH", None) if module is not None else None
    return path and Path(path), {module.removesuffix("_description") for module in with_urdf}


def _import_description(name: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(f"robot_descriptions.{module}")
    except Exception as error:  # errors of git, of the network and of the file system
        raise _undownloaded(name, error) from error


def _undownloaded(name: str, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    return UserError(
        f"--robot {name}: cannot be downloaded: {reason[0].strip()}; without a network, name a directory of robots "
        "with --robots-dir"
    )
