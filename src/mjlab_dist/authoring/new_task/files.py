"""The files of an MJCF: the file itself, included files, meshes, textures and height fields."""

from __future__ import annotations

import codecs
import os
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mjlab_dist.errors import UserError

# Attributes of the element `compiler` that name the folders of meshes and textures
_FOLDERS = ("meshdir", "texturedir", "assetdir")

# Root elements of MJCFs, of files to include, and of URDFs
ROOTS = ("mujoco", "mujocoinclude", "robot")


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
