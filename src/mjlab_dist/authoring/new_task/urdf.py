"""Conversion of a URDF to an MJCF, by MuJoCo, with its meshes."""

from __future__ import annotations

import math
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from mjlab_dist.authoring.new_task.robot_files import load, read
from mjlab_dist.errors import UserError
from mjlab_dist.sim.names import new_name

# Folder of the meshes, next to the MJCF
MESHES = "meshes"

# Name of the free joint that --floating adds
ROOT = "root"

# Attributes of the element inertia
MOMENTS = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")

# A URDF with a single mesh, to try whether MuJoCo can use it
ONE_MESH = """
<robot name="mesh">
  <link name="link">
    <inertial><mass value="1"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial>
    <{kind}><geometry>{mesh}</geometry></{kind}>
  </link>
  <mujoco><compiler discardvisual="false" strippath="false"/></mujoco>
</robot>"""

# What to do about a link with wrong inertial properties
REMEDY = (
    "write its mass in kg and its moments of inertia about its center of mass in kg m^2, or give it a <collision> "
    "geometry and no <inertial>: both then follow from the geometry"
)


def convert(flag: str, urdf: Path, tree: ET.Element, folder: Path, *, floating: bool) -> Path:
    """Convert a URDF to an MJCF."""
    if floating:
        _float(flag, tree)
    _refuse_incomplete_inertials(flag, tree)
    read(flag, urdf)  # errors in its XML have the line numbers of the user's file, not of the copy
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
    try:
        spec, _ = load(flag, copy)
    except UserError as error:
        raise _in_words_of_urdfs(flag, tree, error) from error
    spec.meshdir = MESHES  # otherwise, to_xml() would write a path that contains the temporary folder
    mjcf.write_text(spec.to_xml(), "utf-8")
    copy.unlink()
    return mjcf


def _refuse_incomplete_inertials(flag: str, tree: ET.Element) -> None:
    needed = ("mass", "value"), *(("inertia", moment) for moment in MOMENTS)
    for link in tree.iterfind("link[inertial]"):
        for tag, attribute in needed:
            element = link.find(f"inertial/{tag}")
            text = "" if element is None else element.get(attribute, "")
            try:
                is_number = math.isfinite(float(text))
            except ValueError:
                is_number = False
            if not is_number:
                what = f'"{text}" as' if text else "no"
                raise UserError(
                    f"{flag}: link {link.get('name')}: its <inertial> has {what} {tag} {attribute}; {REMEDY}"
                )


def _in_words_of_urdfs(flag: str, tree: ET.Element, error: UserError) -> UserError:
    """Return an error of MuJoCo about an inertia in terms of the URDF; other errors are returned unchanged."""
    text = str(error)
    name = next(iter(re.findall(r"Element name '(.*)', id", text)), "")
    link = next((link for link in tree.iterfind("link") if link.get("name") == name), None)
    if link is None:
        return error
    if "mass and inertia of moving bodies" in text:
        is_given = link.find("inertial") is not None
        what = "its mass or inertia is not positive" if is_given else "has neither <inertial> nor <collision>"
        return UserError(f"{flag}: link {name}: moves, but {what}; {REMEDY}")
    if "A + B >= C" in text or "positive eigenvalues" in text:
        inertia = link.find("inertial/inertia")
        assert inertia is not None
        xx, xy, xz, yy, yz, zz = (float(inertia.get(moment, "")) for moment in MOMENTS)
        moments = np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        return UserError(
            f"{flag}: link {name}: no body has its inertia; its principal moments are "
            f"{', '.join(f'{moment:.3g}' for moment in moments)} kg m^2, and all must be positive and none larger than "
            f"the sum of the others; {REMEDY}"
        )
    return error


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
    copies: dict[Path, Path] = {}
    has_visuals = True
    for kind, mesh in _meshes(tree):
        name = mesh.get("filename", "")
        file = _locate(urdf, name)
        problem = "it is missing; add the file, or correct its path, which is relative to the URDF or to its package"
        if file is not None:
            if file not in copies:
                folder.mkdir(exist_ok=True)
                stem = new_name(file.stem, [copy.stem for copy in copies.values()])
                copies[file] = _copy(file, folder / f"{stem}{file.suffix}")
            mesh.set("filename", copies[file].name)
            problem = _problem(kind, mesh, copies[file])
        if problem and kind == "collision":
            raise UserError(f"{flag}: its mesh {name}: {problem}")
        has_visuals = has_visuals and not problem
    return has_visuals


def _copy(file: Path, copy: Path) -> Path:
    """Copy a mesh. Convert an STL that MuJoCo does not read: one in ASCII, or with more than 200,000 faces."""
    import trimesh

    shutil.copy(file, copy)
    if copy.suffix.lower() != ".stl" or not _problem("visual", ET.Element("mesh"), copy):
        return copy
    try:
        mesh = trimesh.load_mesh(copy, process=False)  # processing would drop faces with NaN, which MuJoCo refuses
    except ValueError:
        return copy  # damaged
    with np.errstate(invalid="ignore"):
        mesh.merge_vertices()
    mesh.export(copy.with_suffix(".obj"), include_normals=False)
    return copy.with_suffix(".obj")


def _problem(kind: str, mesh: ET.Element, file: Path) -> str:
    """Return why MuJoCo cannot use the file of a mesh, and what to do; empty if it can."""
    import mujoco

    element = ET.tostring(ET.Element("mesh", {**mesh.attrib, "filename": str(file)}), "unicode")
    try:
        mujoco.MjSpec.from_string(ONE_MESH.format(kind=kind, mesh=element)).compile()
    except ValueError as error:
        reason = str(error).removeprefix("Error: ").splitlines()[0].replace(str(file), file.name)
        return f"{reason}; save it again, as binary STL or OBJ"
    return ""


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
