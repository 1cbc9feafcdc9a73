"""Choose the motors and the start pose of a robot: the motors must hold the pose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.authoring.new_task.action_blocks import Block, action_inputs, find_blocks
from mjlab_dist.authoring.new_task.base import UPRIGHT, find_base, has_weight
from mjlab_dist.authoring.new_task.joints import is_hinge, simple_joints
from mjlab_dist.authoring.new_task.legs import find_legs
from mjlab_dist.authoring.new_task.loading import compile_spec
from mjlab_dist.authoring.new_task.motor_sizing import joint_loads, make_motors
from mjlab_dist.authoring.new_task.presets import Preset, matched_joints
from mjlab_dist.authoring.new_task.stance import SETTLED_S, find_stance, posed, standing
from mjlab_dist.authoring.new_task.wheels import find_wheels, wheel_motors
from mjlab_dist.config import ActuatorConfig
from mjlab_dist.sim.names import exactly

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Names of keyframes to start from, in order of preference; without any of these, the first keyframe is used
HOME_NAMES = ("home", "stand", "standing", "default")


# A robot sags if a hinge moves by more than this angle in rad within `SETTLED_S`
SAGGED_RAD = 0.1

# A robot sags if a slide joint moves by more than this distance in m within `SETTLED_S`
SAGGED_M = 0.05


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
    import mujoco

    from mjlab_dist.sim import scene  # imports Warp

    if not motors:
        return
    scene.add_motors(spec, motors)
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
