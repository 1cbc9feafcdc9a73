"""Choose the motors and the start pose of a robot: the motors must hold the pose.

For a robot with legs, search for a pose in which it stands on bent legs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.authoring.new_task.action_blocks import Block, action_inputs, find_blocks
from mjlab_dist.authoring.new_task.joints import (
    UPRIGHT,
    Leg,
    corners_below,
    find_base,
    find_legs,
    ground_height,
    has_weight,
    is_hinge,
    simple_joints,
)
from mjlab_dist.authoring.new_task.motor_sizing import find_wheels, joint_loads, make_motors, wheel_motors
from mjlab_dist.authoring.new_task.presets import Preset, matched_joints
from mjlab_dist.authoring.new_task.robot_files import compile_spec
from mjlab_dist.config import ActuatorConfig
from mjlab_dist.sim.names import exactly

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Minimum height of the hip above the foot of a straight leg, as a share of the leg's length
STRAIGHT = 0.8

# Hip heights to try, as shares of the height with straight legs: True for one or two legs, False for more
HEIGHTS = {True: (0.93, 0.88, 0.97), False: (0.7, 0.8, 0.9)}

# Time for which the robot must not fall, in simulated seconds
SETTLED_S = 2.0

# Minimum height of the base of a standing robot, as a share of its height in the pose
SUNK = 0.75

# Minimum cosine of the angle by which the base of a standing robot has tilted
STILL_UPRIGHT = 0.9

# Minimum number of joints of a leg that can keep its foot level
FULL_ORIENTATION = 5

# Number of steps of the search for the joint positions
NUM_SEARCH_STEPS = 60

# Weight of a joint's distance from the reference pose, in rad. The error of a foot's position, in leg lengths, has
# the weight 1.
POSE_WEIGHT = 0.03

# Weight of the tilt of a foot. The error of a foot's position, in leg lengths, has the weight 1.
TILT_WEIGHT = 0.3

# Number of poses from which the search for the legs' joint positions starts
NUM_STARTS = 6

# Names of keyframes to start from, in order of preference; without any of these, the first keyframe is used
HOME_NAMES = ("home", "stand", "standing", "default")

# A robot sags if a hinge moves by more than this angle in rad within `SETTLED_S`
SAGGED_RAD = 0.1

# A robot sags if a slide joint moves by more than this distance in m within `SETTLED_S`
SAGGED_M = 0.05


def find_stance(
    model: mujoco.MjModel,
    base: int,
    lift: int,
    joints: Sequence[int],
    simulate: Callable[[NDArray[np.float64]], mujoco.MjData],
) -> tuple[NDArray[np.float64], bool] | None:
    """Return a pose with bent legs, (nq,), and whether the motors keep the robot standing in this pose.

    In the poses to try, the feet are below the hips, and the center of mass is above the feet. If the legs are straight
    in the reference pose, this function bends them. The result is the first pose in which the robot stands. If it
    stands in none of the poses, the result is the pose in which it sinks and tilts least.

    Returns:
        The pose and whether the robot stands; None if the robot has no legs, has a leg with only one joint, or has more
        than two legs and falls over completely in all poses.
    """
    data = posed(model, model.qpos0)
    legs = find_legs(model, data, base, joints)
    if not legs or min(len(leg.joints) for leg in legs) < 2:
        return None
    # Height of the hips, and the shares of this height to try
    hips = [data.xanchor[leg.joints[0]] for leg in legs]
    height_m = float(np.mean([hip[2] - leg.foot(data)[2] for hip, leg in zip(hips, legs, strict=True)]))
    lengths = [_length_m(data, leg) for leg in legs]
    shares = HEIGHTS[len(legs) <= 2] if height_m > STRAIGHT * float(np.mean(lengths)) else (1.0,)
    # Try the poses
    best: tuple[float, NDArray[np.float64]] | None = None
    for share in shares:
        pose = _grounded(model, base, lift, _bent(model, legs, (1.0 - share) * height_m))
        quality = standing(model, base, pose, simulate(pose))
        if (quality > 0.0 or len(legs) <= 2) and (best is None or quality > best[0]):
            best = quality, pose
        if quality >= 1.0:
            break
    return None if best is None else (best[1], best[0] >= 1.0)


def standing(model: mujoco.MjModel, base: int, pose: NDArray[np.float64], after: mujoco.MjData) -> float:
    """Return a measure of how well a robot still stands after some time in a pose: 1 or more if it stands."""
    if not np.isfinite(after.qpos).all():
        return 0.0
    before = posed(model, pose)
    ground_m = float(corners_below(model, before, base)[:, 2].min())
    sunk = float((after.xpos[base, 2] - ground_m) / (before.xpos[base, 2] - ground_m))
    up = float(before.xmat[base].reshape(3, 3)[2] @ after.xmat[base].reshape(3, 3)[2])
    return max(min(sunk / SUNK, up / STILL_UPRIGHT), 0.0)


def _bent(model: mujoco.MjModel, legs: Sequence[Leg], lower_m: float) -> NDArray[np.float64]:
    """Return the pose in which all feet are higher by ``lower_m`` and below the center of mass.

    The base does not move.
    """
    shift = np.array([0.0, 0.0, lower_m])
    search = _Search(model, legs)
    pose = search.solve(shift)
    for _ in range(3):  # repeated, because the center of mass moves with the legs
        data = posed(model, pose)
        root = int(model.body_rootid[legs[0].body])
        offset = data.subtree_com[root] - np.mean([leg.foot(data) for leg in legs], axis=0)
        shift[:2] += np.clip(offset[:2], -lower_m, lower_m)
        pose = search.solve(shift)
    return pose


class _Search:
    """Search for the joint positions that move all feet from their places in the reference pose by a vector."""

    def __init__(self, model: mujoco.MjModel, legs: Sequence[Leg]) -> None:
        self._model, self._legs = model, legs
        self._joints = sorted({joint for leg in legs for joint in leg.joints})
        self._columns, self._dofs = model.jnt_qposadr[self._joints], model.jnt_dofadr[self._joints]
        limited = model.jnt_limited[self._joints].astype(bool)
        self._low = np.where(limited, model.jnt_range[self._joints, 0], -np.pi)
        self._high = np.where(limited, model.jnt_range[self._joints, 1], np.pi)
        self._home = np.clip(model.qpos0[self._columns], self._low, self._high)
        self._reference = posed(model, model.qpos0)
        self._size_m = float(np.mean([_length_m(self._reference, leg) for leg in legs]))

    def solve(self, shift: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the pose that moves all feet by a vector: the best solution from several starts."""
        place = {joint: i for leg in self._legs for i, joint in enumerate(leg.joints)}
        rng = np.random.default_rng(0)
        best: tuple[float, NDArray[np.float64]] = np.inf, self._model.qpos0
        for _ in range(NUM_STARTS):
            # In each start, corresponding joints of all legs are bent by the same angle.
            bends = rng.uniform(-0.5, 0.5, max(place.values()) + 1)
            start = np.clip(self._home + bends[[place[joint] for joint in self._joints]], self._low, self._high)
            cost, pose = self._descend(start, shift)
            if cost < best[0] - 1e-6:
                best = cost, pose
        return best[1]

    def _descend(self, position: NDArray[np.float64], shift: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the cost and the pose after damped Gauss-Newton steps within the joint limits."""
        import mujoco

        data = posed(self._model, self._model.qpos0)
        cost = np.inf
        for _ in range(NUM_SEARCH_STEPS):
            data.qpos[self._columns] = position
            mujoco.mj_kinematics(self._model, data)
            mujoco.mj_comPos(self._model, data)
            residual, slope = self._linearized(data, position, shift)
            cost = float(residual @ residual)
            damped = slope.T @ slope + 1e-6 * self._size_m**2 * np.eye(len(position))
            step = np.linalg.solve(damped, slope.T @ residual)
            position = np.clip(position - np.clip(step, -0.3, 0.3), self._low, self._high)
        return cost, data.qpos.copy()

    def _linearized(
        self, data: mujoco.MjData, position: NDArray[np.float64], shift: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the residuals in m and their derivatives with respect to the joint positions."""
        import mujoco

        model, keep = self._model, POSE_WEIGHT * self._size_m
        residuals, rows = [keep * (position - self._home)], [keep * np.eye(len(position))]
        for leg in self._legs:
            jacobian, turning = np.zeros((2, 3, model.nv))
            foot = leg.foot(data)
            mujoco.mj_jac(model, data, jacobian, turning, foot, leg.body)
            residuals.append(foot - leg.foot(self._reference) - shift)
            rows.append(jacobian[:, self._dofs])
            if len(leg.joints) >= FULL_ORIENTATION:
                # The direction of the foot that points up in the reference pose should still point up.
                weight = TILT_WEIGHT * self._size_m
                up = data.xmat[leg.body].reshape(3, 3) @ self._reference.xmat[leg.body].reshape(3, 3)[2]
                residuals.append(weight * (up - [0.0, 0.0, 1.0]))
                rows.append(weight * np.cross(turning[:, self._dofs], up, axis=0).astype(np.float64))
        return np.concatenate(residuals), np.concatenate(rows)


def _grounded(model: mujoco.MjModel, base: int, lift: int, pose: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a pose with its lowest point on the ground, rounded for source code."""
    data = posed(model, pose)
    gap_m = float(corners_below(model, data, base)[:, 2].min()) - ground_height(model, data)
    moved = pose.round(2)
    moved[lift] = round(float(pose[lift]) - gap_m, 3)
    return moved


def posed(model: mujoco.MjModel, pose: NDArray[np.float64]) -> mujoco.MjData:
    """Return the state in a pose, at rest."""
    import mujoco

    data = mujoco.MjData(model)
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    return data


def _length_m(data: mujoco.MjData, leg: Leg) -> float:
    points = [*(data.xanchor[joint] for joint in leg.joints), leg.foot(data)]
    return float(sum(np.linalg.norm(b - a) for a, b in itertools.pairwise(points)))


@dataclass(frozen=True, kw_only=True)
class Actuation:
    """Motors and start pose of a robot."""

    # Action blocks by name
    blocks: dict[str, Block]
    # Motors to add, by name of the group of joints; empty if those of the MJCF are used
    motors: dict[str, ActuatorConfig]
    # Positions of all joints in the start pose; empty if the start pose is that of the MJCF
    home: tuple[float, ...] = ()
    # Whether the robot stands in the pose home for SETTLED_S; None if home is empty
    stands: bool | None = None
    # Whether a robot that is fixed to the world, and has torque motors, sags at action 0
    sags: bool = False


def actuate(spec: mujoco.MjSpec, root: Sequence[int], joints: Sequence[int], preset: Preset | None) -> Actuation:
    """Return actions, motors and a start pose for a robot.

    A pose is searched for only if the MJCF has no keyframe, the robot can fall, and all motors are position motors.
    """
    # Model and start pose
    model = compile_spec(spec)
    key = find_key(model)
    start = start_state(model, key)
    base = int(model.jnt_bodyid[root[0]]) if root else 0
    stands_on_legs = bool(root) and has_weight(model)

    # Wheels
    wheels = find_wheels(model, start, base, joints) if stands_on_legs and not model.nu else {}
    speed_m_s = find_base(model, start, root).speed_m_s if wheels else 0.0
    rolling, speeds = wheel_motors(model, base, wheels, speed_m_s)

    # at: blocks and motors for a pose. settle: state after these motors have held the pose for some time
    def at(data: mujoco.MjData) -> tuple[dict[str, Block], dict[str, ActuatorConfig]]:
        legs = find_legs(model, data, base, joints) if stands_on_legs else []
        motors, known = _published(model, joints, preset)
        motors |= rolling
        others = [joint for joint in joints if joint not in known and joint not in wheels] if not model.nu else []
        if others:
            motors |= make_motors(model, data, others, legs, is_moving=bool(root))
        loads = joint_loads(model, data, simple_joints(model), legs)
        motored = [joint for joint in joints if joint in known or joint in others]
        return find_blocks(model, data, loads, motored, speeds), motors

    def settle(pose: NDArray[np.float64]) -> mujoco.MjData:
        return _settled(spec, *at(posed(model, pose)), pose)

    # A pose in which a robot with legs stands
    blocks, motors = at(start)
    lift = _lift(model, start, root)
    can_hold = all(block.kind == "position" for block in blocks.values())
    if key is None and lift is not None and can_hold and stands_on_legs:
        found = find_stance(model, base, lift, joints, settle)
        if found is not None and (found[1] or standing(model, base, start.qpos, settle(start.qpos)) < 1.0):
            pose, stands = found
            blocks, motors = at(posed(model, pose))
            return Actuation(blocks=blocks, motors=motors, home=tuple(pose.tolist()), stands=stands)
    # Other robots keep their start pose
    sags = False
    if not root and has_weight(model) and any(block.kind == "effort" for block in blocks.values()):
        columns = model.jnt_qposadr[list(joints)]
        tolerated = np.array([SAGGED_RAD if is_hinge(model, joint) else SAGGED_M for joint in joints])
        sags = bool((np.abs(settle(start.qpos).qpos[columns] - start.qpos[columns]) > tolerated).any())
    return Actuation(blocks=blocks, motors=motors, sags=sags)


def _published(
    model: mujoco.MjModel, joints: Sequence[int], preset: Preset | None
) -> tuple[dict[str, ActuatorConfig], list[int]]:
    """Return the motors of a preset, with the names of their joints in the model, and the ids of these joints."""
    names = {model.joint(joint).name: joint for joint in joints}
    groups = {} if preset is None else {name: (one, matched_joints(one, names)) for name, one in preset.motors.items()}
    motors = {
        name: dataclasses.replace(one, joints=tuple(map(exactly, found))) for name, (one, found) in groups.items()
    }
    return motors, [names[joint] for _, found in groups.values() for joint in found]


def add_motors(spec: mujoco.MjSpec, motors: dict[str, ActuatorConfig]) -> None:
    """Add motors, and set an integrator that is stable with them, as the generated config does."""
    from mjlab_dist.sim import scene  # imports MuJoCo

    if not motors:
        return
    scene.add_motors(spec, motors)
    use_implicitfast(spec)


def use_implicitfast(spec: mujoco.MjSpec) -> None:
    """Replace the integrator Euler or RK4, as the generated config does."""
    import mujoco

    if spec.option.integrator in {mujoco.mjtIntegrator.mjINT_EULER, mujoco.mjtIntegrator.mjINT_RK4}:
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST


def start_state(model: mujoco.MjModel, key: int | None) -> mujoco.MjData:
    """Return the start state, with joints clipped to their ranges as at the start of an episode."""
    import mujoco

    data = mujoco.MjData(model)
    if key is not None:
        mujoco.mj_resetDataKeyframe(model, data, key)
    for i in simple_joints(model):
        if model.jnt_limited[i]:
            data.qpos[model.jnt_qposadr[i]] = np.clip(data.qpos[model.jnt_qposadr[i]], *model.jnt_range[i])
    mujoco.mj_forward(model, data)
    return data


def find_key(model: mujoco.MjModel) -> int | None:
    """Return the keyframe that episodes start from; None if there is none."""
    names = [model.key(i).name for i in range(model.nkey)]
    known = [names.index(name) for name in HOME_NAMES if name in names]
    if known or not names:
        return known[0] if known else None
    # <size nkey=.../> makes unnamed keyframes that equal the reference pose. They are ignored.
    return 0 if names[0] or not np.allclose(model.key_qpos[0], model.qpos0) else None


def _settled(
    spec: mujoco.MjSpec, blocks: dict[str, Block], motors: dict[str, ActuatorConfig], pose: NDArray[np.float64]
) -> mujoco.MjData:
    """Return the state after the motors have held a pose for ``SETTLED_S``, simulated by MuJoCo's C code."""
    import mujoco

    copy = spec.copy()
    add_motors(copy, motors)
    model = compile_spec(copy)
    data = posed(model, pose)
    data.ctrl[:] = action_inputs(model, pose, blocks).offsets
    for _ in range(round(SETTLED_S / model.opt.timestep)):
        mujoco.mj_step(model, data)
    return data


def _lift(model: mujoco.MjModel, start: mujoco.MjData, root: Sequence[int]) -> int | None:
    """Return the index of the height of the base in qpos; None if the base cannot move vertically."""
    import mujoco

    for joint in root:
        if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
            return int(model.jnt_qposadr[joint]) + 2
        if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE and start.xaxis[joint, 2] > UPRIGHT:
            return int(model.jnt_qposadr[joint])
    return None
