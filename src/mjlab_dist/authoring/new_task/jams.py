"""Contacts that keep joints from moving, and joints that their motors do not move."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.authoring.new_task.action_blocks import Block, action_inputs
from mjlab_dist.authoring.new_task.joints import actuated_joint, is_below, is_hinge

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Maximum distance between geoms that count as touching, in m
TOUCHING_M = 1e-3

# Number of random poses in which contacts are looked for
NUM_POSES = 64

# Change of a hinge that counts as motion, in rad
REACH_RAD = 0.1

# Change of a slide joint that counts as motion, in m
REACH_M = 0.01

# Time in which an action of 1 or -1 must move a joint, in simulated seconds
MOVED_S = 5.0


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
    reach = REACH_RAD if is_hinge(model, joint) else REACH_M
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
