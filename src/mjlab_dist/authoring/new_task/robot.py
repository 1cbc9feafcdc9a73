"""Examination of the robot in an MJCF, for the settings of a first task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from mjlab_dist.authoring.buffer_sizes import can_constrain, can_touch
from mjlab_dist.authoring.new_task.action_blocks import Block, gentle
from mjlab_dist.authoring.new_task.gaits import Feet, Gait, find_feet, find_gait
from mjlab_dist.authoring.new_task.goals import (
    EndEffector,
    Goal,
    Pendulum,
    choose_goal,
    find_end,
    find_pendulum,
    possible_goals,
)
from mjlab_dist.authoring.new_task.joints import (
    UPRIGHT,
    Base,
    Trees,
    ball_joints,
    driven_balls,
    driven_joints,
    find_base,
    find_root,
    find_trees,
    is_endless,
    simple_joints,
    thrusters,
)
from mjlab_dist.authoring.new_task.lacks import (
    Lacks,
    View,
    find_jams,
    find_names,
    find_scenery,
    find_touching,
    find_view,
    names_of,
    shows_robot,
    supply,
)
from mjlab_dist.authoring.new_task.presets import Preset, find_preset
from mjlab_dist.authoring.new_task.robot_files import compile_spec, load, put_on_device
from mjlab_dist.authoring.new_task.sampling import calmed, sample_sizes
from mjlab_dist.authoring.new_task.settling import (
    Actuation,
    actuate,
    add_motors,
    find_key,
    start_state,
    use_implicitfast,
)
from mjlab_dist.config import ActuatorConfig
from mjlab_dist.config.physics import BUFFER_MARGIN, size_for
from mjlab_dist.errors import UserError, listed
from mjlab_dist.sim.names import new_name

if TYPE_CHECKING:
    import mujoco

# Target for the control steps per second. The actual rate is the nearest one that the MJCF's timestep allows.
CONTROL_HZ = 50.0

# Timestep for learning to walk on two or four legs, unless that of the MJCF is longer
GAIT_TIMESTEP_S = 0.02 / 3

# Type of a slide joint, `mujoco.mjtJoint.mjJNT_SLIDE`
SLIDE = 2


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The joints that the policy observes."""

    # Names of the joints whose positions are observed
    positions: tuple[str, ...]
    # Names of the hinges that can turn by 360 degrees or more. The sine and cosine of their positions are observed.
    angles: tuple[str, ...]
    # Whether positions contains all hinges and slide joints of the model
    are_all: bool
    # Names of the ball joints, whose quaternions and angular velocities are observed
    balls: tuple[str, ...]
    # Whether the model has soft bodies; their joints are neither observed nor randomized at the start
    is_soft: bool


@dataclass(frozen=True, kw_only=True)
class Robot:
    """The properties of an MJCF that determine the config of its task."""

    # Goal of the task
    goal: Goal
    # All goals that the robot can have
    goals: tuple[Goal, ...]
    # The base of a robot that moves; None if it is fixed to the world
    base: Base | None
    # The pendulum, for the goals balance and swing-up; None for other goals
    pendulum: Pendulum | None
    # Name of the last link of the pendulum
    pendulum_body: str
    # The end effector, for the goal reach, with the name of its site; None for other goals
    end: EndEffector | None
    # The gait of a robot that learns to walk on two or four legs; None for other robots
    gait: Gait | None
    # Names of the driven hinge and slide joints
    joints: tuple[str, ...]
    # The robots in the MJCF, and other objects with joints
    trees: Trees
    # The joints that the policy observes
    observed: Observed
    # Action blocks by name
    blocks: dict[str, Block]
    # Joints that actions do not move, with the reasons
    jams: dict[str, str]
    # Motors to add, by name of the group of joints; empty if those of the MJCF are used
    motors: dict[str, ActuatorConfig]
    # The published motors among the added ones; None if all are estimates, or no motors are added
    preset: Preset | None
    # Parts that the MJCF lacks
    lacks: Lacks
    # Keyframe that episodes start from
    keyframe: str | None
    # Whether the robot stands in the start pose that was found by simulation; None if the start pose is that of the
    # MJCF.
    stands: bool | None
    # The view that a camera must show
    view: View
    # Substeps per control step
    decimation: int
    # Control steps per second
    control_hz: float
    # Whether the MJCF uses the solver PGS, which MuJoCo Warp does not support
    has_pgs: bool
    # Timestep in s with which the task replaces that of the MJCF; None if the task keeps it
    timestep_s: float | None
    # The integrator of the MJCF, if the task replaces it by implicitfast; None if the task keeps it. The task replaces
    # Euler if motors are added, because Euler is less stable with them, and RK4, because it takes four times as long.
    integrator: Literal["euler", "rk4"] | None
    # Constraint rows to allocate per env
    njmax: int
    # Contacts to allocate per env
    nconmax: int


def examine(mjcf: Path, flag: str | None = None, goal: Goal | None = None, *, names: Sequence[str] = ()) -> Robot:
    """Load an MJCF and examine the robot in it."""
    # Load the MJCF, name its unnamed elements, and find the robot
    flag = flag or f"--mjcf {mjcf}"
    loaded = _load(flag, mjcf)
    spec, model = loaded.spec, compile_spec(loaded.spec)
    root = find_root(model)
    joints = _driven(flag, model, root)

    # The goal and the parts that it needs; actions, motors and the start pose
    plan = _plan(model, root, joints, goal)
    supply(spec, plan.lacks)
    timestep_s = _set_options(spec, model) if plan.feet else None
    preset = _preset(spec, model, joints, names)
    actuation = actuate(spec, root, joints, preset)
    lacks = _supply_rest(spec, model, plan, actuation, joints)
    add_motors(spec, actuation.motors)
    model = compile_spec(spec)
    key = find_key(model)
    start = start_state(model, key)

    # Actions that keep the physics stable, and sizes of the buffers
    decimation = max(1, round(1.0 / (CONTROL_HZ * model.opt.timestep)))
    control_hz = 1.0 / (decimation * model.opt.timestep)
    base = find_base(model, start, root) if root else None
    gait, blocks = None, actuation.blocks
    if base is not None and plan.feet is not None:
        gait = find_gait(model, start, base, plan.feet, control_hz)
        blocks = gentle(model, blocks, gait.action_torque, plan.feet.joints)
    blocks = calmed(model, start, decimation, blocks)
    touches = can_touch(model, put_on_device(flag, model))
    rows, contacts = sample_sizes(model, start, decimation, blocks, root)
    return Robot(
        goal=plan.goal,
        goals=plan.goals,
        base=base,
        pendulum=plan.pendulum,
        pendulum_body=model.body(plan.pendulum.body).name if plan.pendulum is not None else "",
        end=plan.end,
        gait=gait,
        joints=tuple(model.joint(i).name for i in joints),
        trees=find_trees(model, joints),
        observed=_observed(model, start, root),
        blocks=blocks,
        jams=find_jams(model, start, blocks, root),
        motors=actuation.motors,
        preset=preset,
        lacks=replace(
            lacks,
            joint_names=loaded.names.joint_names,
            actuator_names=loaded.names.actuator_names,
            keyframe_name=loaded.names.keyframe_name,
        ),
        keyframe=None if key is None else model.key(key).name,
        stands=actuation.stands,
        view=find_view(model, start),
        decimation=decimation,
        control_hz=control_hz,
        has_pgs=loaded.has_pgs,
        timestep_s=timestep_s,
        integrator=_integrator(loaded.integrator, has_motors=bool(actuation.motors or plan.feet)),
        njmax=size_for(BUFFER_MARGIN * rows, touches or can_constrain(model)),
        nconmax=size_for(BUFFER_MARGIN * contacts, touches),
    )


def _driven(flag: str, model: mujoco.MjModel, root: list[int]) -> list[int]:
    """Return the driven joints; raise if there are none, and the robot is no drone."""
    joints = driven_joints(model, root)
    if joints or (root and thrusters(model)):
        return joints
    what = "choose another MJCF"
    if balls := listed(model.joint(j).name for j in driven_balls(model)):
        what = f"its actuators drive only {balls}; use hinges"
    elif model.nflex:
        what = "it contains only soft bodies (flexes); add a robot"
    elif thrusters(model):
        what = "its actuators push a body without a free joint; add <freejoint/> to this body"
    raise UserError(f"{flag}: has no hinge or slide joint to drive; {what}")


class _Loaded(NamedTuple):
    """An MJCF whose needed elements all have names, and whose solver MuJoCo Warp supports."""

    spec: mujoco.MjSpec
    names: Lacks
    integrator: int
    has_pgs: bool


def _load(flag: str, mjcf: Path) -> _Loaded:
    import mujoco

    spec, model = load(flag, mjcf)
    names = find_names(spec, model, find_key(model))
    supply(spec, names)
    has_pgs = bool(model.opt.solver == mujoco.mjtSolver.mjSOL_PGS)
    if has_pgs:
        spec.option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return _Loaded(spec, names, int(model.opt.integrator), has_pgs)


class _Plan(NamedTuple):
    """The goal of a task, and what it needs."""

    goal: Goal
    goals: tuple[Goal, ...]
    pendulum: Pendulum | None
    end: EndEffector | None
    # The feet of a robot that learns to walk on two or four legs; None for other robots
    feet: Feet | None
    lacks: Lacks


def _plan(model: mujoco.MjModel, root: Sequence[int], joints: Sequence[int], wish: Goal | None) -> _Plan:
    """Choose the goal, and find the parts that the MJCF lacks for it, except for names of joints and actuators."""
    start = start_state(model, find_key(model))
    pendulum, end = find_pendulum(model, start, joints), find_end(model, start, joints)
    goals = possible_goals(bool(root), pendulum, end, has_joints=bool(joints), has_balls=bool(driven_balls(model)))
    goal = choose_goal(wish, goals, pendulum)
    pendulum = pendulum if goal in {"balance", "swing-up"} else None
    end = end if goal == "reach" else None
    base = find_base(model, start, root) if root else None
    can_fall = base is not None and base.can_fall
    lacks = find_scenery(model, is_moving=bool(root), can_fall=can_fall, is_shown=shows_robot(model, start))
    # Bodies whose contacts no joint can open
    pairs = find_touching(model, start, joints, root)
    bodies = names_of(model, "body")
    unnamed = {b: new_name(f"body_{b}", bodies) for b in {b for pair in pairs for b in pair} if not bodies[b]}
    names = {b: unnamed.get(b, model.body(b).name) for pair in pairs for b in pair}
    lacks = replace(lacks, body_names=unnamed, touching=tuple((names[a], names[b]) for a, b in pairs))
    # Missing parts for the goal: a name for the body of the pendulum or end effector, a site at the end effector, and
    # a body that shows the target
    body = pendulum.body if pendulum is not None else end.body if end is not None else None
    if body is not None and not model.body(body).name and body not in unnamed:
        name = new_name("hand" if pendulum is None else "pole", bodies)
        lacks = replace(lacks, body_names=unnamed | {body: name})
    if end is not None:
        lacks = replace(lacks, target=new_name("reach_target", bodies))
        if end.site is None:
            site = new_name("end_effector", names_of(model, "site"))
            name = lacks.body_names.get(end.body, bodies[end.body])
            end, lacks = replace(end, site=site), replace(lacks, end_site=(name, site, end.pos))
    feet = None
    if goal == "walk" and base is not None and base.can_fall and base.is_free:
        feet = find_feet(model, start, root, joints)
    if feet is not None:
        feet, lacks = _with_names(model, feet, lacks)
    return _Plan(goal, goals, pendulum, end, feet, lacks)


def _with_names(model: mujoco.MjModel, feet: Feet, lacks: Lacks) -> tuple[Feet, Lacks]:
    """Return feet with their names, and the missing parts with those of unnamed feet."""
    given = lacks.body_names if feet.kind == "body" else lacks.geom_names
    names = {i: name or given.get(i, "") for i, name in enumerate(names_of(model, feet.kind))}
    added: dict[int, str] = {}
    for foot in feet.ids:
        if not names[foot]:
            names[foot] = added[foot] = new_name("foot", names.values())
    feet = feet._replace(names=tuple(names[foot] for foot in feet.ids))
    if feet.kind == "body":
        return feet, replace(lacks, body_names=given | added)
    return feet, replace(lacks, geom_names=given | added)


def _set_options(spec: mujoco.MjSpec, model: mujoco.MjModel) -> float | None:
    """Set the options for learning to walk on legs, as the generated config does. Return a new timestep in s."""
    import mujoco

    spec.option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
    spec.option.impratio = 1.0
    use_implicitfast(spec)
    if model.opt.timestep >= GAIT_TIMESTEP_S:
        return None
    spec.option.timestep = GAIT_TIMESTEP_S
    return GAIT_TIMESTEP_S


def _supply_rest(
    spec: mujoco.MjSpec, model: mujoco.MjModel, plan: _Plan, actuation: Actuation, joints: Sequence[int]
) -> Lacks:
    """Add to an MJCF the missing parts that depend on the motors. Return all missing parts."""
    bodies: dict[int, str] = {}
    if actuation.sags and plan.goal in {"reach", "hold"}:
        roots = sorted({int(model.body_rootid[model.jnt_bodyid[j]]) for j in joints})
        bodies = {body: plan.lacks.body_names.get(body) or model.body(body).name for body in roots}
    unnamed = {b: new_name(f"robot_{b}", names_of(model, "body")) for b, name in bodies.items() if not name}
    late = Lacks(home=actuation.home, body_names=unnamed, weightless=tuple((bodies | unnamed).values()))
    supply(spec, late)
    return replace(plan.lacks, home=late.home, body_names=plan.lacks.body_names | unnamed, weightless=late.weightless)


def _preset(spec: mujoco.MjSpec, model: mujoco.MjModel, joints: Sequence[int], names: Sequence[str]) -> Preset | None:
    """Return the published motors of the robot; None if there are none, or if its MJCF has position motors."""
    import mujoco

    # The author of an MJCF with position motors has chosen their gains, so published motors do not replace them
    has_bias = model.actuator_biastype == int(mujoco.mjtBias.mjBIAS_AFFINE)
    if (has_bias & (model.actuator_biasprm[:, 1] < 0)).any():
        return None
    return find_preset([spec.modelname, *names], [model.joint(joint).name for joint in joints])


def _integrator(integrator: int, *, has_motors: bool) -> Literal["euler", "rk4"] | None:
    """Return the integrator of the MJCF if the task replaces it by implicitfast; None if the task keeps it."""
    import mujoco

    if integrator == mujoco.mjtIntegrator.mjINT_RK4:
        return "rk4"
    return "euler" if has_motors and integrator == mujoco.mjtIntegrator.mjINT_EULER else None


def _observed(model: mujoco.MjModel, start: mujoco.MjData, root: Sequence[int]) -> Observed:
    """Return the joints to observe. They exclude the joints along which the robot moves horizontally."""
    slides = [j for j in root if model.jnt_type[j] == SLIDE]
    far = [j for j in slides if abs(start.xaxis[j, 2]) < UPRIGHT]
    simple = simple_joints(model)
    endless = [j for j in simple if is_endless(model, j)]
    positions = [j for j in simple if j not in far and j not in endless]
    return Observed(
        positions=tuple(model.joint(j).name for j in positions),
        angles=tuple(model.joint(j).name for j in endless),
        balls=tuple(model.joint(j).name for j in ball_joints(model)),
        are_all=positions == simple and not model.nflex,
        is_soft=bool(model.nflex),
    )
