"""Parts that a task needs and an MJCF may lack: names, a ground, a camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mujoco


@dataclass(frozen=True, kw_only=True)
class Lacks:
    """Parts that an MJCF lacks and that a config or a video needs."""

    joint_names: dict[int, str]
    """Names for joints without one, by their index in ``mujoco.MjSpec.joints``."""
    actuator_names: dict[int, str]
    """Names for actuators without one, by their index in ``mujoco.MjSpec.actuators``."""
    keyframe_name: str | None
    """Name for the first keyframe, if it is the start state and has no name."""
    ground: bool
    """Whether a ground is missing, without which a floating robot would fall forever."""
    camera: bool
    """Whether a camera is missing, without which a floating robot would walk out of the picture."""

    def __bool__(self) -> bool:
        """Return whether anything is missing."""
        return any(vars(self).values())


def find_lacks(spec: mujoco.MjSpec, model: mujoco.MjModel, key: int | None, free: int | None) -> Lacks:
    """Find the parts that an MJCF lacks.

    Args:
        spec: The MJCF.
        model: The model that it compiles to.
        key: The keyframe that episodes start from.
        free: The free joint of a floating robot.
    """
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    is_ground = (model.body_weldid[model.geom_bodyid] == 0) & collides
    return Lacks(
        joint_names=_new_names(
            [joint.name for joint in spec.joints],
            ["root" if i == free else joint.parent.name or "joint" for i, joint in enumerate(spec.joints)],
        ),
        actuator_names=_new_names(
            [actuator.name for actuator in spec.actuators],
            [actuator.target or "actuator" for actuator in spec.actuators],
        ),
        keyframe_name="home" if key is not None and not model.key(key).name else None,
        ground=free is not None and not is_ground.any(),
        camera=free is not None and not model.ncam,
    )


def supply(spec: mujoco.MjSpec, lacks: Lacks, free_joint: str | None) -> None:
    """Add the missing parts to an MJCF, as the generated ``model.py`` does.

    Args:
        spec: The MJCF, changed in place.
        lacks: The missing parts.
        free_joint: The free joint of a floating robot.
    """
    import mujoco

    for i, name in lacks.joint_names.items():
        spec.joints[i].name = name
    for i, name in lacks.actuator_names.items():
        spec.actuators[i].name = name
    if lacks.keyframe_name is not None:
        spec.keys[0].name = lacks.keyframe_name
    if lacks.ground:
        spec.worldbody.add_geom(
            name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.1], contype=1, conaffinity=1
        )
    if lacks.camera and free_joint is not None:
        spec.joint(free_joint).parent.add_camera(name="track")


def _new_names(names: Sequence[str], wishes: Sequence[str]) -> dict[int, str]:
    """Return names for the elements without one, by index: the preferred names, with a number if a name is taken."""
    taken = set(names)
    found: dict[int, str] = {}
    for i, (name, wish) in enumerate(zip(names, wishes, strict=True)):
        if not name:
            endings = ("", *(f"_{n}" for n in range(2, len(names) + 2)))
            found[i] = next(f"{wish}{ending}" for ending in endings if f"{wish}{ending}" not in taken)
            taken.add(found[i])
    return found
