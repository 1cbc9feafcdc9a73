"""Find the file of a robot by its name, copy the files that an MJCF refers to, and load it, with errors in one line."""

from __future__ import annotations

import codecs
import importlib
import os
import shutil
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mjlab_dist.errors import UserError, did_you_mean, listed
from mjlab_dist.imports import require_extra

if TYPE_CHECKING:
    import mujoco
    import mujoco_warp as mjw

# Attributes of the element `compiler` that name the folders of meshes and textures
_FOLDERS = ("meshdir", "texturedir", "assetdir")

# Root elements of MJCFs, of files to include, and of URDFs
ROOTS = ("mujoco", "mujocoinclude", "robot")

# Minimum timestep. With a smaller one, a control step of 20 ms would take more than 200 physics steps.
MIN_TIMESTEP_S = 1e-4

# Maximum timestep. Robots with contacts usually need a timestep that is several times smaller.
MAX_TIMESTEP_S = 0.05

# Suffixes of the files of robots, in order of preference
SUFFIXES = (".xml", ".urdf")

# Modules of robot_descriptions with the URDF of a robot, in order of preference
MODULES = ("{name}_description", "{name}")


class Files(NamedTuple):
    """An MJCF and all files that it refers to."""

    # The files to copy, with the MJCF first
    to_copy: list[Path]
    # Files named by an absolute path; these are not copied
    apart: list[Path]
    # Deepest folder that contains all files to copy, and all folders that relative paths in the MJCF pass through
    base: Path


def find_files(mjcf: Path) -> Files:
    """Find all files that an MJCF refers to."""
    mjcf = _normal(mjcf)
    found = {mjcf: False}
    tops = [mjcf.parent]
    models = [mjcf]
    for model in models:  # the loop appends models that are attached with <model file=...>
        # Folders of meshes and textures, and strippath: a setting in any included file applies to the whole model.
        trees = _trees(model)
        folders = ["", *(value for tree in trees.values() for value in _settings(tree, _FOLDERS))]
        strips = any(value == "true" for tree in trees.values() for value in _settings(tree, ("strippath",)))
        for file, tree in trees.items():
            for tag, name in _references(tree):
                asset = Path(name).name if strips and tag != "include" else name
                place = _locate(asset, (model.parent, file.parent), folders)
                if place is None:
                    continue  # MuJoCo reports a missing file when it loads the MJCF
                path, is_absolute, top = place
                if not is_absolute:
                    tops.append(top)
                if tag == "model" and path not in models:
                    models.append(path)
                found[path] = found.get(path, True) and is_absolute
    to_copy = [file for file, apart in found.items() if not apart]
    base = Path(os.path.commonpath([*tops, *(file.parent for file in to_copy)]))
    return Files(to_copy, [file for file, apart in found.items() if apart], base)


def copy_files(files: Files, target: Path) -> str:
    """Copy an MJCF and the files that it refers to; their paths relative to each other stay the same.

    Returns:
        Path of the MJCF relative to the folder.
    """
    for file in files.to_copy:
        copy = target / file.relative_to(files.base)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return files.to_copy[0].relative_to(files.base).as_posix()


def _trees(mjcf: Path) -> dict[Path, ET.Element]:
    """Return the XML trees of an MJCF and of the files that it includes."""
    trees: dict[Path, ET.Element] = {}
    todo = [mjcf]
    while todo:
        file = todo.pop()
        if file in trees:
            continue
        trees[file] = parse(file)
        for tag, name in _references(trees[file]):
            place = _locate(name, (mjcf.parent, file.parent), [""]) if tag == "include" else None
            if place is not None:
                todo.append(place.path)
    return trees


def parse(file: Path) -> ET.Element:
    """Return the XML tree of a file."""
    flag = f"--mjcf {file}"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{flag}: cannot be read: {error.strerror}") from error
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{flag}: is in UTF-16, which MuJoCo does not read; save it as UTF-8")
    try:
        root = _root(content)
    except ET.ParseError as error:
        what = f"is not XML: {error}" if content else "is empty"
        raise UserError(f"{flag}: {what}; give an MJCF or a URDF") from error
    if root.tag not in ROOTS:
        raise UserError(
            f"{flag}: its root element is <{root.tag}>; give an MJCF (its root element is <mujoco>) or a URDF (<robot>)"
        )
    if any("xacro" in element.tag for element in root.iter()):
        raise UserError(f"{flag}: contains xacro macros; expand them first: xacro {file.name} > robot.urdf")
    return root


def _root(content: bytes) -> ET.Element:
    """Return the root element of a file. Like MuJoCo, accept bytes that are not valid in the file's encoding."""
    try:
        return ET.fromstring(content)  # noqa: S314 (a file of the user's own)
    except (ET.ParseError, ValueError, LookupError):
        return ET.fromstring(content.decode(errors="replace"))  # noqa: S314 (as above)


def _references(tree: ET.Element) -> Iterator[tuple[str, str]]:
    """Yield the name of the element and the name of the file for each reference to a file."""
    for element in tree.iter():
        for attribute, value in element.attrib.items():
            if attribute.startswith("file") and value:
                yield element.tag, value


def _settings(tree: ET.Element, attributes: tuple[str, ...]) -> Iterator[str]:
    for compiler in tree.iter("compiler"):
        yield from filter(None, map(compiler.get, attributes))


class _Place(NamedTuple):
    """The path of a file, and the form in which an MJCF names the file."""

    path: Path
    is_absolute: bool
    # The highest folder in a relative path: for ../robot/arm.obj, the folder that contains the folder robot
    top: Path


def _locate(name: str, bases: tuple[Path, ...], folders: list[str]) -> _Place | None:
    """Return the place of a file; None if there is no such file."""
    for base in bases:
        for folder in folders:
            relative = Path(folder, name)
            path = _normal(base / relative)
            if path.is_file():
                steps = [_normal(base.joinpath(*relative.parts[:i])) for i in range(len(relative.parts))]
                return _Place(path, relative.is_absolute(), min(steps, key=lambda step: len(step.parts)))
    return None


def _normal(path: Path) -> Path:
    """Return an absolute path without ``..``.

    Symbolic links are not followed, so that relative paths in the MJCF stay valid.
    """
    return Path(os.path.abspath(path))  # noqa: PTH100 (resolve() follows links)


def load(flag: str, mjcf: Path) -> tuple[mujoco.MjSpec, mujoco.MjModel]:
    """Load an MJCF and compile it."""
    from mjlab_dist.sim.scene import refuse_bad_numbers  # imports MuJoCo

    spec = read(flag, mjcf)
    try:
        model = compile_spec(spec)
        bytes(model.names).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{flag}: has names that are not in UTF-8; save it as UTF-8") from error
    except ValueError as error:
        raise UserError(f"{flag}: {' '.join(str(error).split())}") from error
    refuse_bad_numbers(flag, model)
    if not MIN_TIMESTEP_S <= model.opt.timestep <= MAX_TIMESTEP_S:
        what = "unstable" if model.opt.timestep > MAX_TIMESTEP_S else "too slow"
        raise UserError(
            f"{flag}: its timestep of {model.opt.timestep:g} s makes the simulation {what}; set "
            f'<option timestep="0.005"/> or another value from {MIN_TIMESTEP_S:g} to {MAX_TIMESTEP_S:g}'
        )
    return spec, model


def read(flag: str, file: Path) -> mujoco.MjSpec:
    """Read an MJCF or a URDF, without its meshes."""
    import mujoco

    try:
        spec = mujoco.MjSpec.from_file(str(file))
    except ValueError as error:
        raise UserError(f"{flag}: {' '.join(str(error).split())}") from error
    spec.nkey = len(spec.keys)  # a larger nkey in the MJCF would add empty keyframes
    _drop_infinite_limits(spec)
    return spec


def _drop_infinite_limits(spec: mujoco.MjSpec) -> None:
    """Remove limits with an infinite end, so that everything is chosen as without limits."""
    import mujoco

    parts = (spec.joints, ("", "actfrc")), (spec.tendons, ("", "actfrc")), (spec.actuators, ("ctrl", "force"))
    for elements, kinds in parts:
        for element, kind in ((element, kind) for element in elements for kind in kinds):
            if np.isinf(getattr(element, f"{kind}range")).any():
                setattr(element, f"{kind}range", [0.0, 0.0])
                setattr(element, f"{kind}limited", mujoco.mjtLimited.mjLIMITED_FALSE)


def compile_spec(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """Compile an MJCF without warnings about deprecated attributes."""
    with warnings.catch_warnings(action="ignore"):
        return spec.compile()


def put_on_device(flag: str, model: mujoco.MjModel) -> mjw.Model:
    """Put a model on the CPU in MuJoCo Warp, which does not support all models of MuJoCo."""
    import mujoco_warp as mjw
    import warp as wp

    from mjlab_dist.sim.quiet import start_warp  # imports MuJoCo

    start_warp("cpu")
    try:
        with wp.ScopedDevice("cpu"):
            return mjw.put_model(model)
    except (NotImplementedError, ValueError) as error:
        raise UserError(f"{flag}: MuJoCo Warp: {' '.join(str(error).split())}") from error


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
