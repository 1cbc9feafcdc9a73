"""Parts that a task needs and an MJCF may lack: names, a start pose, a ground, a camera that shows the robot.

Also contacts that keep joints from moving, and joints that their motors do not move.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.authoring.new_task.action_blocks import Block, action_inputs
from mjlab_dist.authoring.new_task.joints import actuated_joint, box_corners, is_below, is_hinge, mocap_welds
from mjlab_dist.sim.names import new_name
from mjlab_dist.sim.render import VIDEO_SIZE

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Type of a free joint, `mujoco.mjtJoint.mjJNT_FREE`
FREE = 0

# Name of the keyframe for a start pose that was found by simulation
HOME = "home"

# Width of a video frame divided by its height
ASPECT = VIDEO_SIZE[0] / VIDEO_SIZE[1]

# Minimum share of the corners of a robot's bounding boxes that a camera must show
MIN_INSIDE = 0.8

# Minimum size of the robot in the picture, as a share of the picture's height
MIN_PICTURE_SHARE = 0.02

# Maximum distance between geoms that count as touching, in m
TOUCHING_M = 1e-3

# Number of random poses in which contacts are looked for
NUM_POSES = 64

# Change of a hinge that counts as motion, in rad
MOVED_RAD = 0.1

# Change of a slide joint that counts as motion, in m
MOVED_M = 0.01

# Time in which an action of 1 or -1 must move a joint, in simulated seconds
MOVED_S = 5.0


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
    # Names for the geoms of feet without one, by their index in mujoco.MjSpec.geoms
    geom_names: dict[int, str] = field(default_factory=dict)
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
        (spec.geoms, lacks.geom_names),
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


@dataclass(frozen=True, kw_only=True)
class View:
    """The part of the scene that a camera must show."""

    # Center of this part
    center_m: tuple[float, float, float]
    # Diagonal of the box around this part
    extent_m: float
    # Height of the lowest point of this part and of all fixed geoms, on which the robot stands; None without fixed
    # geoms.
    stand_m: float | None


def find_view(model: mujoco.MjModel, start: mujoco.MjData) -> View:
    """Return the view that contains all moving bodies and the bodies that they are attached to."""
    corners = box_corners(model, start, _shown(model))
    if not len(corners):
        return View(center_m=(0.0, 0.0, 0.0), extent_m=1.0, stand_m=None)
    low, high = corners.min(axis=0), corners.max(axis=0)
    x, y, z = map(float, (low + high) / 2)
    fixed = box_corners(model, start, (model.body_weldid[model.geom_bodyid] == 0) & (model.geom_rbound > 0.0))
    stand_m = float(min(low[2], fixed[:, 2].min())) if len(fixed) else None
    return View(center_m=(x, y, z), extent_m=float(np.linalg.norm(high - low)), stand_m=stand_m)


def shows_robot(model: mujoco.MjModel, start: mujoco.MjData) -> bool:
    """Return whether the first camera, which videos use, shows ``MIN_INSIDE`` of the robot in the start state."""
    corners = box_corners(model, start, _shown(model))
    if not model.ncam or not len(corners):
        return bool(model.ncam)
    # Corners in the coordinate system of the camera, which looks along -z
    local = (corners - start.cam_xpos[0]) @ start.cam_xmat[0].reshape(3, 3)
    depth_m = -local[:, 2]
    in_front = depth_m > model.vis.map.znear * model.stat.extent
    # Corners in the picture, with y = 1 at the top of the picture
    picture = local[:, :2] / np.where(in_front, depth_m, 1.0)[:, None]
    picture /= math.tan(math.radians(float(model.cam_fovy[0])) / 2)
    inside = in_front & (np.abs(picture) <= (ASPECT, 1.0)).all(axis=1)
    if inside.mean() < MIN_INSIDE:
        return False
    return bool(np.ptp(picture[inside], axis=0).max() >= 2 * MIN_PICTURE_SHARE)


def _shown(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Return which geoms belong to a kinematic tree that can move, (num_geoms,)."""
    roots = np.unique(model.body_rootid[model.body_weldid != 0])
    return np.isin(model.body_rootid[model.geom_bodyid], roots) & (model.geom_bodyid != 0)


def find_touching(
    model: mujoco.MjModel, start: mujoco.MjData, joints: Sequence[int], root: Sequence[int]
) -> list[tuple[int, int]]:
    """Find pairs of bodies whose contact no joint can open, and links that touch the fixed body they are attached to.

    MuJoCo ignores contacts between a link and its parent only if both can move. A contact that the joints cannot open
    has no solution: it holds the joints, and MuJoCo Warp can compute infinite numbers.
    """
    import mujoco

    # Ignore the ground, on which robots may slide
    model, joints = copy.copy(model), list(joints)
    model.geom_margin[:] = TOUCHING_M
    is_ground = np.isin(model.geom_type, (int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_HFIELD)))
    model.geom_contype[is_ground] = model.geom_conaffinity[is_ground] = 0
    # Ranges of the joints
    limited = model.jnt_limited[joints].astype(bool)
    width = np.array([np.pi if is_hinge(model, j) else 0.1 for j in joints])
    columns = model.jnt_qposadr[joints]
    low = np.where(limited, model.jnt_range[joints, 0], start.qpos[columns] - width)
    high = np.where(limited, model.jnt_range[joints, 1], start.qpos[columns] + width)
    # Pairs that touch in the start state, and in all poses
    data, rng = copy.copy(start), np.random.default_rng(0)
    at_start = always = _touching(model, data)
    for _ in range(NUM_POSES):
        if not always:
            break
        data.qpos[columns] = rng.uniform(low, high)
        always = always & _touching(model, data)
    # Links on a fixed body. For other pairs, a driven joint must be between the two: a cube on a table also touches it
    # in every pose of an arm.
    fixed, parents = model.body_weldid == 0, model.body_parentid
    on_base = {(a, b) for a, b in at_start if a and fixed[a] and fixed[parents[b]] and is_below(model, b, a)}
    moved = [{j for j in joints if is_below(model, body, int(model.jnt_bodyid[j]))} for body in range(model.nbody)]
    stuck = {(a, b) for a, b in always if moved[a] != moved[b] and not (root and (fixed[a] or fixed[b]))}
    return sorted(on_base | stuck)


def _touching(model: mujoco.MjModel, data: mujoco.MjData) -> set[tuple[int, int]]:
    """Return the pairs of bodies that touch, with the smaller id first."""
    import mujoco

    mujoco.mj_fwdPosition(model, data)
    contact = data.contact
    touch = (contact.geom >= 0).all(axis=1) & (contact.dist < TOUCHING_M)  # -1 stands for a flex
    bodies = np.sort(model.geom_bodyid[contact.geom[touch]], axis=1)
    return {(int(a), int(b)) for a, b in bodies}


def find_jams(
    model: mujoco.MjModel, start: mujoco.MjData, blocks: Mapping[str, Block], root: Sequence[int]
) -> dict[str, str]:
    """Find joints that their motors do not move, one by one, in either direction, without gravity and ground.

    Returns:
        The reasons by name of the joint.
    """
    model = copy.copy(model)
    model.opt.gravity[:] = 0.0
    if root:
        fixed = model.body_weldid[model.geom_bodyid] == 0
        model.geom_contype[fixed] = model.geom_conaffinity[fixed] = 0
    inputs = action_inputs(model, start.qpos, blocks)
    driven = {j: i for i in range(model.nu) if inputs.scales[i] and (j := actuated_joint(model, i)) is not None}
    found: dict[str, str] = {}
    for joint, actuator in driven.items():
        reasons = [
            _reason(model, start, joint, inputs.of(action * (np.arange(model.nu) == actuator)))
            for action in (1.0, -1.0)
        ]
        if all(reasons):
            found[model.joint(joint).name] = reasons[0]
    return found


def _reason(model: mujoco.MjModel, start: mujoco.MjData, joint: int, inputs: NDArray[np.float64]) -> str:
    """Return why a joint does not move with the given inputs of all actuators, (nu,); empty if it does."""
    import mujoco

    data, column = copy.copy(start), model.jnt_qposadr[joint]
    data.ctrl[:] = inputs
    reach = MOVED_RAD if is_hinge(model, joint) else MOVED_M
    if model.jnt_limited[joint]:
        reach = min(reach, 0.25 * float(np.ptp(model.jnt_range[joint])))
    for _ in range(round(MOVED_S / model.opt.timestep)):
        mujoco.mj_step(model, data)
        if abs(data.qpos[column] - start.qpos[column]) >= reach:
            return ""
    body = int(model.jnt_bodyid[joint])
    for a, b in _touching(model, data):
        if is_below(model, a, body) != is_below(model, b, body):
            return f"{_name(model, a)} and {_name(model, b)} touch"
    return "its motor is too weak"


def _name(model: mujoco.MjModel, body: int) -> str:
    return model.body(body).name or f"body {body}"
