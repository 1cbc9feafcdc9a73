"""The files that an MJCF consists of: itself, what it includes, and its meshes, textures and height fields."""

from __future__ import annotations

import os
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from mjlab_dist.errors import UserError

_FOLDERS = ("meshdir", "texturedir", "assetdir")
"""Attributes of the element ``compiler`` that say where meshes and textures are."""


def find_files(mjcf: Path) -> tuple[list[Path], list[Path]]:
    """Find all that an MJCF refers to.

    Args:
        mjcf: The MJCF.

    Returns:
        Files, the MJCF first; and those that are named by an absolute path, which stay where they are.

    Raises:
        UserError: If the MJCF, or one that it includes, is no XML, or is a URDF.
    """
    mjcf = _normal(mjcf)
    found = {mjcf: False}
    models = [mjcf]
    for model in models:  # grows
        trees = _trees(model)
        folders = ["", *(value for tree in trees.values() for value in _settings(tree, _FOLDERS))]
        strips = any(value == "true" for tree in trees.values() for value in _settings(tree, ("strippath",)))
        for file, tree in trees.items():
            for tag, name in _references(tree):
                asset = Path(name).name if strips and tag != "include" else name
                place = _locate(asset, (model.parent, file.parent), folders)
                if place is None:
                    continue  # MuJoCo says so when it loads the MJCF
                path, is_absolute = place
                if tag == "model" and path not in models:
                    models.append(path)
                found[path] = found.get(path, True) and is_absolute
    return [file for file, apart in found.items() if not apart], [file for file, apart in found.items() if apart]


def copy_files(files: list[Path], target: Path) -> str:
    """Copy an MJCF and its files, which keep their places relative to each other.

    Args:
        files: What :func:`find_files` found.
        target: Folder that they go into.

    Returns:
        Where in the folder the MJCF is.
    """
    base = Path(os.path.commonpath([file.parent for file in files]))
    for file in files:
        copy = target / file.relative_to(base)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return files[0].relative_to(base).as_posix()


def _trees(mjcf: Path) -> dict[Path, ET.Element]:
    """An MJCF and what it includes."""
    trees: dict[Path, ET.Element] = {}
    todo = [mjcf]
    while todo:
        file = todo.pop()
        if file in trees:
            continue
        trees[file] = _parse(file)
        for tag, name in _references(trees[file]):
            place = _locate(name, (mjcf.parent, file.parent), [""]) if tag == "include" else None
            if place is not None:
                todo.append(place[0])
    return trees


def _parse(file: Path) -> ET.Element:
    try:
        root = ET.parse(file).getroot()  # noqa: S314 (a file of the user's own)
    except (ET.ParseError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"--mjcf {file}: is no XML: {error}") from error
    if root.tag == "robot":
        raise UserError(
            f"--mjcf {file}: is a URDF; save it as an MJCF first, with mujoco.MjSpec.from_file(urdf).to_file(mjcf)"
        )
    return root


def _references(tree: ET.Element) -> Iterator[tuple[str, str]]:
    """Element and file name of all that is named in one file."""
    for element in tree.iter():
        for attribute, value in element.attrib.items():
            if attribute.startswith("file") and value:
                yield element.tag, value


def _settings(tree: ET.Element, attributes: tuple[str, ...]) -> Iterator[str]:
    for compiler in tree.iter("compiler"):
        yield from filter(None, map(compiler.get, attributes))


def _locate(name: str, bases: tuple[Path, ...], folders: list[str]) -> tuple[Path, bool] | None:
    """Where a file is, and whether it is named by an absolute path; None where there is none."""
    for base in bases:
        for folder in folders:
            path = _normal(base / folder / name)
            if path.is_file():
                return path, Path(folder, name).is_absolute()
    return None


def _normal(path: Path) -> Path:
    """An absolute path without .., whose links stay links: files lie next to each other as the MJCF has it."""
    return Path(os.path.abspath(path))  # noqa: PTH100 (resolve() follows links)
