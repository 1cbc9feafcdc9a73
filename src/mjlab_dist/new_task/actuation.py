"""Actuation of a robot: by the actuators of its MJCF, or by motors with estimated parameters."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mjlab_dist.new_task.base import GRAVITY_M_S2, ground_height
from mjlab_dist.new_task.joints import actuated_joint, is_hinge, root_body
from mjlab_dist.new_task.rounding import rounded

if TYPE_CHECKING:
    import mujoco

SAG_RAD = 0.25
"""Deflection of a hinge under its load, with estimated motors."""

SAG_M = 0.01
"""Deflection of a slide joint under its load."""

DAMPING_S = 0.05
"""Damping of these motors divided by their stiffness, in s."""

HINGE_REACH_RAD = 0.5
"""Change of the target of a hinge's position motor by an action of 1."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Actuators of one kind that one action block drives."""

    actuators: tuple[str, ...]
    """Names of the actuators, or regular expressions that match them."""
    kind: Literal["position", "velocity", "effort"]
    """The quantity that the actuator input sets."""
    scale: float
    """Input per unit of action."""
    offset: float | Literal["home"]
    """Input at action 0."""


POSITIONS = Block(actuators=(".*",), kind="position", scale=HINGE_REACH_RAD, offset="home")
"""Action block of all position motors of hinges."""


@dataclass(frozen=True, kw_only=True)
class Motors:
    """Position motors for joints of an MJCF without actuators."""

    joints: tuple[str, ...]
    """Names of the joints, or regular expressions that match them."""
    stiffness: float
    """Stiffness in N m/rad (slide joints: N/m)."""
    damping: float
    """Damping in N m s/rad (slide joints: N s/m)."""
    effort_limit: float
    """Maximum torque in N m (slide joints: force in N)."""


def find_blocks(model: mujoco.MjModel) -> dict[str, Block]:
    """Return the action blocks by name. Actuators with the same kind, scale and offset share a block.

    Args:
        model: The MuJoCo model.
    """
    # Actuators by block
    alike: dict[Block, list[str]] = {}
    for i in range(model.nu):
        alike.setdefault(_block(model, i), []).append(model.actuator(i).name)

    # Names: the kind, with a number if several blocks have it
    kinds = Counter(block.kind for block in alike)
    seen: Counter[str] = Counter()
    named: dict[str, Block] = {}
    for block, names in alike.items():
        seen[block.kind] += 1
        ending = f"_{seen[block.kind]}" if kinds[block.kind] > 1 else ""
        actuators = tuple(names) if len(alike) > 1 else (".*",)
        named[f"{block.kind}{ending}"] = dataclasses.replace(block, actuators=actuators)
    return named


def _block(model: mujoco.MjModel, actuator: int) -> Block:
    """Return the action block of one actuator, without its name."""
    import mujoco

    gain, bias = model.actuator_gainprm[actuator], model.actuator_biasprm[actuator]
    joint = actuated_joint(model, actuator)
    has_range = bool(model.actuator_ctrllimited[actuator])
    low, high = map(float, model.actuator_ctrlrange[actuator])
    is_affine = (
        model.actuator_gaintype[actuator] == mujoco.mjtGain.mjGAIN_FIXED
        and model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_AFFINE
    )
    # Position: offset by the start state. Hinges have a fixed scale, slide joints a quarter of their range.
    if is_affine and bias[1] < 0 and joint is not None:
        scale = POSITIONS.scale if is_hinge(model, joint) else rounded(_reach(model, joint) / 4)
        return dataclasses.replace(POSITIONS, actuators=(), scale=scale)
    # Velocity or effort: actions of -1 and 1 are the ends of the input's range, or of the force's.
    kind = "velocity" if is_affine and bias[2] < 0 and bias[1] == 0 else "effort"
    if has_range:
        return Block(actuators=(), kind=kind, scale=rounded((high - low) / 2), offset=rounded((high + low) / 2))
    max_force = float(model.actuator_forcerange[actuator, 1])
    if kind == "effort" and model.actuator_forcelimited[actuator] and gain[0] > 0:
        return Block(actuators=(), kind=kind, scale=rounded(max_force / float(gain[0])), offset=0.0)
    return Block(actuators=(), kind=kind, scale=1.0, offset=0.0)


def make_motors(
    model: mujoco.MjModel, start: mujoco.MjData, joints: Sequence[int], free: int | None
) -> dict[str, Motors]:
    """Return estimated position motors that can hold the robot, by name; joints with similar loads share parameters.

    Args:
        model: The MuJoCo model.
        start: The start state.
        joints: Joints that get a motor.
        free: The free joint of a floating robot.
    """
    # Joints by type and by load, in steps of a factor of 4
    alike: dict[tuple[bool, int], list[int]] = {}
    loads = {joint: _load_of(model, start, joint, free) for joint in joints}
    for joint in joints:
        alike.setdefault((is_hinge(model, joint), round(math.log(loads[joint], 4))), []).append(joint)
    # In each group, the joint with the largest load determines the parameters.
    groups: dict[str, Motors] = {}
    for n, ((hinge, _), members) in enumerate(sorted(alike.items(), reverse=True), start=1):
        load = max(loads[joint] for joint in members)
        stiffness = load / (SAG_RAD if hinge else SAG_M)
        groups["motors" if len(alike) == 1 else f"motors_{n}"] = Motors(
            joints=tuple(model.joint(joint).name for joint in members) if len(alike) > 1 else (".*",),
            stiffness=rounded(stiffness),
            damping=rounded(stiffness * DAMPING_S),
            effort_limit=rounded(2.0 * load),
        )
    return groups


def _load_of(model: mujoco.MjModel, start: mujoco.MjData, joint: int, free: int | None) -> float:
    """Return an estimate of the torque in N m (slide joints: force in N) that a joint must hold.

    A joint of a floating robot holds half the weight of the robot; other joints hold the bodies below them in the tree.
    """
    body = int(model.jnt_bodyid[joint])
    minimum = 1e-3
    if free is not None:
        root = root_body(model, free)
        weight_n = GRAVITY_M_S2 * float(model.body_subtreemass[root])
        height_m = max(float(start.xpos[root, 2]) - ground_height(model, start), 0.1)
        return max(weight_n * (height_m if is_hinge(model, joint) else 1.0) / 2, minimum)
    weight_n = GRAVITY_M_S2 * float(model.body_subtreemass[body])
    if not is_hinge(model, joint):
        return max(weight_n, minimum)
    below = [b for b in range(body, model.nbody) if _is_below(model, b, body)]
    lever_m = max(float(np.linalg.norm(start.xipos[b] - start.xanchor[joint])) for b in below)
    return max(weight_n * lever_m, minimum)


def _is_below(model: mujoco.MjModel, body: int, ancestor: int) -> bool:
    while body > ancestor:  # parents come first
        body = int(model.body_parentid[body])
    return body == ancestor


def _reach(model: mujoco.MjModel, joint: int) -> float:
    """Return the width of a joint's range in m or rad, or 1 without a range."""
    low, high = model.jnt_range[joint]
    return float(high - low) if model.jnt_limited[joint] else 1.0
