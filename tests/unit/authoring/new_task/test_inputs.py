"""Each file for new-task becomes a task whose model compiles, or is refused in one line. No kernels are compiled."""

from __future__ import annotations

import importlib
import math
import re
import tempfile
from pathlib import Path

import imageio.v3 as iio
import mujoco
import numpy as np
import pytest
import trimesh
from trimesh.exchange.stl import export_stl, export_stl_ascii

import mjlab_dist.authoring.new_task as new_task
from mjlab_dist.authoring.check.task_checks import Check
from mjlab_dist.authoring.new_task import NewTask, create, importable
from mjlab_dist.authoring.new_task.robot_files import parse
from mjlab_dist.authoring.new_task.source import Names
from mjlab_dist.authoring.new_task.urdf import convert
from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.sim import build_model

ARM = (
    '<body name="arm"><joint name="hinge" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .3 0 0" size=".02"/></body>'
)

WALKER = """
<body pos="{x} 0 1"><freejoint name="base_{name}"/><geom size=".1"/>
  <body><joint name="leg_{name}" axis="0 1 0"/><geom size=".05" pos=".2 0 0"/></body>
</body>"""

BALL = """
<body><joint name="ball" type="ball"/><geom size=".1" pos=".2 0 0"/>
  <body pos=".3 0 0"><joint name="hinge"/><geom size=".05" pos=".1 0 0"/></body>
</body>"""

TENDON = """
<tendon><spatial name="cord"><site site="fixed"/><site site="moving"/></spatial></tendon>
<actuator><muscle name="pull" tendon="cord"/></actuator>"""

SITED = '<site name="fixed" pos="0 0 .5"/>' + ARM.replace("</body>", '<site name="moving" pos=".3 0 0"/></body>')

FLEX = '<flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1" pos="1 0 1" dim="2" radius=".01"/>'

TORUS = """
<extension><plugin plugin="mujoco.sdf.torus"><instance name="torus"/></plugin></extension>
<asset><mesh name="ring"><plugin instance="torus"/></mesh></asset>
<worldbody>
  <body pos="1 0 0"><freejoint/><geom type="sdf" mesh="ring"><plugin instance="torus"/></geom></body>
</worldbody>"""

PID = """
<extension><plugin plugin="mujoco.pid"/></extension>
<actuator>
  <plugin name="hold" joint="hinge" plugin="mujoco.pid" actdim="0"><config key="kp" value="4"/></plugin>
</actuator>"""

CUBE = """
v -.1 -.1 -.1
v .1 -.1 -.1
v -.1 .1 -.1
v -.1 -.1 .1
f 1 3 2
f 1 2 4
f 1 4 3
f 2 3 4
"""

INERTIAL = '<inertial><mass value="1"/><inertia ixx=".01" iyy=".01" izz=".01" ixy="0" ixz="0" iyz="0"/></inertial>'

URDF = f"""
<robot name="two">
  <link name="base">{INERTIAL}<collision><geometry><box size=".2 .2 .1"/></geometry></collision></link>
  <link name="arm">{INERTIAL}
    <visual><geometry><mesh filename="{{visual}}"/></geometry></visual>
    <collision><geometry><mesh filename="{{collision}}"/></geometry></collision>
  </link>
  <joint name="hinge" type="revolute">
    <parent link="base"/><child link="arm"/><origin xyz="0 0 .3"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="1" effort="20" velocity="5"/>
  </joint>
</robot>"""

LINK = """
<robot name="two">
  <link name="base"/>
  <link name="arm"><inertial>{}</inertial></link>
  <joint name="hinge" type="continuous"><parent link="base"/><child link="arm"/></joint>
</robot>"""


MESHED = '<body><joint name="hinge"/><geom type="mesh" mesh="cube"/></body>'

XACRO = '<robot xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:include filename="b"/></robot>'

IN_PACKAGE = "package://two_description/meshes/cube.obj"


def mjcf(bodies: str = ARM, rest: str = "", option: str = "") -> str:
    return f"<mujoco>{option}<worldbody>{bodies}</worldbody>{rest}</mujoco>"


def link(mass: str = "1", inertia: bool = True, **moments: float) -> str:
    """Return a URDF with a link of these properties; moments not given are 0.1 on the diagonal and 0 elsewhere."""
    all_moments = {"ixx": 0.1, "iyy": 0.1, "izz": 0.1, "ixy": 0.0, "ixz": 0.0, "iyz": 0.0} | moments
    written = " ".join(f'{name}="{value}"' for name, value in all_moments.items())
    return LINK.format(f'<mass value="{mass}"/>' + f"<inertia {written}/>" * inertia)


def meshed(file: str) -> str:
    return mjcf(MESHED, f'<asset><mesh name="cube" file="{file}"/></asset>')


@pytest.fixture(autouse=True)
def _only_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new-task compile the model instead of running the trial."""

    def compile_only(names: Names, parent: Path) -> tuple[TrainConfig, list[Check]]:
        with importable(names.module, parent):
            config: TrainConfig = getattr(importlib.import_module(f"{names.module}.config"), names.function)()
            build_model(config.env.sim)
        return config, []

    monkeypatch.setattr(new_task, "try_task", compile_only)


def created(folder: Path, files: dict[str, str | bytes], *, floating: bool = False) -> NewTask:
    """Write files, and create a task from the first of them."""
    for name, content in files.items():
        file = folder / "input" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return create("made-for-test", folder / "input" / next(iter(files)), folder / "made" / "here", floating=floating)


HILLS = '<asset><hfield name="hills" file="hills.png" size="1 1 1 .1"/></asset>'

ATTACHED = """
<body><joint/><geom size=".1" pos=".1 0 0"/><attach model="b" body="arm" prefix="b_"/></body>"""

FILES: dict[str, dict[str, str | bytes]] = {
    "two robots": {"a.xml": mjcf(WALKER.format(x=0, name="a") + WALKER.format(x=2, name="b"))},
    "ball joint": {"a.xml": mjcf(BALL)},
    "tendon": {"a.xml": mjcf(SITED, TENDON)},
    "height field": {
        "a.xml": mjcf(f'<geom type="hfield" hfield="hills"/>{ARM}', HILLS),
        "hills.png": iio.imwrite("<bytes>", np.arange(16, dtype=np.uint8).reshape(4, 4), extension=".png"),
    },
    "nested includes": {
        "a.xml": '<mujoco><include file="parts/b.xml"/></mujoco>',
        "parts/b.xml": '<mujoco><include file="parts/deep/c.xml"/></mujoco>',
        "parts/deep/c.xml": mjcf(),
    },
    "mesh by relative path": {"xml/a.xml": meshed("../meshes/cube.obj"), "meshes/cube.obj": CUBE},
    "mesh by a path that leaves its folder and returns": {
        "arm/a.xml": meshed("../arm/cube.obj"),
        "arm/cube.obj": CUBE,
    },
    "attached model": {
        "a.xml": mjcf(ATTACHED, '<asset><model name="b" file="parts/b.xml"/></asset>'),
        "parts/b.xml": mjcf(),
    },
    "flex": {"a.xml": mjcf(ARM + FLEX)},
    "plugin of a shape": {"a.xml": mjcf(ARM, TORUS)},
    "empty keyframe": {"a.xml": mjcf(option='<size nkey="1"/>')},
    "latin": {"a.xml": f'<?xml version="1.0" encoding="latin-1"?>{mjcf()}<!-- \xe9 -->'.encode("latin-1")},
    "latin without a declaration, and a file with a name in UTF-8": {
        "a.xml": meshed("w\xfcrfel.obj").encode() + b"<!-- \xe9 -->",
        "w\xfcrfel.obj": CUBE,
    },
    "byte order mark": {"a.xml": mjcf().encode("utf-8-sig")},
    "infinite limits": {
        "a.xml": mjcf(
            ARM.replace("/>", ' range="-inf inf" actuatorfrcrange="-inf inf"/>', 1),
            '<actuator><motor joint="hinge" ctrlrange="-1 inf"/></actuator>',
        )
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FILES)
def test_a_file_becomes_a_task_whose_model_compiles(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    made = created(tmp_path, FILES[case])
    assert made.problem == ""
    assert made.robot.joints
    assert made.package.is_dir()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.xml", "", "is empty"),
        ("a.xml", "<mujoco><worldbody>", "is not XML: no element found"),
        ("a.sdf", "<sdf version='1.6'/>", "its root element is <sdf>; give an MJCF"),
        ("a.xacro", XACRO, "xacro a.xacro > robot.urdf"),
        ("a.xml", mjcf("<boddy/>"), "Schema violation: unrecognized element Element 'boddy', line 1"),
        ("a.xml", mjcf(ARM + ARM), "repeated name 'arm' in body"),
        ("a.xml", mjcf().encode("utf-16"), "is in UTF-16"),
        ("a.xml", mjcf(ARM.replace("hinge", "H\xfcfte")).encode("latin-1"), "names that are not in UTF-8"),
        ("a.xml", mjcf(ARM.replace("<joint ", '<joint damping="1e39" ')), "joint hinge: damping is 1e+39"),
        ("a.xml", mjcf(option='<option gravity="0 0 -inf"/>'), "option: gravity is "),
        ("a.xml", mjcf('<geom size="1"/>'), "has no hinge or slide joint"),
        ("a.xml", mjcf(rest='<include file="gone.xml"/>'), "Error opening file 'gone.xml'"),
        ("a.xml", '<mujoco><include file="a.xml"/></mujoco>', "File 'a.xml' already included"),
        ("a.xml", mjcf(rest=PID), "MuJoCo Warp: Actuator plugins not supported"),
        ("a.xml", mjcf(option='<option timestep="1"/>'), "timestep of 1 s makes the simulation unstable"),
        ("a.xml", mjcf(option='<option timestep="1e-6"/>'), "timestep of 1e-06 s makes the simulation too slow"),
        ("a.urdf", URDF.format(visual="gone.obj", collision="gone.obj"), "its mesh gone.obj: it is missing"),
        ("a.urdf", link(inertia=False), "link arm: its <inertial> has no inertia ixx; write"),
        ("a.urdf", link("1 kg"), 'has "1 kg" as mass value; write'),
        ("a.urdf", link("nan"), 'link arm: its <inertial> has "nan" as mass value'),
        ("a.urdf", link("-1"), "link arm: moves, but its mass or inertia is not"),
        ("a.urdf", LINK.replace("<inertial>{}</inertial>", ""), "link arm: moves, but has neither <inertial> nor"),
        ("a.urdf", link(izz=0.5), "moments are 0.1, 0.1, 0.5 kg m^2"),
        ("a.urdf", link(ixy=0.5), "moments are -0.4, 0.1, 0.6 kg m^2"),
        ("a.urdf", f"<!--\n-->{URDF}".replace('lower="-1"', 'lower="a"'), "Element 'limit', line 11"),
    ],
)
def test_a_file_that_cannot_become_a_task_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, content: str | bytes, says: str
) -> None:
    with pytest.raises(UserError) as info:
        created(tmp_path, {name: content})
    assert str(info.value).startswith(f"--mjcf {tmp_path / 'input' / name}: ")
    assert says in str(info.value)
    assert "\n" not in str(info.value)
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "made").exists()


def test_a_file_that_cannot_be_read_is_not_called_wrong(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^--mjcf {tmp_path}: cannot be read: "):
        parse(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [IN_PACKAGE, "../meshes/cube.obj"])
@pytest.mark.parametrize("floating", [False, True])
def test_a_urdf_is_converted_with_its_meshes(tmp_path: Path, mesh: str, floating: bool) -> None:
    urdf = URDF.replace("hinge", "root")  # the name that the free joint would have
    files = {"two_description/urdf/two.urdf": urdf.format(visual=mesh, collision=mesh)}
    made = created(tmp_path, {**files, "two_description/meshes/cube.obj": CUBE}, floating=floating)
    assert {str(f.relative_to(made.package)) for f in made.package.rglob("*.obj")} == {"meshes/cube.obj"}
    model = mujoco.MjModel.from_xml_path(str(made.package / "two.xml"))
    assert model.njnt == 1 + floating
    assert model.nmesh == 1
    hinge = model.joint("root").id
    np.testing.assert_allclose(model.jnt_range[hinge], [-1, 1])
    np.testing.assert_allclose(model.jnt_actfrcrange[hinge], [-20, 20])
    assert (made.robot.base is not None) == floating
    if floating:
        assert model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
        assert model.body("base").mass == 1


def test_meshes_of_a_urdf_with_equal_names_stay_apart(tmp_path: Path) -> None:
    text = URDF.format(visual="visual/cube.obj", collision="collision/cube.obj")
    made = created(tmp_path, {"a.urdf": text, "visual/cube.obj": CUBE, "collision/cube.obj": CUBE.replace(".1", ".2")})
    assert mujoco.MjModel.from_xml_path(str(made.package / "a.xml")).nmesh == 2


def stl(faces: int, *, ascii_text: bool = False) -> bytes:
    """An STL of a ball with at least so many faces."""
    divisions = math.ceil(math.log(faces / 20, 4))
    ball = trimesh.creation.icosphere(divisions, radius=0.05)
    return export_stl_ascii(ball).encode() if ascii_text else export_stl(ball)


UNREADABLE = {
    "format.dae": b"<COLLADA/>",
    "cut.stl": stl(20)[:600],
    "cut_ascii.stl": stl(20, ascii_text=True)[:600],
    "cut_number.stl": stl(20, ascii_text=True).replace(b"vertex 0.0", b"vertex 0.0 x"),
    "empty.stl": b"",
    "nan.stl": stl(20)[:96] + b"\xff" * 4 + stl(20)[100:],
    "garbage.obj": b"garbage",
    "garbage.msh": bytes(100),
    "flat.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nv 1 1 0\nf 1 2 3\nf 2 3 4\n",
}
"""Meshes that nothing can be done about."""


def converted(folder: Path, urdf: str, meshes: dict[str, bytes]) -> mujoco.MjModel:
    """Convert a URDF with meshes to an MJCF, and load it."""
    for name, content in {"a.urdf": urdf.encode(), **meshes}.items():
        (folder / name).write_bytes(content)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    mjcf = convert("--mjcf a.urdf", folder / "a.urdf", parse(folder / "a.urdf"), scratch, floating=False)
    return mujoco.MjModel.from_xml_path(str(mjcf))


@pytest.mark.parametrize("name", UNREADABLE)
def test_meshes_that_mujoco_cannot_use_are_left_out_or_refused_for_collisions(tmp_path: Path, name: str) -> None:
    meshes = {"cube.obj": CUBE.encode(), name: UNREADABLE[name]}
    model = converted(tmp_path, URDF.format(visual=name, collision="cube.obj"), meshes)
    assert model.ngeom == 2, "the box and the mesh for collisions"
    message = rf"^--mjcf a\.urdf: its mesh {name}: [^/\n]*; save it .* as binary STL or OBJ$"
    with pytest.raises(UserError, match=message):
        converted(tmp_path, URDF.format(visual="cube.obj", collision=name), meshes)


@pytest.mark.slow
@pytest.mark.parametrize(("faces", "ascii_text"), [(1000, True), (200_001, False)])
def test_stls_that_mujoco_does_not_read_are_converted(tmp_path: Path, faces: int, ascii_text: bool) -> None:
    urdf = URDF.format(visual="ball.stl", collision="ball.stl")
    model = converted(tmp_path, urdf, {"ball.stl": stl(faces, ascii_text=ascii_text)})
    assert model.ngeom == 3
    assert model.nmeshface >= faces
    assert model.nmeshvert == model.nmeshface // 2 + 2, "equal vertices are merged (Euler's formula)"
    np.testing.assert_allclose(np.linalg.norm(model.mesh_vert, axis=1), 0.05, rtol=1e-3)


def test_floating_is_for_urdfs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape("but --floating needs a URDF; add <freejoint/> to the base")):
        created(tmp_path, {"a.xml": mjcf()}, floating=True)


def test_a_directory_is_created_and_removed_on_failure(tmp_path: Path) -> None:
    created(tmp_path, {"a.xml": mjcf()})
    assert (tmp_path / "made" / "here" / "made_for_test" / "pyproject.toml").is_file()
    assert [path.name for path in (tmp_path / "made" / "here").iterdir()] == ["made_for_test"]
