"""Parts that a task needs and an MJCF may lack: names, a start pose, a ground, a camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mujoco


FREE = 0
"""Type of a free joint, ``mujoco.mjtJoint.mjJNT_FREE``."""

HOME = "home"
"""Name of the keyframe of a pose that is found."""

END_SITE = "end_effector"
"""Name of the site that is added to an end effector."""

TARGET = "reach_target"
"""Name of the body that shows the target of an end effector."""


@dataclass(frozen=True, kw_only=True)
class Lacks:
    """Parts that an MJCF lacks and that a config or a video needs."""

    joint_names: dict[int, str] = field(default_factory=dict)
    """Names for joints without one, by their index in ``mujoco.MjSpec.joints``."""
    actuator_names: dict[int, str] = field(default_factory=dict)
    """Names for actuators without one, by their index in ``mujoco.MjSpec.actuators``."""
    keyframe_name: str | None = None
    """Name for the first keyframe, if it is the start state and has no name."""
    body_names: dict[int, str] = field(default_factory=dict)
    """Names for bodies that the config refers to, by their index in ``mujoco.MjSpec.bodies``."""
    home: tuple[float, ...] = ()
    """Positions of all joints in the pose in which the robot stands, if that is not the reference pose."""
    end_site: tuple[str, tuple[float, float, float]] | None = None
    """Body of the end effector, and the position of its site in the frame of the body, if the MJCF has no such site."""
    target: bool = False
    """Whether a body that shows the target of the end effector is missing."""
    ground: bool = False
    """Whether a ground is missing, without which a floating robot would fall forever."""
    backdrop: bool = False
    """Whether a floor is missing, on which videos show a robot that is fixed to the world."""
    camera: bool = False
    """Whether a camera is missing, without which a moving robot would leave the picture."""
    light: bool = False
    """Whether a light is missing."""

    def __bool__(self) -> bool:
        """Return whether anything is missing."""
        return any(vars(self).values())


def find_names(spec: mujoco.MjSpec, model: mujoco.MjModel, key: int | None) -> Lacks:
    """Find the names that an MJCF lacks.

    Args:
        spec: The MJCF.
        model: The model that it compiles to.
        key: The keyframe that episodes start from.
    """
    free = {i for i, joint in enumerate(spec.joints) if joint.type == FREE}
    return Lacks(
        joint_names=_new_names(
            [joint.name for joint in spec.joints],
            ["root" if i in free else joint.parent.name or "joint" for i, joint in enumerate(spec.joints)],
        ),
        actuator_names=_new_names(
            [actuator.name for actuator in spec.actuators],
            [actuator.target or "actuator" for actuator in spec.actuators],
        ),
        keyframe_name="home" if key is not None and not model.key(key).name else None,
    )


def find_scenery(model: mujoco.MjModel, *, is_moving: bool, can_fall: bool) -> Lacks:
    """Find the ground, the camera and the light that an MJCF lacks.

    Args:
        model: The model.
        is_moving: Whether the robot moves; otherwise it is fixed to the world.
        can_fall: Whether the robot can fall.
    """
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    in_world = model.body_weldid[model.geom_bodyid] == 0
    has_plane = (in_world & (model.geom_type == 0)).any()
    return Lacks(
        ground=can_fall and not (in_world & collides).any(),
        backdrop=not is_moving and not has_plane,
        camera=not model.ncam,
        light=not model.nlight,
    )


def supply(spec: mujoco.MjSpec, lacks: Lacks) -> None:
    """Add the missing parts that matter to the physics to an MJCF, as the generated ``model.py`` does.

    Args:
        spec: The MJCF, changed in place.
        lacks: The missing parts.
    """
    import mujoco

    for i, name in lacks.joint_names.items():
        spec.joints[i].name = name
    for i, name in lacks.actuator_names.items():
        spec.actuators[i].name = name
    for i, name in lacks.body_names.items():
        spec.bodies[i].name = name
    if lacks.keyframe_name is not None:
        spec.keys[0].name = lacks.keyframe_name
    if lacks.home:
        spec.add_key(name=HOME, qpos=lacks.home)
    if lacks.end_site is not None:
        spec.body(lacks.end_site[0]).add_site(name=END_SITE, pos=lacks.end_site[1])
    if lacks.target:
        spec.worldbody.add_body(name=TARGET, mocap=True)
    if lacks.ground:
        spec.worldbody.add_geom(
            name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.1], contype=1, conaffinity=1
        )


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
