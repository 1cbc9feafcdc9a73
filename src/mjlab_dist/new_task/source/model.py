"""Text of the ``model.py`` of a new task, which adds the parts that the MJCF lacks."""

from __future__ import annotations

from mjlab_dist.new_task.base import Base
from mjlab_dist.new_task.robot import Robot
from mjlab_dist.new_task.rounding import rounded
from mjlab_dist.new_task.source.names import Names
from mjlab_dist.new_task.source.python import indented, text


def model_source(names: Names, robot: Robot) -> str:
    """Return the text of ``model.py`` for an MJCF that lacks something.

    Args:
        names: Names of the task and its files.
        robot: The robot in the MJCF.
    """
    # Statements that add the missing parts
    lacks = robot.lacks
    body = [
        *_names_source("joints", "Joints", lacks.joint_names),
        *_names_source("actuators", "Actuators", lacks.actuator_names),
    ]
    if lacks.keyframe_name is not None:
        body += ["# The keyframe without a name.", f"spec.keys[0].name = {text(lacks.keyframe_name)}"]
    if lacks.ground:
        body += _GROUND.splitlines()
    if lacks.camera and robot.base is not None:
        body += [
            "# A camera that follows the robot, for play --video.",
            f"spec.joint({text(robot.base.joint)}).parent.add_camera(",
            '    name="track",',
            "    mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM,",
            f"    pos=[0.0, {_camera_m(robot.base)!r}, {rounded(-_camera_m(robot.base) / 3)!r}],",
            "    xyaxes=[1.0, 0.0, 0.0, 0.0, 0.3, 1.0],",
            ")",
        ]
    # The file
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
{indented(body, 4)}
    return spec
'''


_GROUND = """# A floor, without which the robot would fall forever.
spec.add_texture(
    name="tiles",
    type=mujoco.mjtTexture.mjTEXTURE_2D,
    builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
    rgb1=[0.93, 0.94, 0.95],
    rgb2=[0.83, 0.85, 0.88],
    width=256,
    height=256,
)
tiles = spec.add_material(name="tiles", texrepeat=[1.0, 1.0], texuniform=True)
tiles.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "tiles"
spec.worldbody.add_geom(
    name="floor",
    type=mujoco.mjtGeom.mjGEOM_PLANE,
    size=[0.0, 0.0, 0.1],
    contype=1,
    conaffinity=1,
    material="tiles",
)"""


def _names_source(attribute: str, what: str, names: dict[int, str]) -> list[str]:
    if not names:
        return []
    return [
        f"# {what} without a name, by index in the file; the config refers to them by name.",
        "for i, name in {",
        *(f"    {i}: {text(name)}," for i, name in names.items()),
        "}.items():",
        f"    spec.{attribute}[i].name = name",
    ]


def _camera_m(base: Base) -> float:
    """Return the y position of the camera in m, to the right of the robot; further away from larger, faster robots."""
    return rounded(-max(1.0, 2.0 * base.speed_m_s))
