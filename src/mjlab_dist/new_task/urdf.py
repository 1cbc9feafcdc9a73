"""Conversion of a URDF to an MJCF, by MuJoCo, with its meshes."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from mjlab_dist.errors import UserError
from mjlab_dist.names import new_name
from mjlab_dist.new_task.loading import load

MESHES = "meshes"
"""Folder of the meshes, next to the MJCF."""

READABLE = (".obj", ".stl", ".msh")
"""Suffixes of mesh files that MuJoCo reads."""

ROOT = "root"
"""Name of the free joint that ``--floating`` adds."""


def convert(flag: str, urdf: Path, tree: ET.Element, folder: Path, *, floating: bool) -> Path:
    """Convert a URDF to an MJCF.

    Args:
        flag: The flag that names the URDF, for messages.
        urdf: The file.
        tree: Content of the file, changed in place.
        folder: An empty folder for the MJCF and its meshes.
        floating: Whether to add a free joint to the root link; otherwise the root link is fixed to the world.

    Returns:
        The MJCF.

    Raises:
        UserError: If MuJoCo does not accept the URDF, or if a mesh of a collision geometry is missing or has a format
            that MuJoCo does not read.
    """
    if floating:
        _float(flag, tree)
    has_visuals = _gather_meshes(flag, urdf, tree, folder / MESHES)
    # Options of the conversion
    options = tree.find("mujoco")
    options = ET.SubElement(tree, "mujoco") if options is None else options
    compiler = options.find("compiler")
    compiler = ET.SubElement(options, "compiler") if compiler is None else compiler
    compiler.set("meshdir", MESHES)
    compiler.set("strippath", "false")
    compiler.set("discardvisual", str(not has_visuals).lower())
    # Conversion by MuJoCo
    copy, mjcf = folder / "robot.urdf", folder / f"{urdf.stem}.xml"
    ET.ElementTree(tree).write(copy)
    spec, _ = load(flag, copy)
    spec.meshdir = MESHES  # otherwise, to_xml() would write a path that contains the temporary folder
    mjcf.write_text(spec.to_xml(), "utf-8")
    copy.unlink()
    return mjcf


def _float(flag: str, tree: ET.Element) -> None:
    """Add a floating joint, which MuJoCo converts to a free joint, between the world and the root link."""
    children = {child.get("link") for child in tree.iterfind("joint/child")}
    roots = [link.get("name", "") for link in tree.iterfind("link") if link.get("name") not in children]
    if any(joint.get("type") == "floating" for joint in tree.iterfind("joint")):
        raise UserError(f"{flag}: has a floating joint already; omit --floating")
    if len(roots) != 1:
        raise UserError(f"{flag}: has {len(roots)} root links; connect the links by joints to a single root link")
    name = new_name(ROOT, [joint.get("name", "") for joint in tree.iterfind("joint")])
    joint = ET.SubElement(tree, "joint", name=name, type="floating")
    # If the robot is fixed to a massless link "world", its fixed joint becomes the floating joint.
    if roots == ["world"]:
        fixed = next((j for j in tree.iterfind("joint") if j.find("parent[@link='world']") is not None), None)
        if fixed is None or fixed.get("type") != "fixed":
            raise UserError(f"{flag}: its link world has no fixed joint to replace; omit --floating")
        tree.remove(joint)
        fixed.set("type", "floating")
        fixed.set("name", name)
        return
    ET.SubElement(tree, "link", name="world")
    ET.SubElement(joint, "parent", link="world")
    ET.SubElement(joint, "child", link=roots[0])


def _gather_meshes(flag: str, urdf: Path, tree: ET.Element, folder: Path) -> bool:
    """Copy the meshes to a folder, and name the copies in the URDF.

    Returns:
        Whether all meshes of visual geometries can be read. If not, the conversion must discard all visual geometries.
    """
    names: dict[Path, str] = {}
    has_visuals = True
    for kind, mesh in _meshes(tree):
        name = mesh.get("filename", "")
        file = _locate(urdf, name)
        if file is None or file.suffix.lower() not in READABLE:
            if kind == "visual":
                has_visuals = False
                continue
            if file is None:
                raise UserError(
                    f"{flag}: its mesh {name} is missing; add the file, or correct its path in the URDF, which is "
                    "relative to the URDF or to its package"
                )
            raise UserError(f"{flag}: MuJoCo does not read its mesh {name}; convert it to STL or OBJ")
        if file not in names:
            folder.mkdir(exist_ok=True)
            names[file] = new_name(file.stem, [Path(name).stem for name in names.values()]) + file.suffix
            shutil.copy(file, folder / names[file])
        mesh.set("filename", names[file])
    return has_visuals


def _meshes(tree: ET.Element) -> Iterator[tuple[str, ET.Element]]:
    """Yield each mesh with the kind of its element: visual or collision."""
    for kind in ("visual", "collision"):
        for mesh in tree.iterfind(f"link/{kind}/geometry/mesh"):
            yield kind, mesh


def _locate(urdf: Path, name: str) -> Path | None:
    """Return the file of a mesh; None if it is not found.

    If its name is a ``package:`` URL, the ROS package must be a folder above the URDF, or be in such a folder.
    """
    url = urlsplit(name)
    if url.scheme == "package":
        inside = Path(url.path.lstrip("/"))
        folders = [folder / url.netloc for folder in urdf.resolve().parents]
        folders += [folder for folder in urdf.resolve().parents if folder.name == url.netloc]
        folders.append(urdf.parent)
    else:
        inside = Path(url.path if url.scheme == "file" else name)
        folders = [urdf.parent, *urdf.resolve().parents]
    return next((folder / inside for folder in folders if (folder / inside).is_file()), None)
