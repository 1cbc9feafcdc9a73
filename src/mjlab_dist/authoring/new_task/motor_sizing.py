"""Motors for the joints of an MJCF without actuators. Their parameters follow from the loads of the joints.

Joints get position motors; wheels get velocity motors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.authoring.new_task.joints import Leg, is_below, is_endless, is_hinge, simple_joints
from mjlab_dist.authoring.new_task.source import rounded
from mjlab_dist.config import ActuatorConfig
from mjlab_dist.sim.names import exactly

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Effort limit divided by the load of a joint
EFFORT_MARGIN = 2.0

# `EFFORT_MARGIN` for the joints of legs. It is smaller, because the load of a bent leg is overestimated.
LEG_MARGIN = 1.5

# Minimum ratio of damping to stiffness, in s. The motors of legs need this minimum, because they also move the body.
# The damping ratio takes only the inertia of the leg into account.
MIN_DAMPING_S = 0.04

# Minimum stiffness of the joints of one or two legs, divided by the stiffness below which the robot falls over
UPRIGHT_MARGIN = 1.3

# Damping ratio of joint and motor. True: for robots that move, whose legs must be fast. False: for fixed robots.
DAMPING_RATIO = {True: 0.5, False: 1.0}

# Deflection of a hinge (rad) and of a slide joint (m) under its load, for robots that are fixed to the world
FIXED_SAG = (0.1, 0.01)

# `FIXED_SAG` for robots that move. Their motors are softer, because of the impacts of the feet.
MOVING_SAG = (0.5, 0.05)

# Minimum natural frequency of a joint with its motor
MIN_HZ = 2.0

# Maximum natural frequency; armature is added to joints that would have a higher one
MAX_HZ = 10.0

# Maximum natural frequency in rad per physics step. The explicit integration of a spring is unstable above 2.
MAX_STEP = 0.3

# Minimum load of a joint: of a hinge, as a share of the largest load of the robot's hinges; of a slide joint, as a
# share of the robot's weight.
MIN_SHARE = 0.02

# Minimum cosine of the angle between a vertical axis and gravity
VERTICAL = 0.99

# Minimum load of a joint of a leg, as a share of the largest load of the joints of this leg
MIN_LEG_SHARE = 0.25

# Maximum cosine of the angle between the axis of a wheel and the vertical
MAX_AXIS_COSINE = 0.2

# Maximum distance between the axis and the center of a wheel, as a share of the wheel's radius
MAX_OFF_CENTER = 0.1

# Maximum height of a wheel above the lowest point of the robot, as a share of the wheel's radius
MAX_CLEARANCE = 0.25

# Ratio of the robot's speed for actions of 1 to the speed at which the reward is 1
FULL_SPEED = 2.0

# Velocity error at which a motor reaches its torque limit, as a share of the target velocity for an action of 1
ERROR_AT_LIMIT = 0.25


def make_motors(
    model: mujoco.MjModel, start: mujoco.MjData, joints: Sequence[int], legs: Sequence[Leg], *, is_moving: bool
) -> dict[str, ActuatorConfig]:
    """Return a dict from names to groups of position motors, which are strong enough to hold the robot.

    The motors of similar joints are in one group, and have the same parameters.

    - The effort limit is that of the MJCF (``actuatorfrcrange``) or, without one, a multiple of the joint's load.
    - The stiffness is large enough to limit the deflection under the load, and to reach a minimum natural frequency.
      The joints of one or two legs are also stiff enough to keep the robot from falling over.
    - Armature is added to joints whose natural frequency would be too high with this stiffness.
    - The damping is computed from the joint's inertia and a damping ratio. The motor provides only the part of this
      damping that the MJCF does not already give to the joint.
    """
    loads = joint_loads(model, start, joints, legs)
    inertias, free_inertias = dof_inertias(model, start)
    min_rad_s = 2.0 * math.pi * MIN_HZ
    max_rad_s = min(2.0 * math.pi * MAX_HZ, MAX_STEP / model.opt.timestep)
    sags = MOVING_SAG if is_moving else FIXED_SAG
    upright = _upright_stiffness(model, start, legs)
    of_legs = {joint for leg in legs for joint in leg.joints}
    made: dict[int, ActuatorConfig] = {}
    for joint in joints:
        dof, hinge = int(model.jnt_dofadr[joint]), is_hinge(model, joint)
        given = _given_effort(model, joint)
        load = given / 2.0 if given else loads[joint]
        # Stiffness and effort limit. With a limit in the MJCF, half of the limit counts as the load of the joint.
        stiffness = max(load / sags[not hinge], inertias[dof] * min_rad_s**2)
        if joint in of_legs:
            stiffness = max(stiffness, upright)
        margin = LEG_MARGIN if joint in of_legs else EFFORT_MARGIN
        effort = given or margin * max(load, inertias[dof] * min_rad_s**2 * sags[not hinge])
        # Armature and damping
        armature = max(stiffness / max_rad_s**2 - free_inertias[dof], 0.0)
        critical = 2.0 * math.sqrt(stiffness * (inertias[dof] + armature))
        damping = max(DAMPING_RATIO[is_moving] * critical, MIN_DAMPING_S * stiffness)
        made[joint] = ActuatorConfig(
            joints=(exactly(model.joint(joint).name),),
            stiffness=stiffness,
            damping=max(damping - float(model.dof_damping[dof]), 0.0),
            effort_limit=effort,
            armature=float(model.dof_armature[dof]) + armature if armature else None,
        )
    return _grouped(model, made)


def joint_loads(
    model: mujoco.MjModel, start: mujoco.MjData, joints: Sequence[int], legs: Sequence[Leg]
) -> dict[int, float]:
    """Return the torque in N m (slide joints: force in N) that each joint must hold.

    The load comes from the weight of the links behind the joint, in the pose in which this load is highest. A joint of
    a leg must also be able to carry the leg's share of the robot's weight, with the distance from the joint to the foot
    as the lever. Of two, three or four legs, two share the weight, because the others may swing. Of more legs, half
    share the weight.
    """
    gravity_m_s2 = float(np.linalg.norm(model.opt.gravity)) or 9.81
    loads = {joint: gravity_m_s2 * _first_moment(model, start, joint) for joint in joints}
    # Legs
    weight_n = gravity_m_s2 * max((float(model.body_subtreemass[_root(model, leg)]) for leg in legs), default=0.0)
    share = max(min(len(legs), 2), len(legs) / 2)
    wanted = set(joints)
    for leg in legs:
        carried = {joint: weight_n / share * _lever_m(model, start, joint, leg) for joint in leg.joints}
        least = MIN_LEG_SHARE * max(carried.values())
        loads |= {joint: max(load, least, loads[joint]) for joint, load in carried.items() if joint in wanted}
    # A minimum load for all joints, because some have no load, such as hinges with a vertical axis
    largest = {
        kind: max((loads[j] for j in joints if is_hinge(model, j) == kind), default=0.0) for kind in (True, False)
    }
    total_n = gravity_m_s2 * sum(float(model.body_mass[b]) for b in range(model.nbody) if model.body_weldid[b])
    least = {True: MIN_SHARE * largest[True], False: MIN_SHARE * total_n}
    return {joint: max(load, least[is_hinge(model, joint)]) for joint, load in loads.items()}


def _upright_stiffness(model: mujoco.MjModel, start: mujoco.MjData, legs: Sequence[Leg]) -> float:
    """Return the stiffness in N m/rad with which the joints of one or two legs keep a robot from falling over.

    An inverted pendulum of mass m and height h needs a stiffness above m g h. With another number of legs, return 0,
    because the robot does not fall over.
    """
    if not 1 <= len(legs) <= 2:
        return 0.0
    root = _root(model, legs[0])
    foot_m = min(float(leg.foot(start)[2]) for leg in legs)
    weight_n = float(np.linalg.norm(model.opt.gravity) * model.body_subtreemass[root])
    return UPRIGHT_MARGIN * weight_n * (float(start.subtree_com[root, 2]) - foot_m) / len(legs)


def _first_moment(model: mujoco.MjModel, start: mujoco.MjData, joint: int) -> float:
    """Return the first moment of the bodies behind a hinge about the hinge's axis, in kg m.

    The first moment is the mass times the distance of the center of mass. For a slide joint, return the mass in kg.

    The result is 0 if gravity causes no force along the axis and no torque about it, whatever the pose.
    """
    body = int(model.jnt_bodyid[joint])
    mass_kg = float(model.body_subtreemass[body])
    axis = start.xaxis[joint]
    gravity = model.opt.gravity / (np.linalg.norm(model.opt.gravity) or 1.0)
    along = abs(float(axis @ gravity))
    turns_before = any(
        is_below(model, body, int(model.jnt_bodyid[j])) and _tips(model, j, start.xaxis[j] @ gravity)
        for j in range(joint)
    )
    if not is_hinge(model, joint):
        return mass_kg if turns_before else mass_kg * along
    arm = start.subtree_com[body] - start.xanchor[joint]
    lever_m = float(np.linalg.norm(np.cross(axis, arm)))
    return mass_kg * lever_m * (1.0 if turns_before else math.sqrt(max(0.0, 1.0 - along**2)))


def _tips(model: mujoco.MjModel, joint: int, along: float) -> bool:
    """Return whether a joint can change the direction of gravity relative to the bodies behind it."""
    import mujoco

    kind = model.jnt_type[joint]
    if kind == mujoco.mjtJoint.mjJNT_HINGE:
        return abs(along) < VERTICAL
    return bool(kind != mujoco.mjtJoint.mjJNT_SLIDE)


def _lever_m(model: mujoco.MjModel, start: mujoco.MjData, joint: int, leg: Leg) -> float:
    """Return the distance of a foot from the axis of a hinge in m, at least its own size; 1 for a slide joint."""
    if not is_hinge(model, joint):
        return 1.0
    return max(float(np.linalg.norm(np.cross(start.xaxis[joint], leg.foot(start) - start.xanchor[joint]))), leg.size_m)


def dof_inertias(model: mujoco.MjModel, start: mujoco.MjData) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two inertias of each degree of freedom, (nv,) each.

    The first one holds if all other degrees of freedom are fixed, the second one if they are free to move.
    """
    import mujoco

    mass = np.zeros((model.nv, model.nv), dtype=np.float64)
    mujoco.mj_fullM(model, start, mass)
    return mass.diagonal().copy(), (1.0 / np.linalg.inv(mass).diagonal()).astype(np.float64)


def _given_effort(model: mujoco.MjModel, joint: int) -> float:
    """Return the effort limit in the MJCF, or 0 if there is none."""
    return float(np.abs(model.jnt_actfrcrange[joint]).min()) if model.jnt_actfrclimited[joint] else 0.0


def _root(model: mujoco.MjModel, leg: Leg) -> int:
    return int(model.body_rootid[leg.body])


def _grouped(model: mujoco.MjModel, made: dict[int, ActuatorConfig]) -> dict[str, ActuatorConfig]:
    """Group the motors of similar joints: joints of one type whose limit and stiffness differ by at most a factor of 2.

    All motors of a group get the largest parameters in the group.
    """
    alike: dict[tuple[bool, float, int], list[int]] = {}
    for joint, motor in made.items():
        effort = _given_effort(model, joint) or 2.0 ** round(math.log2(motor.effort_limit or 1.0))
        key = is_hinge(model, joint), effort, round(math.log2(motor.stiffness))
        alike.setdefault(key, []).append(joint)
    groups: dict[str, ActuatorConfig] = {}
    for n, (_, members) in enumerate(sorted(alike.items(), reverse=True), start=1):
        motors = [made[joint] for joint in members]
        names = tuple(motor.joints[0] for motor in motors)
        armature = 0.0
        if any(motor.armature for motor in motors):
            own = max(float(model.dof_armature[model.jnt_dofadr[joint]]) for joint in members)
            armature = max(own, *(motor.armature or 0.0 for motor in motors))
        groups["motors" if len(alike) == 1 else f"motors_{n}"] = ActuatorConfig(
            joints=(".*",) if len(names) == len(simple_joints(model)) else names,
            stiffness=rounded(max(motor.stiffness for motor in motors)),
            damping=rounded(max(motor.damping for motor in motors)),
            effort_limit=rounded(max(motor.effort_limit or 0.0 for motor in motors)),
            armature=rounded(armature) if armature else None,
        )
    return groups


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
        if not is_endless(model, joint) or abs(axis[2]) > MAX_AXIS_COSINE or not is_last or not geoms.any():
            continue
        radius_m = float(start.xanchor[joint, 2] - lowest_m[geoms].min())
        offsets_m = start.geom_xpos[geoms] - start.xanchor[joint]
        offsets_m -= np.outer(offsets_m @ axis, axis)
        is_centered = bool((np.linalg.norm(offsets_m, axis=1) < MAX_OFF_CENTER * radius_m).all())
        if is_centered and lowest_m[geoms].min() < lowest_m[of_robot].min() + MAX_CLEARANCE * radius_m:
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
        damping=rounded(effort / (ERROR_AT_LIMIT * speed_rad_s)),
        effort_limit=rounded(effort),
    )
    return {"wheels": motor}, {joint: rounded(wheel.direction * speed_rad_s) for joint, wheel in wheels.items()}
