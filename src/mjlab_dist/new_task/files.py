"""The files of an MJCF: the file itself, included files, meshes, textures and height fields."""

from __future__ import annotations

import os
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from mjlab_dist.errors import UserError

_FOLDERS = ("meshdir", "texturedir", "assetdir")
"""Attributes of the element ``compiler`` that name the folders of meshes and textures."""

ROOTS = ("mujoco", "mujocoinclude", "robot")
"""Root elements of MJCFs, of files to include, and of URDFs."""


def find_files(mjcf: Path) -> tuple[list[Path], list[Path]]:
    """Find all files that an MJCF refers to.

    Args:
        mjcf: The MJCF.

    Returns:
        The files to copy, with the MJCF first; and the files that are named by an absolute path, which are not copied.

    Raises:
        UserError: If the MJCF or an included file is not XML, or another kind of file.
    """
    mjcf = _normal(mjcf)
    found = {mjcf: False}
    models = [mjcf]
    for model in models:  # the loop appends models that are attached with <model file=...>
        # Settings apply to all included files.
        trees = _trees(model)
        folders = ["", *(value for tree in trees.values() for value in _settings(tree, _FOLDERS))]
        strips = any(value == "true" for tree in trees.values() for value in _settings(tree, ("strippath",)))
        for file, tree in trees.items():
            for tag, name in _references(tree):
                asset = Path(name).name if strips and tag != "include" else name
                place = _locate(asset, (model.parent, file.parent), folders)
                if place is None:
                    continue  # MuJoCo reports a missing file when it loads the MJCF
                path, is_absolute = place
                if tag == "model" and path not in models:
                    models.append(path)
                found[path] = found.get(path, True) and is_absolute
    return [file for file, apart in found.items() if not apart], [file for file, apart in found.items() if apart]


def copy_files(files: list[Path], target: Path) -> str:
    """Copy an MJCF and its files, which keep their paths relative to each other.

    Args:
        files: The files from :func:`find_files`.
        target: Folder to copy to.

    Returns:
        Path of the MJCF relative to the folder.
    """
    base = Path(os.path.commonpath([file.parent for file in files]))
    for file in files:
        copy = target / file.relative_to(base)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return files[0].relative_to(base).as_posix()


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
                todo.append(place[0])
    return trees


def parse(file: Path) -> ET.Element:
    """Return the XML tree of a file.

    Args:
        file: An MJCF, an included file, or a URDF.

    Raises:
        UserError: If it is none of these.
    """
    flag = f"--mjcf {file}"
    try:
        root = ET.parse(file).getroot()  # noqa: S314 (a file of the user's own)
    except (ET.ParseError, OSError, ValueError) as error:
        what = "is empty" if not file.stat().st_size else f"is not XML: {error}"
        raise UserError(f"{flag}: {what}; give an MJCF or a URDF") from error
    if root.tag not in ROOTS:
        raise UserError(f"{flag}: its root element is {root.tag}; give an MJCF (mujoco) or a URDF (robot)")
    if any("xacro" in element.tag for element in root.iter()):
        raise UserError(f"{flag}: contains xacro macros; expand them first: xacro {file.name} > robot.urdf")
    return root


def _references(tree: ET.Element) -> Iterator[tuple[str, str]]:
    """Yield element and file name of each reference to a file."""
    for element in tree.iter():
        for attribute, value in element.attrib.items():
            if attribute.startswith("file") and value:
                yield element.tag, value


def _settings(tree: ET.Element, attributes: tuple[str, ...]) -> Iterator[str]:
    for compiler in tree.iter("compiler"):
        yield from filter(None, map(compiler.get, attributes))


def _locate(name: str, bases: tuple[Path, ...], folders: list[str]) -> tuple[Path, bool] | None:
    """Return the path of a file and whether the MJCF names it by an absolute path; None if there is no such file."""
    for base in bases:
        for folder in folders:
            path = _normal(base / folder / name)
            if path.is_file():
                return path, Path(folder, name).is_absolute()
    return None


def _normal(path: Path) -> Path:
    """Return an absolute path without ``..``. Links are not followed, so that relative paths in the MJCF stay valid."""
    return Path(os.path.abspath(path))  # noqa: PTH100 (resolve() follows links)
