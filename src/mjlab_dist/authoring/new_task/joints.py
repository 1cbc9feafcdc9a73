"""Joints of an MJCF: the driven joints, the joints that connect a moving robot to the world, and its legs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Maximum range of a finger that slides
FINGER_M = 0.12

# Damping in N s/m or N m s/rad above which a joint counts as fixed. With this damping, a force of 1000 N moves a
# slide joint at only 1 mm/s.
MAX_DAMPING = 1e6

GRAVITY_M_S2 = 9.81

# Maximum penetration of the ground at the start. If a robot is deeper in the ground, it is lifted.
TOLERATED_DEPTH_M = 0.01

# Minimum cosine of the angle between the z axis of an upright body and the vertical
UPRIGHT = 0.8

# A robot has fallen if the ground clearance of its base is below this share of the clearance at the start
FALLEN_SHARE = 0.2

# Maximum distance from the origin of a standing robot's base to the lowest point of the base, as a share of the
# height of the origin above the ground.
MAX_BELLY = 0.9

# Maximum height of an origin that is near the ground, as a share of the height of the robot
LOW_ORIGIN = 0.1

# Minimum density of the medium in which a robot swims. Air has 1.2 kg/m³, and water has 1000 kg/m³.
FLUID_KG_M3 = 100.0

# Froude number v² / (g h) of the walking speed v of a base at height h.
#
# Animals walk at Froude numbers of up to about 0.5 (Alexander 1984, The gaits of bipedal and quadrupedal animals).
FROUDE = 0.25

# Maximum height of a foot above the lowest foot, as a share of the height of the base
SAME_HEIGHT = 0.15

# Maximum height of a point of the sole above the sole's lowest point, as a share of the height of the base
SOLE = 0.02


class Trees(NamedTuple):
    """Robots and other objects with hinges or slide joints, named after their first body or joint."""

    # Names of the robots with motors. The base and the goal belong to one of these robots.
    driven: tuple[str, ...]
    # Names of the other robots and objects
    idle: tuple[str, ...]


def find_root(model: mujoco.MjModel) -> list[int]:
    """Return the joints that connect a moving robot to the world (the root); none for a robot fixed to the world.

    The root belongs to a body that is attached to the world. It is a free joint, or a group of slide joints and hinges
    without actuators, such as the joints for x, z and the pitch of a planar robot. The bodies below this body must have
    driven joints or thrusters, so the free joint of a cube is not a root. If there are several robots, the root is that
    of the robot with the most of them.
    """
    import mujoco

    simple = set(simple_joints(model))
    actuated = _actuated(model) & simple
    pushed = model.site_bodyid[model.actuator_trnid[thrusters(model), 0]].tolist()
    candidates: list[tuple[int, list[int]]] = []
    for body in range(1, model.nbody):
        joints = [j for j in range(model.njnt) if model.jnt_bodyid[j] == body and not is_stuck(model, j)]
        if model.body_weldid[model.body_parentid[body]] != 0 or not joints or actuated & set(joints):
            continue
        is_free = model.jnt_type[joints[0]] == mujoco.mjtJoint.mjJNT_FREE
        slides = any(model.jnt_type[j] == mujoco.mjtJoint.mjJNT_SLIDE for j in joints)
        is_planar = len(joints) > 1 and slides and simple.issuperset(joints)
        behind = {j for j in actuated or simple if is_below(model, int(model.jnt_bodyid[j]), body)} - set(joints)
        num_driven = len(behind) + sum(is_below(model, one, body) for one in pushed)
        if (is_free or is_planar) and num_driven:
            candidates.append((num_driven, joints))
    return max(candidates, default=(0, []), key=lambda one: one[0])[1]


def driven_joints(model: mujoco.MjModel, root: list[int]) -> list[int]:
    """Return the hinge and slide joints that actuators move; without actuators, the joints that should get motors.

    A joint that an equality constraint couples to another joint is not driven, because it follows the other joint. If
    motors are added, they do not drive the joints of the root; in a cart with poles, they drive only the cart. A drone,
    which only thrusters move, gets no motors.
    """
    driven = _actuated(model) & set(simple_joints(model))
    if not driven and not driven_balls(model) and not thrusters(model):
        base = int(model.jnt_bodyid[root[0]]) if root else 0
        free = [j for j in simple_joints(model) if j not in root and not is_stuck(model, j)]
        driven = {j for j in free if is_below(model, int(model.jnt_bodyid[j]), base)}
        driven = set(_carts(model, sorted(driven))) or driven
    return sorted(driven - set(followers(model)) or driven)


def thrusters(model: mujoco.MjModel) -> list[int]:
    """Return the actuators that push a site, such as the rotors of a drone."""
    import mujoco

    at_site = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_SITE)
    return np.flatnonzero(at_site & (model.actuator_trnid[:, 1] < 0)).tolist()  # without a reference site


def driven_balls(model: mujoco.MjModel) -> list[int]:
    """Return the ball joints that actuators move."""
    return sorted(_actuated(model).intersection(ball_joints(model)))


def find_trees(model: mujoco.MjModel, joints: list[int]) -> Trees:
    """Return the robots and other objects that have hinges or slide joints."""
    driven = {int(model.body_rootid[model.jnt_bodyid[j]]) for j in joints}
    names = {int(model.body_rootid[model.jnt_bodyid[j]]): model.joint(j).name for j in reversed(simple_joints(model))}
    names = {body: model.body(body).name or names[body] for body in sorted(names)}
    return Trees(tuple(names[b] for b in names if b in driven), tuple(names[b] for b in names if b not in driven))


def followers(model: mujoco.MjModel) -> dict[int, int]:
    """Return a dict from the joints that follow other joints to these other joints.

    A joint follows another joint if an equality constraint makes its position a function of the other's position.
    """
    import mujoco

    coupled = np.flatnonzero((model.eq_type == int(mujoco.mjtEq.mjEQ_JOINT)) & (model.eq_obj2id >= 0))
    return {int(model.eq_obj1id[i]): int(model.eq_obj2id[i]) for i in coupled if model.eq_active0[i]}


def actuated_joint(model: mujoco.MjModel, actuator: int) -> int | None:
    """Return the hinge or slide joint that an actuator drives; None if it drives something else."""
    import mujoco

    if not np.isin(model.actuator_trntype[actuator], (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)):
        return None
    joint = int(model.actuator_trnid[actuator, 0])
    return joint if joint in simple_joints(model) else None


def simple_joints(model: mujoco.MjModel) -> list[int]:
    """Return all hinge and slide joints, except for those of the vertices of soft bodies (flexes)."""
    import mujoco

    is_simple = np.isin(model.jnt_type, (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE))
    return np.flatnonzero(is_simple & ~np.isin(model.jnt_bodyid, model.flex_vertbodyid)).tolist()


def ball_joints(model: mujoco.MjModel) -> list[int]:
    """Return all ball joints that can move."""
    import mujoco

    balls = np.flatnonzero(model.jnt_type == int(mujoco.mjtJoint.mjJNT_BALL)).tolist()
    return [j for j in balls if not is_stuck(model, j)]


def is_hinge(model: mujoco.MjModel, joint: int) -> bool:
    """Return whether a joint is a hinge."""
    import mujoco

    return bool(model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE)


def is_stuck(model: mujoco.MjModel, joint: int) -> bool:
    """Return whether a joint counts as fixed because of its high damping. Some MJCFs have such joints in their base."""
    return bool(model.dof_damping[model.jnt_dofadr[joint]] > MAX_DAMPING)


def mocap_welds(model: mujoco.MjModel) -> list[int]:
    """Return the active equality constraints that attach a body to a mocap body."""
    import mujoco

    welds = np.isin(model.eq_type, (mujoco.mjtEq.mjEQ_WELD, mujoco.mjtEq.mjEQ_CONNECT))
    welds &= model.eq_active0.astype(bool) & (model.eq_objtype == int(mujoco.mjtObj.mjOBJ_BODY))
    is_mocap = model.body_mocapid >= 0
    return [i for i in np.flatnonzero(welds).tolist() if is_mocap[[model.eq_obj1id[i], model.eq_obj2id[i]]].any()]


def is_endless(model: mujoco.MjModel, joint: int) -> bool:
    """Return whether a joint is a hinge that can turn by 360 degrees or more."""
    low, high = model.jnt_range[joint]
    return is_hinge(model, joint) and (not model.jnt_limited[joint] or bool(high - low >= 2.0 * np.pi))


def is_finger(model: mujoco.MjModel, joint: int) -> bool:
    """Return whether a joint is a slide joint with a short range, such as that of a gripper's finger."""
    low, high = model.jnt_range[joint]
    return not is_hinge(model, joint) and bool(model.jnt_limited[joint]) and bool(high - low <= FINGER_M)


def is_below(model: mujoco.MjModel, body: int, ancestor: int) -> bool:
    """Return whether a body is the same as another body, or below it in the tree."""
    while body > ancestor:  # the id of a parent is smaller than the ids of its children
        body = int(model.body_parentid[body])
    return body == ancestor


def _actuated(model: mujoco.MjModel) -> set[int]:
    """Return the joints that the actuators move in the reference pose, directly or by tendons."""
    import mujoco

    moving = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT, mujoco.mjtTrn.mjTRN_TENDON)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    joints: set[int] = set()
    for i in range(model.nu):
        if not np.isin(model.actuator_trntype[i], moving):
            continue
        row = slice(data.moment_rowadr[i], data.moment_rowadr[i] + data.moment_rownnz[i])
        dofs = data.moment_colind[row][data.actuator_moment[row] != 0.0]
        joints |= {int(model.dof_jntid[dof]) for dof in dofs}
    return joints


def _carts(model: mujoco.MjModel, joints: list[int]) -> list[int]:
    """Return the slide joint of a cart with poles; an empty list if the joints are not those of a cart with poles.

    Such a robot is a chain of one horizontal slide joint and hinges with horizontal axes and wide ranges. In the
    reference pose, the poles are above the hinges.
    """
    import mujoco

    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    slides = [j for j in joints if not is_hinge(model, j)]
    poles = [j for j in joints if is_hinge(model, j)]
    if len(slides) != 1 or not poles or joints[0] != slides[0] or abs(data.xaxis[slides[0], 2]) > 0.1:
        return []
    for pole in poles:
        body = int(model.jnt_bodyid[pole])
        to_mass = data.subtree_com[body] - data.xanchor[pole]
        low, high = model.jnt_range[pole]
        is_wide = not model.jnt_limited[pole] or (low < -0.5 and high > 0.5)
        is_pole = is_wide and to_mass[2] > 0.9 * np.linalg.norm(to_mass) > 0.0 and abs(data.xaxis[pole, 2]) < 0.1
        if not is_pole or not is_below(model, body, int(model.jnt_bodyid[slides[0]])):
            return []
    return slides


@dataclass(frozen=True, kw_only=True)
class Base:
    """The base of a robot that moves: a floating base, or a base on slide joints and hinges, as in a planar robot."""

    # Name of the free joint, or, if there is none, of the slide joint along which the robot moves forward
    joint: str
    # Whether the joint is a free joint
    is_free: bool
    # Name of the vertical slide joint, if there is one
    height_joint: str | None
    # Names of the hinges of the base that have a horizontal axis
    tilt_joints: tuple[str, ...]
    # Whether the robot can fall: gravity acts on it, it can move vertically, and it does not swim
    can_fall: bool
    # Whether the z axis of the base points up at the start
    is_upright: bool
    # Height by which the robot must be lifted, because it penetrates the ground in the start state; 0 if it penetrates
    # the ground by at most TOLERATED_DEPTH_M.
    rise_m: float
    # Minimum height of the base of a robot that has not fallen; without a free joint, minimum position of the vertical
    # slide joint. None if the origin of the base is near the ground, as for a mobile base: it does not sink in a fall.
    min_height_m: float | None
    # Walking speed for a robot of this height; for a robot that swims, half its length per second
    speed_m_s: float


def find_base(model: mujoco.MjModel, start: mujoco.MjData, root: Sequence[int]) -> Base:
    """Measure the base of a robot that moves."""
    import mujoco

    # Joints of the base
    is_free = bool(model.jnt_type[root[0]] == mujoco.mjtJoint.mjJNT_FREE)
    slides = [j for j in root if not is_free and not is_hinge(model, j)]
    hinges = [j for j in root if not is_free and is_hinge(model, j)]
    forward = root[0] if is_free else max(slides, key=lambda j: abs(start.xaxis[j, 0]))
    vertical = [j for j in slides if abs(start.xaxis[j, 2]) > UPRIGHT]
    # Depth by which the robot penetrates the ground, and height of its base after it is lifted
    body = int(model.jnt_bodyid[root[0]])
    ground_m = ground_height(model, start)
    depth_m = max((-c.dist for c in start.contact if 0 in model.body_weldid[model.geom_bodyid[c.geom]]), default=0.0)
    rise_m = depth_m if depth_m > TOLERATED_DEPTH_M else 0.0
    height_m = float(start.xpos[body, 2]) + rise_m - ground_m
    belly_m = min(_clearance(model, start, body), height_m)
    # If the robot lies, or the bounding boxes of its base reach the ground, belly_m is not meaningful.
    if belly_m > MAX_BELLY * height_m:
        belly_m = 0.5 * height_m
    corners = corners_below(model, start, body)
    top_m = float(corners[:, 2].max()) + rise_m - ground_m if len(corners) else height_m
    min_height_m = None
    if height_m > LOW_ORIGIN * top_m:
        min_height_m = ground_m + belly_m + FALLEN_SHARE * (height_m - belly_m)
        if vertical:
            min_height_m -= float(start.xpos[body, 2] - start.qpos[model.jnt_qposadr[vertical[0]]])
    # Whether the robot can fall, and its length, for the speed
    can_fall = has_weight(model) and (is_free or bool(vertical))
    length_m = float(np.ptp(corners, axis=0).max()) if len(corners) else 0.2
    return Base(
        joint=model.joint(forward).name,
        is_free=is_free,
        height_joint=model.joint(vertical[0]).name if vertical else None,
        tilt_joints=tuple(model.joint(j).name for j in hinges if abs(start.xaxis[j, 2]) < 1.0 - UPRIGHT),
        can_fall=can_fall,
        is_upright=bool(start.xmat[body, 8] > UPRIGHT),
        rise_m=rise_m,
        min_height_m=min_height_m,
        speed_m_s=math.sqrt(FROUDE * GRAVITY_M_S2 * max(height_m, 0.1)) if can_fall else length_m / 2,
    )


def has_weight(model: mujoco.MjModel) -> bool:
    """Return whether gravity pulls the robot down: gravity is on, and the robot does not float in a fluid."""
    import mujoco

    is_off = model.opt.disableflags & int(mujoco.mjtDisableBit.mjDSBL_GRAVITY) or not model.opt.gravity.any()
    return not is_off and model.opt.density < FLUID_KG_M3


def ground_height(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Return the height of the highest horizontal plane in m; 0 if the model has none."""
    import mujoco

    is_level = data.geom_xmat[:, 8] > UPRIGHT  # excludes walls
    planes = is_level & (model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE))
    return float(data.geom_xpos[planes, 2].max(initial=-np.inf)) if planes.any() else 0.0


def _clearance(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> float:
    """Return the height of a body's origin above the lowest point of all colliding geoms fixed to it, in m."""
    fixed = (model.body_weldid[model.geom_bodyid] == model.body_weldid[body]) & (
        model.geom_contype | model.geom_conaffinity != 0
    )
    up = data.geom_xmat[fixed, 6:]
    centre, half = model.geom_aabb[fixed, :3], model.geom_aabb[fixed, 3:]
    lowest_m = data.geom_xpos[fixed, 2] + (up * centre).sum(axis=1) - (np.abs(up) * half).sum(axis=1)
    return float(data.xpos[body, 2] - lowest_m.min()) if fixed.any() else 0.0


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A leg."""

    # Driven joints of the leg, from the base to the foot
    joints: tuple[int, ...]
    # The body that the last joint moves
    body: int
    # Center of the lowest points of the foot in the frame of body, in m, (3,)
    sole: NDArray[np.float64]
    # Distance from this center to the farthest of the lowest points
    size_m: float

    def foot(self, data: mujoco.MjData) -> NDArray[np.float64]:
        """Return the center of the sole in the world frame, in m, (3,)."""
        return data.xpos[self.body] + data.xmat[self.body].reshape(3, 3) @ self.sole


def find_legs(model: mujoco.MjModel, data: mujoco.MjData, base: int, joints: Sequence[int]) -> list[Leg]:
    """Return the legs of a robot.

    Each chain of driven joints that starts at the base has a last link. This link is a foot if it is about as low as
    the lowest of all last links.
    """
    # The ends of all chains of joints that start at the base
    bodies = {int(model.jnt_bodyid[joint]) for joint in joints} - {base}
    ends = [
        body
        for body in bodies
        if is_below(model, body, base) and not any(other != body and is_below(model, other, body) for other in bodies)
    ]
    corners = {body: corners_below(model, data, body) for body in sorted(ends)}
    corners = {body: points for body, points in corners.items() if len(points)}
    if not corners:
        return []
    # The legs: the chains with the lowest ends
    lowest_m = min(float(points[:, 2].min()) for points in corners.values())
    height_m = float(data.xpos[base, 2]) - lowest_m
    legs: list[Leg] = []
    for body, points in corners.items():
        low_m = float(points[:, 2].min())
        if low_m - lowest_m > SAME_HEIGHT * height_m:
            continue
        sole = points[points[:, 2] <= low_m + SOLE * height_m]
        center = sole.mean(axis=0)
        legs.append(
            Leg(
                joints=tuple(chain_to(model, base, body, joints)),
                body=body,
                sole=data.xmat[body].reshape(3, 3).T @ (center - data.xpos[body]),
                size_m=float(np.linalg.norm(sole - center, axis=1).max()),
            )
        )
    return legs


def chain_to(model: mujoco.MjModel, base: int, body: int, joints: Sequence[int]) -> list[int]:
    """Return the driven joints between the base and a body, starting at the base."""
    chain: list[int] = []
    while body not in {base, 0}:
        chain = [joint for joint in joints if model.jnt_bodyid[joint] == body] + chain
        body = int(model.body_parentid[body])
    return chain


def corners_below(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> NDArray[np.float64]:
    """Return the corners of the bounding boxes of colliding geoms in the world frame, in m, (n, 3).

    The geoms are those of a body and of all bodies below it in the tree.
    """
    below = np.array([is_below(model, int(b), body) for b in model.geom_bodyid])
    return box_corners(model, data, below & ((model.geom_contype | model.geom_conaffinity) != 0))


def box_corners(model: mujoco.MjModel, data: mujoco.MjData, geoms: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the corners of the bounding boxes of some geoms in the world frame, in m, (8 * geoms, 3)."""
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T
    boxes = model.geom_aabb[geoms]
    local = boxes[:, None, :3] + signs * boxes[:, None, 3:]
    rotation = data.geom_xmat[geoms].reshape(-1, 3, 3)
    return (np.einsum("gij,gcj->gci", rotation, local) + data.geom_xpos[geoms][:, None]).reshape(-1, 3)
