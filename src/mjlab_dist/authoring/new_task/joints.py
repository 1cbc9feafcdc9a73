"""Joints of an MJCF: the driven joints, and the joints that connect a moving robot to the world."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import mujoco

# Maximum range of a finger that slides
FINGER_M = 0.12

# Damping in N s/m or N m s/rad above which a joint counts as fixed. With this damping, a force of 1000 N moves a
# slide joint at only 1 mm/s.
MAX_DAMPING = 1e6


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
