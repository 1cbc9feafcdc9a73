"""Action blocks: how the policy drives the actuators of an MJCF, or the motors that are added to it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from mjlab_dist.authoring.new_task.joints import actuated_joint, is_finger, is_hinge, thrusters
from mjlab_dist.authoring.new_task.motor_sizing import EFFORT_MARGIN, dof_inertias
from mjlab_dist.authoring.new_task.source import rounded
from mjlab_dist.sim.names import exactly

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Change in the target position of a hinge's motor for an action of 1
HINGE_REACH_RAD = 0.5

# Maximum torque or force for an action of 1, divided by the load of the joint: the torque or force that the joint
# must hold against gravity. This maximum is needed because the limits in some MJCFs are unrealistically high.
STRONG = 30.0

# Joint acceleration that an action of 1 may cause, even if this needs more than `STRONG` times the load
STRONG_RAD_S2 = 300.0

# How far an action of 1 moves the trunk and the arms of a walking robot, as a share of the way of legs. Turning them
# turns the robot, so noise in these actions makes it harder to follow a heading.
UPPER_BODY_SHARE = 0.25

# Change of a thruster's input for an action of 1, as a share of the input that carries the weight. With larger
# shares, random actions overturn a drone within a few steps.
THRUST_SHARE = 0.1

Kind = Literal["position", "velocity", "effort", "muscle"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Actuators of one kind that one action block drives."""

    # Regular expressions that match the names of the actuators
    actuators: tuple[str, ...]
    # The quantity that the actuator input sets
    kind: Kind
    # Input per unit of action
    scale: float
    # Input at action 0; "home" is the position of the joint in the start state
    offset: float | Literal["home"]
    # Whether actions are clipped to [-1, 1]. Without clipping, large actions could make the physics unstable.
    is_clipped: bool = False


def find_blocks(
    model: mujoco.MjModel,
    start: mujoco.MjData,
    loads: Mapping[int, float],
    motored: Sequence[int] = (),
    wheels: Mapping[int, float] | None = None,
) -> dict[str, Block]:
    """Return a dict from names to action blocks, which drive a model's actuators.

    Actuators with the same kind, scale and offset share a block.
    """
    wheels = wheels or {}
    masses = dof_inertias(model, start)[0]
    strong = {j: max(STRONG * load, STRONG_RAD_S2 * float(masses[model.jnt_dofadr[j]])) for j, load in loads.items()}
    blocks: dict[str, Block] = {}
    kept = [i for i in range(model.nu) if actuated_joint(model, i) not in motored]
    for i in kept:
        block, joint = _block(model, start, i, loads), actuated_joint(model, i)
        gain = abs(float(model.actuator_gainprm[i, 0] * model.actuator_gear[i, 0]))
        if block is not None and block.kind == "effort" and joint is not None and block.scale * gain > strong[joint]:
            block = dataclasses.replace(block, scale=rounded(strong[joint] / gain), is_clipped=True)
        if block is not None:
            blocks[model.actuator(i).name] = block
    is_drone = 0 < len(thrusters(model)) == model.nu
    if is_drone and len(blocks) == model.nu and all(block.kind == "effort" for block in blocks.values()):
        blocks = _hovering(model, start)
    blocks |= {model.joint(joint).name: _position_of(model, joint) for joint in motored}
    rolling = Block(actuators=(), kind="velocity", scale=1.0, offset=0.0)
    blocks |= {model.joint(j).name: dataclasses.replace(rolling, scale=rad_s) for j, rad_s in wheels.items()}
    return _named(blocks, len(kept) + len(motored) + len(wheels))


def _hovering(model: mujoco.MjModel, start: mujoco.MjData) -> dict[str, Block]:
    """Return the blocks of a drone's thrusters, by name: with action 0, they carry its weight in the start state."""
    forces = np.zeros((model.nu, model.nv))  # for an input of 1
    for i, force in enumerate(forces):
        row = slice(start.moment_rowadr[i], start.moment_rowadr[i] + start.moment_rownnz[i])
        force[start.moment_colind[row]] = start.actuator_moment[row] * model.actuator_gainprm[i, 0]
    inputs = np.linalg.lstsq(forces.T, start.qfrc_bias, rcond=None)[0]
    blocks: dict[str, Block] = {}
    for i, needed in enumerate(inputs):
        limited = bool(model.actuator_ctrllimited[i])
        low, high = model.actuator_ctrlrange[i] if limited else (-np.inf, np.inf)
        held = float(np.clip(needed, low, high))
        reach = float(max(held - low, high - held)) if limited else 1.0
        scale = rounded(THRUST_SHARE * abs(held) or reach)  # without gravity, the whole range
        # More digits than other numbers have, because an error of 1% of the weight is 20 cm in 2 s
        offset = float(f"{held:.4g}")
        blocks[model.actuator(i).name] = Block(actuators=(), kind="effort", scale=scale, offset=offset)
    return blocks


def gentle(
    model: mujoco.MjModel, blocks: Mapping[str, Block], torque: float, legs: Collection[int]
) -> dict[str, Block]:
    """Return blocks in which an action of 1 adds at most this torque in N m to a position motor.

    Position motors of joints that are not in legs move less far.
    """
    import mujoco

    from mjlab_dist.sim.scene import DC_STIFFNESS  # imports MuJoCo

    gentler: dict[str, Block] = {}
    for i in range(model.nu):
        name, joint = model.actuator(i).name, actuated_joint(model, i)
        block = _block_of(blocks, name)
        if block is not None:
            scale = block.scale
            if block.kind == "position":
                is_added = model.actuator_gaintype[i] == mujoco.mjtGain.mjGAIN_DCMOTOR
                scale = min(scale, torque / float(model.actuator_gainprm[i, DC_STIFFNESS if is_added else 0]))
                scale *= 1.0 if joint is None or joint in legs else UPPER_BODY_SHARE
            gentler[name] = dataclasses.replace(block, actuators=(), scale=rounded(scale))
    return _named(gentler, model.nu)


def driving(model: mujoco.MjModel, blocks: Mapping[str, Block], joint: int) -> list[str]:
    """Return the names of the action blocks that drive a joint."""
    found = [_block_of(blocks, model.actuator(i).name) for i in range(model.nu) if actuated_joint(model, i) == joint]
    return [name for name, block in blocks.items() if block in found]


def _block_of(blocks: Mapping[str, Block], actuator: str) -> Block | None:
    """Return the block that drives an actuator; None if no block does."""
    name = exactly(actuator)
    return next((one for one in blocks.values() if name in one.actuators or one.actuators == (".*",)), None)


class Inputs(NamedTuple):
    """Numbers that convert actions to the inputs of all actuators."""

    # Inputs at action 0, (nu,)
    offsets: NDArray[np.float64]
    # Change of the inputs per unit of action, (nu,)
    scales: NDArray[np.float64]
    # Actions are clipped to plus and minus this value, (nu,)
    bounds: NDArray[np.float64]

    def of(self, actions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the inputs for actions, (nu,)."""
        return self.offsets + self.scales * np.clip(actions, -self.bounds, self.bounds)


def action_inputs(model: mujoco.MjModel, pose: NDArray[np.float64], blocks: Mapping[str, Block]) -> Inputs:
    """Return the numbers that convert actions to the inputs of all actuators."""
    offsets, scales, bounds = np.zeros((3, model.nu))
    for i in range(model.nu):
        block, joint = _block_of(blocks, model.actuator(i).name), int(model.actuator_trnid[i, 0])
        if block is not None:
            offsets[i] = pose[model.jnt_qposadr[joint]] if block.offset == "home" else block.offset
            scales[i], bounds[i] = block.scale, 1.0 if block.is_clipped else np.inf
    return Inputs(offsets, scales, bounds)


def _named(blocks: dict[str, Block], num_actuators: int) -> dict[str, Block]:
    """Merge the equal blocks of actuators, and return a dict from new names to the merged blocks.

    The name of a block is its kind, with a number if several blocks have this kind.
    """
    alike: dict[Block, list[str]] = {}
    for name, block in blocks.items():
        alike.setdefault(block, []).append(exactly(name))
    kinds = Counter(block.kind for block in alike)
    seen: Counter[str] = Counter()
    named: dict[str, Block] = {}
    for block, names in alike.items():
        seen[block.kind] += 1
        ending = f"_{seen[block.kind]}" if kinds[block.kind] > 1 else ""
        actuators = (".*",) if len(names) == num_actuators else tuple(names)
        named[f"{block.kind}{ending}"] = dataclasses.replace(block, actuators=actuators)
    return named


def _block(model: mujoco.MjModel, start: mujoco.MjData, actuator: int, loads: Mapping[int, float]) -> Block | None:
    """Return the action block of one actuator, without its name; None if the policy must not drive the actuator."""
    import mujoco

    # Properties of the actuator
    gain, bias = float(model.actuator_gainprm[actuator, 0]), model.actuator_biasprm[actuator]
    joint = actuated_joint(model, actuator)
    has_range = bool(model.actuator_ctrllimited[actuator])
    low, high = map(float, model.actuator_ctrlrange[actuator])
    is_affine = (
        model.actuator_gaintype[actuator] == mujoco.mjtGain.mjGAIN_FIXED
        and model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_AFFINE
        and gain != 0.0
    )
    is_integrated = model.actuator_dyntype[actuator] == mujoco.mjtDyn.mjDYN_INTEGRATOR
    # Muscles, position motors, velocity motors
    kind: Kind = "effort"
    if model.actuator_gaintype[actuator] == mujoco.mjtGain.mjGAIN_MUSCLE:
        return Block(actuators=(), kind="muscle", scale=0.5, offset=0.5)
    if is_affine and bias[1] < 0 and not is_integrated:
        return _position(model, start, actuator)
    if is_integrated or (is_affine and bias[2] < 0 and bias[1] == 0):
        kind = "velocity"
        if _has_position(model, actuator):
            return None  # the actuator is the damper of a position motor, and its input must stay 0
    # Velocity or effort motors. If the input has a range, actions of -1 and 1 give its ends. Otherwise, if the motor
    # sets an effort, an action of 1 gives the maximum force.
    if has_range:
        return Block(actuators=(), kind=kind, scale=rounded((high - low) / 2), offset=rounded((high + low) / 2))
    if kind == "effort" and gain > 0:
        scale = _max_force(model, actuator, joint, loads) / gain
        return Block(actuators=(), kind=kind, scale=rounded(scale), offset=0.0)
    return Block(actuators=(), kind=kind, scale=1.0, offset=0.0)


def _position(model: mujoco.MjModel, start: mujoco.MjData, actuator: int) -> Block:
    """Return the block of a position motor.

    With action 0, the motor holds the start state. Exceptions are the motors of fingers, and the motors of tendons
    whose input has a range: with action 0, their input is the middle of the range.

    The force of a position motor is gain * input + b0 + b1 * length + b2 * velocity.
    """
    joint = actuated_joint(model, actuator)
    gain, (b0, b1) = float(model.actuator_gainprm[actuator, 0]), model.actuator_biasprm[actuator, :2]
    per_length = -float(b1) / gain
    gear = abs(float(model.actuator_gear[actuator, 0]))
    # Motors whose input is the target position of a hinge or slide joint
    if joint is not None and abs(per_length - 1.0) < 1e-3 and b0 == 0.0 and model.actuator_gear[actuator, 0] == 1.0:
        return _position_of(model, joint)
    # Other motors: the input at which the force is 0 in the start state
    held = -(float(b0) + float(b1) * float(start.actuator_length[actuator])) / gain
    low, high = map(float, model.actuator_ctrlrange[actuator])
    limited = bool(model.actuator_ctrllimited[actuator])
    if joint is not None:
        block = _position_of(model, joint)
        scale = block.scale * gear * per_length
    else:
        scale = (high - low) / 2 if limited else per_length * max(abs(float(start.actuator_length[actuator])), 0.1) / 4
    if limited:
        held = float(np.clip(held, low, high)) if joint is not None else (high + low) / 2
    return Block(actuators=(), kind="position", scale=rounded(scale), offset=rounded(held))


def _position_of(model: mujoco.MjModel, joint: int) -> Block:
    """Return the block of a motor whose input is the target position of a joint."""
    low, high = map(float, model.jnt_range[joint])
    block = Block(actuators=(), kind="position", scale=HINGE_REACH_RAD, offset="home")
    if is_hinge(model, joint):
        return block
    if not model.jnt_limited[joint]:
        return dataclasses.replace(block, scale=0.25)
    if is_finger(model, joint):  # actions of -1 and 1 give the ends of the range
        return dataclasses.replace(block, scale=rounded((high - low) / 2), offset=rounded((high + low) / 2))
    return dataclasses.replace(block, scale=rounded((high - low) / 4))


def _has_position(model: mujoco.MjModel, actuator: int) -> bool:
    """Return whether another actuator of the same joint or tendon is a position motor."""
    alike = (model.actuator_trntype == model.actuator_trntype[actuator]) & (
        model.actuator_trnid[:, 0] == model.actuator_trnid[actuator, 0]
    )
    alike[actuator] = False
    return bool((alike & (model.actuator_biasprm[:, 1] < 0)).any())


def _max_force(model: mujoco.MjModel, actuator: int, joint: int | None, loads: Mapping[int, float]) -> float:
    """Return the force for an action of 1.

    It is the limit of the actuator or of its joint. Without limits, it is a multiple of the load, or 1 if the actuator
    has a gear or the load is unknown.
    """
    if model.actuator_forcelimited[actuator]:
        return float(model.actuator_forcerange[actuator, 1])
    if joint is None:
        return 1.0
    gear = abs(float(model.actuator_gear[actuator, 0])) or 1.0
    if model.jnt_actfrclimited[joint]:
        return float(model.jnt_actfrcrange[joint, 1]) / gear
    return EFFORT_MARGIN * loads[joint] / gear if gear == 1.0 and joint in loads else 1.0
