"""Examination of the robot in an MJCF, for the settings of a first task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mjlab_dist.buffer_sizes import MARGIN, can_constrain, can_touch, size_for
from mjlab_dist.errors import UserError
from mjlab_dist.new_task.actuation import Block
from mjlab_dist.new_task.base import UPRIGHT, Base, find_base
from mjlab_dist.new_task.goals import EndEffector, Goal, Pendulum, choose_goal, find_end, find_pendulum, possible_goals
from mjlab_dist.new_task.joints import driven_joints, find_root, is_endless, simple_joints
from mjlab_dist.new_task.lacks import END_SITE, TARGET, Lacks, find_names, find_scenery, supply
from mjlab_dist.new_task.loading import compile_spec, load, put_on_device
from mjlab_dist.new_task.motors import Motors
from mjlab_dist.new_task.sampling import calmed, sample_sizes
from mjlab_dist.new_task.settling import actuate, add_motors, find_key, start_state

if TYPE_CHECKING:
    import mujoco

CONTROL_HZ = 50.0
"""Target for the control steps per second; the timestep of the MJCF sets the next possible rate."""

SLIDE = 2
"""Type of a slide joint, ``mujoco.mjtJoint.mjJNT_SLIDE``."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The joints that the policy observes."""

    positions: tuple[str, ...]
    """Names of the joints whose positions are observed."""
    angles: tuple[str, ...]
    """Names of the hinges without limits, whose sine and cosine are observed."""
    are_all: bool
    """Whether the positions are those of all hinges and slide joints."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The scene, for a camera."""

    center_m: tuple[float, float, float]
    """Its center."""
    extent_m: float
    """Its size."""


@dataclass(frozen=True, kw_only=True)
class Robot:
    """The properties of an MJCF that determine the config of its task."""

    goal: Goal
    """Goal of the task."""
    goals: tuple[Goal, ...]
    """All goals that the robot can have."""
    base: Base | None
    """The base of a robot that moves; None if it is fixed to the world."""
    pendulum: Pendulum | None
    """The pendulum to balance or to swing up, for these goals."""
    pendulum_body: str
    """Name of the last link of the pendulum."""
    end: EndEffector | None
    """The end effector, for the goal reach; it has a site."""
    joints: tuple[str, ...]
    """Names of the driven hinge and slide joints."""
    observed: Observed
    """The joints that the policy observes."""
    blocks: dict[str, Block]
    """Action blocks by name."""
    motors: dict[str, Motors]
    """Motors to add, by name of the group of joints; empty if the MJCF has actuators."""
    lacks: Lacks
    """Parts that the MJCF lacks."""
    keyframe: str | None
    """Keyframe that episodes start from."""
    stands: bool | None
    """Whether the robot stands in the pose that was found for it; None if none was searched for."""
    view: View
    """The scene, for a camera."""
    decimation: int
    """Substeps per control step."""
    control_hz: float
    """Control steps per second."""
    has_pgs: bool
    """Whether the MJCF uses the solver PGS, which MuJoCo Warp does not support."""
    integrator: Literal["euler", "rk4"] | None
    """The integrator of the MJCF if the task replaces it by implicitfast: Euler, which is less stable with added
    motors, or RK4, which takes four times as long. None if the task keeps it."""
    njmax: int
    """Constraint rows to allocate per env."""
    nconmax: int
    """Contacts to allocate per env."""


def examine(mjcf: Path, flag: str | None = None, goal: Goal | None = None) -> Robot:
    """Load an MJCF and examine the robot in it.

    Args:
        mjcf: The file.
        flag: The flag that names it, for messages; ``--mjcf`` and the file by default.
        goal: The goal of the task; by default it is guessed.

    Raises:
        UserError: If MuJoCo or MuJoCo Warp does not accept it, it has no hinge or slide joint, or the robot cannot have
            this goal.
    """
    import mujoco

    # The MJCF with missing names, and with a solver that MuJoCo Warp supports
    flag = flag or f"--mjcf {mjcf}"
    spec, model = load(flag, mjcf)
    names = find_names(spec, model, find_key(model))
    supply(spec, names)
    integrator, has_pgs = int(model.opt.integrator), bool(model.opt.solver == mujoco.mjtSolver.mjSOL_PGS)
    if has_pgs:
        spec.option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    model = compile_spec(spec)
    root = find_root(model)
    joints = driven_joints(model, root)
    if not joints:
        raise UserError(f"{flag}: has no hinge or slide joint to drive; choose another MJCF")

    # The goal, and the parts that it needs
    start = start_state(model, find_key(model))
    base = find_base(model, start, root) if root else None
    pendulum, end = find_pendulum(model, start, joints), find_end(model, start, joints)
    goals = possible_goals(base is not None, pendulum, end)
    goal = choose_goal(goal, goals, pendulum)
    scenery = find_scenery(model, is_moving=bool(root), can_fall=base is not None and base.can_fall)
    scenery = _with_marks(model, scenery, goal, pendulum, end)
    supply(spec, scenery)

    # Actions, motors and the start pose
    actuation = actuate(spec, root, joints)
    if actuation.home:
        supply(spec, Lacks(home=actuation.home))
    add_motors(spec, actuation.motors)
    model = compile_spec(spec)
    key = find_key(model)
    start = start_state(model, key)

    # Sizes of the buffers
    touches = can_touch(model, put_on_device(flag, model))
    decimation = max(1, round(1.0 / (CONTROL_HZ * model.opt.timestep)))
    blocks = calmed(model, start, decimation, actuation.blocks)
    rows, contacts = sample_sizes(model, start, decimation, blocks)
    return Robot(
        goal=goal,
        goals=goals,
        base=find_base(model, start, root) if root else None,
        pendulum=pendulum if goal in {"balance", "swing-up"} else None,
        pendulum_body=model.body(pendulum.body).name if pendulum is not None else "",
        end=replace(end, site=end.site or END_SITE) if end is not None and goal == "reach" else None,
        joints=tuple(model.joint(i).name for i in joints),
        observed=_observed(model, start, root),
        blocks=blocks,
        motors=actuation.motors,
        lacks=replace(
            scenery,
            joint_names=names.joint_names,
            actuator_names=names.actuator_names,
            keyframe_name=names.keyframe_name,
            home=actuation.home,
        ),
        keyframe=None if key is None else model.key(key).name,
        stands=actuation.stands,
        view=View(center_m=model.stat.center.tolist(), extent_m=float(model.stat.extent)),
        decimation=decimation,
        control_hz=1.0 / (decimation * model.opt.timestep),
        has_pgs=has_pgs,
        integrator=_integrator(integrator, actuation.motors),
        njmax=size_for(MARGIN * rows, touches or can_constrain(model)),
        nconmax=size_for(MARGIN * contacts, touches),
    )


def _integrator(integrator: int, motors: dict[str, Motors]) -> Literal["euler", "rk4"] | None:
    """Return the integrator of the MJCF if the task replaces it by implicitfast; None if the task keeps it."""
    import mujoco

    if integrator == mujoco.mjtIntegrator.mjINT_RK4:
        return "rk4"
    return "euler" if motors and integrator == mujoco.mjtIntegrator.mjINT_EULER else None


def _observed(model: mujoco.MjModel, start: mujoco.MjData, root: Sequence[int]) -> Observed:
    """Return the joints to observe. A robot does not observe how far it has moved horizontally."""
    slides = [j for j in root if model.jnt_type[j] == SLIDE]
    far = [j for j in slides if abs(start.xaxis[j, 2]) < UPRIGHT]
    simple = simple_joints(model)
    endless = [j for j in simple if is_endless(model, j)]
    positions = [j for j in simple if j not in far and j not in endless]
    return Observed(
        positions=tuple(model.joint(j).name for j in positions),
        angles=tuple(model.joint(j).name for j in endless),
        are_all=positions == simple,
    )


def _with_marks(
    model: mujoco.MjModel, lacks: Lacks, goal: Goal, pendulum: Pendulum | None, end: EndEffector | None
) -> Lacks:
    """Return the missing parts with the names, the site and the target that the goal needs."""
    body = pendulum.body if pendulum is not None and goal in {"balance", "swing-up"} else None
    body = end.body if end is not None and goal == "reach" else body
    if body is not None and not model.body(body).name:
        lacks = replace(lacks, body_names={body: "pole" if goal != "reach" else "hand"})
    if end is None or goal != "reach":
        return lacks
    name = lacks.body_names.get(end.body, model.body(end.body).name)
    mocap = {model.body(i).name for i in range(model.nbody) if model.body_mocapid[i] >= 0}
    return replace(lacks, end_site=None if end.site else (name, end.pos), target=TARGET not in mocap)
