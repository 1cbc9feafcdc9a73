"""Recognize the wheels of a robot without actuators, and choose their velocity motors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.authoring.new_task.joints import is_below, is_endless, simple_joints
from mjlab_dist.authoring.new_task.rounding import rounded
from mjlab_dist.config import ActuatorConfig
from mjlab_dist.sim.names import exactly

if TYPE_CHECKING:
    import mujoco

# Maximum cosine of the angle between the axis of a wheel and the vertical
LEVEL = 0.2

# Maximum distance between the axis and the center of a wheel, as a share of the wheel's radius
CENTERED = 0.1

# Maximum height of a wheel above the lowest point of the robot, as a share of the wheel's radius
REACHES = 0.25

# Ratio of the robot's speed for actions of 1 to the speed at which the reward is 1
FULL_SPEED = 2.0

# Velocity error at which a motor reaches its torque limit, as a share of the target velocity for an action of 1
LAG = 0.25


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel that supports a robot."""

    # Radius of the wheel
    radius_m: float
    # 1 if the robot moves forward at a positive velocity of the joint, else -1
    direction: int


def find_wheels(model: mujoco.MjModel, start: mujoco.MjData, base: int, joints: Sequence[int]) -> dict[int, Wheel]:
    """Return a dict from joints to wheels of a robot.

    A wheel has a driven joint without limits, and reaches the ground. If there is only one such wheel, the dict is
    empty.
    """
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    up = np.abs(start.geom_xmat[:, 6:])
    lowest_m = start.geom_xpos[:, 2] - (up * model.geom_aabb[:, 3:]).sum(axis=1)
    of_robot = collides & [is_below(model, int(body), base) for body in model.geom_bodyid]
    found: dict[int, Wheel] = {}
    for joint in joints:
        body, axis = int(model.jnt_bodyid[joint]), start.xaxis[joint]
        geoms = collides & (model.geom_bodyid == body)
        is_last = not any(is_below(model, int(model.jnt_bodyid[j]), body) for j in simple_joints(model) if j != joint)
        if not is_endless(model, joint) or abs(axis[2]) > LEVEL or not is_last or not geoms.any():
            continue
        radius_m = float(start.xanchor[joint, 2] - lowest_m[geoms].min())
        offsets_m = start.geom_xpos[geoms] - start.xanchor[joint]
        offsets_m -= np.outer(offsets_m @ axis, axis)
        is_centered = bool((np.linalg.norm(offsets_m, axis=1) < CENTERED * radius_m).all())
        if is_centered and lowest_m[geoms].min() < lowest_m[of_robot].min() + REACHES * radius_m:
            forward = float(np.cross(axis, [0.0, 0.0, 1.0]) @ start.xmat[base].reshape(3, 3)[:, 0])
            found[joint] = Wheel(radius_m=radius_m, direction=1 if forward >= 0.0 else -1)
    return found if len(found) > 1 else {}


def wheel_motors(
    model: mujoco.MjModel, base: int, wheels: dict[int, Wheel], speed_m_s: float
) -> tuple[dict[str, ActuatorConfig], dict[int, float]]:
    """Return velocity motors whose effort limit matches the friction of the wheels.

    Also return a dict from the joint of each wheel to its velocity for an action of 1, in rad/s.
    """
    if not wheels:
        return {}, {}
    weight_n = float(np.linalg.norm(model.opt.gravity) * model.body_subtreemass[base])
    radius_m = float(np.mean([wheel.radius_m for wheel in wheels.values()]))
    effort = weight_n / len(wheels) * radius_m
    speed_rad_s = FULL_SPEED * speed_m_s / radius_m
    motor = ActuatorConfig(
        joints=tuple(exactly(model.joint(joint).name) for joint in wheels),
        kind="velocity",
        damping=rounded(effort / (LAG * speed_rad_s)),
        effort_limit=rounded(effort),
    )
    return {"wheels": motor}, {joint: rounded(wheel.direction * speed_rad_s) for joint, wheel in wheels.items()}
