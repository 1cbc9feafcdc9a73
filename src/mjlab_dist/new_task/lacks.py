"""Parts that a task needs and an MJCF may lack: names, a start pose, a ground, a camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.new_task.joints import mocap_welds

if TYPE_CHECKING:
    import mujoco


FREE = 0
"""Type of a free joint, ``mujoco.mjtJoint.mjJNT_FREE``."""

HOME = "home"
"""Name of the keyframe for a start pose that was found by simulation."""

END_SITE = "end_effector"
"""Name of the site that is added to an end effector."""

TOUCHING_M = 1e-3
"""Maximum distance between geoms that count as touching, in m."""

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
    """Names for bodies without one that the config or ``model.py`` refers to, by their index in
    ``mujoco.MjSpec.bodies``."""
    home: tuple[float, ...] = ()
    """Positions of all joints in a start pose that was found by simulation; empty if no pose was found this way."""
    weightless: tuple[str, ...] = ()
    """Names of the root bodies of arms with torque motors that sag at action 0. For these bodies and all bodies below
    them, ``model.py`` compensates gravity."""
    mocap_welds: tuple[int, ...] = ()
    """Indices of constraints that attach a robot without actuators to a mocap body. ``model.py`` disables these
    constraints, because the added motors move the robot."""
    touching: tuple[tuple[str, str], ...] = ()
    """Names of a fixed body and of a link on it, for each pair that touches. ``model.py`` must exclude the contacts
    between the two, because MuJoCo itself excludes contacts of a link with its parent only if both can move."""
    end_site: tuple[str, tuple[float, float, float]] | None = None
    """Body of the end effector, and the position of its site in the frame of the body, if the MJCF has no such site."""
    target: bool = False
    """Whether the MJCF lacks a body that shows the target of the end effector."""
    ground: bool = False
    """Whether a robot that can fall has no ground. A floor is added, because the robot would fall forever."""
    backdrop: bool = False
    """Whether a robot that is fixed to the world has no floor. A floor is added, so that videos show one."""
    camera: str = ""
    """Name for a new camera, if the first camera of the MJCF does not show the robot, or there is none."""
    light: bool = False
    """Whether a light is missing."""

    def __bool__(self) -> bool:
        """Return whether anything is missing."""
        return any(vars(self).values())


def find_names(spec: mujoco.MjSpec, model: mujoco.MjModel, key: int | None) -> Lacks:
    """Find the names that an MJCF lacks.

    Args:
        spec: The MJCF.
        model: The model compiled from the MJCF.
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


def find_scenery(model: mujoco.MjModel, *, is_moving: bool, can_fall: bool, is_shown: bool) -> Lacks:
    """Find missing parts of an MJCF (ground, camera, light), and constraints that attach the robot to a mocap body.

    Args:
        model: The model.
        is_moving: Whether the robot moves; otherwise it is fixed to the world.
        can_fall: Whether the robot can fall.
        is_shown: Whether the first camera of the MJCF shows the robot.
    """
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    in_world = model.body_weldid[model.geom_bodyid] == 0
    has_plane = (in_world & (model.geom_type == 0)).any()
    return Lacks(
        mocap_welds=() if model.nu else tuple(mocap_welds(model)),
        ground=can_fall and not (in_world & collides).any(),
        backdrop=not is_moving and not has_plane,
        camera="" if is_shown else _new_camera(model, "track" if is_moving else "overview"),
        light=not model.nlight,
    )


def find_touching(model: mujoco.MjModel, start: mujoco.MjData) -> list[tuple[int, int]]:
    """Find the links that touch the fixed body that they are attached to.

    MuJoCo ignores contacts between a link and its parent only if both can move. If the joint cannot separate two bodies
    in contact, the contact has no solution, and MuJoCo Warp computes infinite numbers.

    Args:
        model: The model.
        start: The start state.

    Returns:
        Pairs of a fixed body and a link.
    """
    import mujoco

    found: list[tuple[int, int]] = []
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    excluded = {(int(pair) >> 16, int(pair) & 0xFFFF) for pair in model.exclude_signature}
    for link in range(1, model.nbody):
        fixed = int(model.body_parentid[link])
        is_first = model.body_weldid[link] != 0 and model.body_weldid[fixed] == 0
        while is_first and fixed != 0:
            pairs = [
                (a, b)
                for a in np.flatnonzero(collides & (model.geom_bodyid == fixed))
                for b in np.flatnonzero(collides & (model.geom_bodyid == link))
            ]
            touch = any(mujoco.mj_geomDistance(model, start, a, b, TOUCHING_M, None) < TOUCHING_M for a, b in pairs)
            if touch and (fixed, link) not in excluded and (link, fixed) not in excluded:
                found.append((fixed, link))
            fixed = int(model.body_parentid[fixed])
    return found


def supply(spec: mujoco.MjSpec, lacks: Lacks) -> None:
    """Add to an MJCF the missing parts that affect the physics, as the generated ``model.py`` does.

    Args:
        spec: The MJCF, changed in place.
        lacks: The missing parts.
    """
    import mujoco

    _supply_names(spec, lacks)
    for i in lacks.mocap_welds:
        spec.equalities[i].active = False
    for fixed, link in lacks.touching:
        spec.add_exclude(bodyname1=fixed, bodyname2=link)
    if lacks.keyframe_name is not None:
        spec.keys[0].name = lacks.keyframe_name
    if lacks.home:
        spec.add_key(name=HOME, qpos=lacks.home)
    for name in lacks.weightless:
        for body in (spec.body(name), *spec.body(name).find_all("body")):
            body.gravcomp = 1.0
    if lacks.end_site is not None:
        spec.body(lacks.end_site[0]).add_site(name=END_SITE, pos=lacks.end_site[1])
    if lacks.target:
        spec.worldbody.add_body(name=TARGET, mocap=True)
    if lacks.ground:
        spec.worldbody.add_geom(
            name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.1], contype=1, conaffinity=1
        )


def _supply_names(spec: mujoco.MjSpec, lacks: Lacks) -> None:
    for elements, names in (
        (spec.joints, lacks.joint_names),
        (spec.actuators, lacks.actuator_names),
        (spec.bodies, lacks.body_names),
    ):
        for i, name in names.items():
            elements[i].name = name


def _new_camera(model: mujoco.MjModel, wish: str) -> str:
    names = [model.camera(i).name or "camera" for i in range(model.ncam)]
    return _new_names([*names, ""], [*names, wish])[len(names)]


def _new_names(names: Sequence[str], wishes: Sequence[str]) -> dict[int, str]:
    """Return a dict from the index of each unnamed element to its new name.

    The new name is the preferred name, or, if this name is taken, the preferred name with a number.
    """
    taken = set(names)
    found: dict[int, str] = {}
    for i, (name, wish) in enumerate(zip(names, wishes, strict=True)):
        if not name:
            endings = ("", *(f"_{n}" for n in range(2, len(names) + 2)))
            found[i] = next(f"{wish}{ending}" for ending in endings if f"{wish}{ending}" not in taken)
            taken.add(found[i])
    return found
