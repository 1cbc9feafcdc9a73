"""Parts that a task needs and an MJCF may lack: names, a start pose, a ground, a camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mjlab_dist.authoring.new_task.joints import mocap_welds
from mjlab_dist.sim.names import new_name

if TYPE_CHECKING:
    import mujoco


# Type of a free joint, `mujoco.mjtJoint.mjJNT_FREE`
FREE = 0

# Name of the keyframe for a start pose that was found by simulation
HOME = "home"


@dataclass(frozen=True, kw_only=True)
class Lacks:
    """Parts that an MJCF lacks and that a config or a video needs."""

    # Names for joints without one, by their index in mujoco.MjSpec.joints
    joint_names: dict[int, str] = field(default_factory=dict)
    # Names for actuators without one, by their index in mujoco.MjSpec.actuators
    actuator_names: dict[int, str] = field(default_factory=dict)
    # Name for the first keyframe, if it is the start state and has no name
    keyframe_name: str | None = None
    # Names for bodies without one that the config or model.py refers to, by their index in mujoco.MjSpec.bodies
    body_names: dict[int, str] = field(default_factory=dict)
    # Positions of all joints in a start pose that was found by simulation; empty if no pose was found this way
    home: tuple[float, ...] = ()
    # Names of the root bodies of arms with torque motors that sag at action 0. For these bodies and all bodies below
    # them, model.py compensates gravity.
    weightless: tuple[str, ...] = ()
    # Indices of constraints that attach a robot without actuators to a mocap body. model.py disables these constraints,
    # because the added motors move the robot.
    mocap_welds: tuple[int, ...] = ()
    # Names of two bodies that touch and whose contact no joint can open, for each such pair. model.py must exclude the
    # contact, because it would hold the joints.
    touching: tuple[tuple[str, str], ...] = ()
    # Body of the end effector, and the name and position of its site in the frame of the body, if the MJCF has no such
    # site.
    end_site: tuple[str, str, tuple[float, float, float]] | None = None
    # Name for a body that shows the target of the end effector, if there is an end effector
    target: str = ""
    # Name for a floor, if a robot that can fall has no ground. The robot would fall forever.
    ground: str = ""
    # Name for a floor, if a robot that is fixed to the world has none. Videos then show a floor.
    backdrop: str = ""
    # Name for the texture and material of the floor
    tiles: str = ""
    # Name for a new camera, if the first camera of the MJCF does not show the robot, or there is none
    camera: str = ""
    # Name for a light, if there is none
    light: str = ""

    def __bool__(self) -> bool:
        """Return whether anything is missing."""
        return any(vars(self).values())


def find_names(spec: mujoco.MjSpec, model: mujoco.MjModel, key: int | None) -> Lacks:
    """Find the names that an MJCF lacks."""
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
    """Find missing parts of an MJCF (ground, camera, light), and constraints that attach the robot to a mocap body."""
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    in_world = model.body_weldid[model.geom_bodyid] == 0
    has_plane = (in_world & (model.geom_type == 0)).any()
    geoms, materials = names_of(model, "geom"), [*names_of(model, "tex"), *names_of(model, "mat")]
    needs_ground, needs_backdrop = can_fall and not (in_world & collides).any(), not is_moving and not has_plane
    return Lacks(
        mocap_welds=() if model.nu else tuple(mocap_welds(model)),
        ground=new_name("floor", geoms) if needs_ground else "",
        backdrop=new_name("backdrop", geoms) if needs_backdrop else "",
        tiles=new_name("tiles", materials) if needs_ground or needs_backdrop else "",
        camera="" if is_shown else new_name("track" if is_moving else "overview", names_of(model, "cam")),
        light="" if model.nlight else "sun",
    )


def names_of(model: mujoco.MjModel, kind: str) -> list[str]:
    """Return the names of all elements of one kind; empty names stand for elements without one."""
    return [getattr(model, kind)(i).name for i in range(getattr(model, f"n{kind}"))]


def supply(spec: mujoco.MjSpec, lacks: Lacks) -> None:
    """Add to an MJCF the missing parts that affect the physics, as the generated ``model.py`` does."""
    import mujoco

    _supply_names(spec, lacks)
    for i in lacks.mocap_welds:
        spec.equalities[i].active = False
    for one, other in lacks.touching:
        spec.add_exclude(bodyname1=one, bodyname2=other)
    if lacks.keyframe_name is not None:
        spec.keys[0].name = lacks.keyframe_name
    if lacks.home:
        spec.add_key(name=HOME, qpos=lacks.home)
    for name in lacks.weightless:
        for body in (spec.body(name), *spec.body(name).find_all("body")):
            body.gravcomp = 1.0
    if lacks.end_site is not None:
        body, name, pos = lacks.end_site
        spec.body(body).add_site(name=name, pos=pos)
    if lacks.target:
        spec.worldbody.add_body(name=lacks.target, mocap=True)
    if lacks.ground:
        spec.worldbody.add_geom(
            name=lacks.ground, type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.1], contype=1, conaffinity=1
        )


def _supply_names(spec: mujoco.MjSpec, lacks: Lacks) -> None:
    for elements, names in (
        (spec.joints, lacks.joint_names),
        (spec.actuators, lacks.actuator_names),
        (spec.bodies, lacks.body_names),
    ):
        for i, name in names.items():
            elements[i].name = name


def _new_names(names: Sequence[str], wishes: Sequence[str]) -> dict[int, str]:
    """Return a dict from the index of each unnamed element to its new name."""
    taken = set(names)
    found: dict[int, str] = {}
    for i, (name, wish) in enumerate(zip(names, wishes, strict=True)):
        if not name:
            found[i] = new_name(wish, taken)
            taken.add(found[i])
    return found
