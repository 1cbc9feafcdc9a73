"""Text of the ``model.py`` of a new task, which adds the parts that the MJCF lacks."""

from __future__ import annotations

from mjlab_dist.authoring.new_task.lacks import HOME
from mjlab_dist.authoring.new_task.robot import Robot
from mjlab_dist.authoring.new_task.source import Names, indented, rounded, text, tuple_lines


def model_source(names: Names, robot: Robot) -> str:
    """Return the text of ``model.py`` for an MJCF that lacks something."""
    return f'''"""The model of the task {names.task}: {names.file} and the parts that it lacks.

Change the model here, or in the MJCF itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mujoco


def robot() -> mujoco.MjSpec:
    """Return {names.file} with the parts that it lacks."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(Path(__file__).parent / {text(names.file)}))
{indented(_statements(robot), 4)}
    return spec
'''


def _statements(robot: Robot) -> list[str]:
    """Return the lines that add the missing parts."""
    lacks = robot.lacks
    body = [
        *_names_source("joints", lacks.joint_names),
        *_names_source("actuators", lacks.actuator_names),
    ]
    body += _names_source("bodies", lacks.body_names)
    body += _names_source("geoms", lacks.geom_names)
    if lacks.keyframe_name is not None:
        body += ["# Name the keyframe, which has no name.", f"spec.keys[0].name = {text(lacks.keyframe_name)}"]
    if lacks.home:
        body += _home_source(robot)
    for one, other in lacks.touching:
        body += [
            "# Exclude a contact that no joint can open, such as that of a link and its base. It holds the joint.",
            f"spec.add_exclude(bodyname1={text(one)}, bodyname2={text(other)})",
        ]
    if lacks.mocap_welds:
        body += [
            "# Constraints that attach the robot to a mocap body are off, because motors move the robot.",
            f"for i in {lacks.mocap_welds!r}:",
            "    spec.equalities[i].active = False",
        ]
    if lacks.weightless:
        body += [
            "# Torque motors do not hold a pose at action 0. These lines compensate gravity, as the controllers of",
            "# such arms do. Delete the lines if your controller does not.",
            *tuple_lines("for name in ", lacks.weightless, ":", 4),
            '    for body in (spec.body(name), *spec.body(name).find_all("body")):',
            "        body.gravcomp = 1.0",
        ]
    if lacks.end_site is not None:
        body_name, name, pos = lacks.end_site
        body += [
            "# The point that reaches for targets: the tip of the last link, or between the fingertips.",
            f"spec.body({text(body_name)}).add_site(name={text(name)}, pos={_rounded(pos)!r})",
        ]
    if lacks.target:
        body += [
            "# A sphere that shows the target.",
            f"target = spec.worldbody.add_body(name={text(lacks.target)}, mocap=True)",
            f"target.add_site(size=[{rounded(robot.view.extent_m / 60)!r}, 0.0, 0.0], rgba=[0.9, 0.2, 0.1, 1.0])",
        ]
    if lacks.ground or lacks.backdrop:
        body += _ground_source(robot)
    body += _camera_source(robot) if lacks.camera else []
    body += _light_source(robot) if lacks.light else []
    return body


def _home_source(robot: Robot) -> list[str]:
    stands = "the robot stands" if robot.stands else "the legs are bent, but the robot does not keep standing"
    values = [f"{number:.4g}" if number % 1 else f"{number:.1f}" for number in robot.lacks.home]
    rows = [", ".join(values[i : i + 12]) + "," for i in range(0, len(values), 12)]
    return [
        f"# A start pose that was found by simulation, in which {stands}.",
        "# qpos has the positions of all joints in the order of the MJCF. A free joint has a point and a quaternion.",
        "spec.add_key(",
        f"    name={text(HOME)},",
        "    # fmt: off",
        "    qpos=[",
        *(f"        {row}" for row in rows),
        "    ],",
        "    # fmt: on",
        ")",
    ]


def _ground_source(robot: Robot) -> list[str]:
    what = "A floor, without which the robot would fall forever."
    lacks, mask, low_m = robot.lacks, 1, 0.0
    if not lacks.ground:
        what, mask, stand_m = "A floor for videos. Nothing collides with it.", 0, robot.view.stand_m
        if stand_m is not None and robot.pendulum is None:
            low_m = round(stand_m, 3)
        else:  # below all poses of the links
            low_m = min(0.0, rounded(robot.view.center_m[2] - robot.view.extent_m))
    return [
        f"# {what}",
        *_GROUND.format(
            name=text(lacks.ground or lacks.backdrop), tiles=text(lacks.tiles), mask=mask, z=low_m
        ).splitlines(),
    ]


def _light_source(robot: Robot) -> list[str]:
    # MuJoCo draws shadows only near the line through the position of a directional light, along its direction
    at, mode, what, (x, y, _) = "spec.worldbody", [], "A light from above.", robot.view.center_m
    if robot.base is not None:
        at, what = f"spec.joint({text(robot.base.joint)}).parent", "A light from above that follows the robot."
        mode, x, y = ["    mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM,"], 0.0, 0.0
    return [
        f"# {what}",
        f"{at}.add_light(",
        f"    name={text(robot.lacks.light)},",
        *mode,
        "    type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,",
        f"    pos={_rounded((x - 0.8, y - 1.2, 4.0))!r},",
        "    dir=[0.2, 0.3, -1.0],",
        "    diffuse=[0.6, 0.6, 0.6],",
        ")",
        "# Draw shadows in an area twice as large as usual, so that its edge is out of view.",
        "spec.visual.map.shadowclip = 2.0",
    ]


def _camera_source(robot: Robot) -> list[str]:
    if robot.base is not None:
        return [
            "# A camera that follows the robot, for play --video.",
            f"spec.joint({text(robot.base.joint)}).parent.add_camera(",
            f"    name={text(robot.lacks.camera)},",
            "    mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM,",
            f"    pos=[0.0, {_camera_m(robot)!r}, {rounded(-_camera_m(robot) / 3)!r}],",
            "    xyaxes=[1.0, 0.0, 0.0, 0.0, 0.3, 1.0],",
            ")",
        ]
    x, y, z = robot.view.center_m
    size = robot.view.extent_m
    position = _rounded((x + 0.9 * size, y - 1.2 * size, z + 0.6 * size))
    return [
        "# A camera that shows the whole robot, for play --video.",
        "spec.worldbody.add_camera(",
        f"    name={text(robot.lacks.camera)},",
        f"    pos={position!r},",
        "    xyaxes=[0.8, 0.6, 0.0, -0.22, 0.29, 0.93],",
        ")",
    ]


_GROUND = """spec.add_texture(
    name={tiles},
    type=mujoco.mjtTexture.mjTEXTURE_2D,
    builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
    rgb1=[0.93, 0.94, 0.95],
    rgb2=[0.83, 0.85, 0.88],
    width=256,
    height=256,
)
tiles = spec.add_material(name={tiles}, texrepeat=[1.0, 1.0], texuniform=True)
tiles.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = {tiles}
spec.worldbody.add_geom(
    name={name},
    type=mujoco.mjtGeom.mjGEOM_PLANE,
    pos=[0.0, 0.0, {z!r}],
    size=[0.0, 0.0, 0.1],
    contype={mask},
    conaffinity={mask},
    material={tiles},
)"""


def _rounded(point: tuple[float, float, float]) -> list[float]:
    """Return a point rounded to millimeters."""
    return [round(coordinate, 3) for coordinate in point]


def _names_source(attribute: str, names: dict[int, str]) -> list[str]:
    if not names:
        return []
    return [
        f"# Name the {attribute} that have no name. Keys are their indices in spec.{attribute}.",
        "for i, name in {",
        *(f"    {i}: {text(name)}," for i, name in names.items()),
        "}.items():",
        f"    spec.{attribute}[i].name = name",
    ]


def _camera_m(robot: Robot) -> float:
    """Return the y position of the camera in m.

    The camera is to the right of the robot, so y is negative, and further away from larger or faster robots.
    """
    speed_m_s = robot.base.speed_m_s if robot.base is not None else 0.0
    return rounded(-max(1.3 * robot.view.extent_m, 2.0 * speed_m_s))
