"""What MuJoCo finds in an MJCF, and what a first task makes of it."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from mjlab_dist.buffer_sizes import MARGIN, can_constrain, can_touch, size_for
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import mujoco
    import mujoco_warp as mjw
    from numpy.typing import NDArray

CONTROL_HZ = 50.0
"""Control steps a second, as nearly as the MJCF's timestep allows."""

GRAVITY_M_S2 = 9.81

HOME_NAMES = ("home", "stand", "standing", "default")
"""Names of a keyframe to start from; where there is none of them, the first is taken."""

SAMPLED_S = 2.0
"""Simulated seconds of each episode in which contacts are counted."""

NUM_SAMPLED = 20
"""Episodes in which they are."""

TOLERATED_DEPTH_M = 0.01
"""Start states as deep in the ground as this are left alone."""

UPRIGHT = 0.8
"""Cosine of the angle to the vertical up to which a body's z axis points up."""

FALLEN_SHARE = 0.2
"""A robot has fallen when its belly has come so near to the ground, as a share of its clearance at the start."""

FROUDE = 0.25
"""Froude number v^2 / (g h) of the walking speed; animals walk up to about 0.5 (Alexander 1984, The gaits of bipedal and quadrupedal animals)."""

SAG_RAD = 0.25
"""How far a hinge gives way under its load, where motors are made up for it."""

SAG_M = 0.01
"""How far a slide joint does."""

DAMPING_S = 0.05
"""Damping of these motors, as a share of their stiffness in s."""

HINGE_REACH_RAD = 0.5
"""How far an action of 1 moves the target of a hinge's position motor."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Actuators of one kind, which a block of actions drives."""

    actuators: tuple[str, ...]
    """Their names."""
    kind: Literal["position", "velocity", "effort"]
    """What their input sets."""
    scale: float
    """Input per unit of action."""
    offset: float | Literal["home"]
    """Input at action 0."""


POSITIONS = Block(actuators=(".*",), kind="position", scale=HINGE_REACH_RAD, offset="home")
"""Position motors of hinges, all of them."""


@dataclass(frozen=True, kw_only=True)
class Motors:
    """Position motors for joints of an MJCF without actuators."""

    joints: tuple[str, ...]
    """Their joints."""
    stiffness: float
    """In N m/rad (slide: N/m)."""
    damping: float
    """In N m s/rad (slide: N s/m)."""
    effort_limit: float
    """In N m (slide: N)."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """What floats of a robot that does."""

    joint: str
    """Its free joint."""
    is_upright: bool
    """Whether its z axis points up at the start."""
    rise_m: float
    """How deep the start state is in the ground; 0 where it is not."""
    least_height_m: float
    """Height, as the free joint has it, below which the robot has fallen."""
    speed_m_s: float
    """A walking speed for legs as long as these."""


@dataclass(frozen=True, kw_only=True)
class Lacks:
    """What an MJCF lacks that a config, or whoever looks at a video, needs."""

    joint_names: dict[int, str]
    """Names for joints without one, by their place in ``mujoco.MjSpec.joints``."""
    actuator_names: dict[int, str]
    """Names for actuators without one, by their place in ``mujoco.MjSpec.actuators``."""
    keyframe_name: str | None
    """A name for the first keyframe, where it has none and is the start."""
    ground: bool
    """Whether a robot that floats would fall for ever."""
    camera: bool
    """Whether a robot that floats would walk out of the picture."""

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return any(vars(self).values())


@dataclass(frozen=True, kw_only=True)
class Robot:
    """An MJCF, as far as a task is made from it."""

    base: Base | None
    """What floats; None where the robot is fixed to the world."""
    joints: tuple[str, ...]
    """Hinge and slide joints that are driven."""
    blocks: dict[str, Block]
    """Actuators by name of the action block."""
    motors: dict[str, Motors]
    """Motors to put on joints, by name of the group; only where the MJCF has no actuator."""
    lacks: Lacks
    """What the MJCF lacks."""
    keyframe: str | None
    """Keyframe that episodes start from."""
    decimation: int
    """Substeps per control step."""
    control_hz: float
    """Control steps a second."""
    has_pgs: bool
    """Whether the MJCF asks for the solver PGS, which MuJoCo Warp does not have."""
    has_rk4: bool
    """Whether it asks for the integrator RK4, which takes four times as long as the others."""
    njmax: int
    """Constraint rows to allocate per env."""
    nconmax: int
    """Contacts to allocate per env."""


def examine(mjcf: Path) -> Robot:
    """Load an MJCF and find out what there is to train.

    Args:
        mjcf: The file.

    Raises:
        UserError: If MuJoCo or MuJoCo Warp refuses it, or nothing in it can be driven.
    """
    import mujoco

    flag = f"--mjcf {mjcf}"
    spec, model = load(flag, mjcf)
    free = _find_free_joint(model)
    lacks = _find_lacks(spec, model, free)
    supply(spec, lacks, None if free is None else spec.joints[free].name or lacks.joint_names[free])
    has_pgs = model.opt.solver == mujoco.mjtSolver.mjSOL_PGS
    if has_pgs:
        spec.option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    model = _compile(spec)
    joints = _driven_joints(model, free)
    if not joints:
        raise UserError(f"{flag}: has no hinge or slide joint, so that there is nothing to drive")
    touches = can_touch(model, _put_on_device(flag, model))
    key = _find_key(model)
    start = _start(model, key)
    decimation = max(1, round(1.0 / (CONTROL_HZ * model.opt.timestep)))
    rows, contacts = _sample_sizes(model, start, decimation)
    return Robot(
        base=None if free is None else _base(model, start, free),
        joints=tuple(model.joint(i).name for i in joints),
        blocks=_blocks(model) if model.nu else {"joints": POSITIONS},
        motors={} if model.nu else _motors(model, start, joints, free),
        lacks=lacks,
        keyframe=None if key is None else model.key(key).name,
        decimation=decimation,
        control_hz=1.0 / (decimation * model.opt.timestep),
        has_pgs=bool(has_pgs),
        has_rk4=model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4,
        njmax=size_for(MARGIN * rows, touches or can_constrain(model)),
        nconmax=size_for(MARGIN * contacts, touches),
    )


def supply(spec: mujoco.MjSpec, lacks: Lacks, free_joint: str | None) -> None:
    """Put into an MJCF what it lacks, as the ``model.py`` that is written for it does.

    Args:
        spec: The MJCF, changed in place.
        lacks: What is missing.
        free_joint: The free joint of a robot that floats.
    """
    import mujoco

    for i, name in lacks.joint_names.items():
        spec.joints[i].name = name
    for i, name in lacks.actuator_names.items():
        spec.actuators[i].name = name
    if lacks.keyframe_name is not None:
        spec.keys[0].name = lacks.keyframe_name
    if lacks.ground:
        spec.worldbody.add_geom(
            name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.1], contype=1, conaffinity=1
        )
    if lacks.camera and free_joint is not None:
        spec.joint(free_joint).parent.add_camera(name="track")


def load(flag: str, mjcf: Path) -> tuple[mujoco.MjSpec, mujoco.MjModel]:
    """Load an MJCF and compile it.

    Args:
        flag: What names it, for messages.
        mjcf: The file.

    Raises:
        UserError: If MuJoCo refuses it.
    """
    import mujoco

    try:
        spec = mujoco.MjSpec.from_file(str(mjcf))
        return spec, _compile(spec)
    except ValueError as error:
        raise UserError(f"{flag}: {' '.join(str(error).split())}") from error


def _compile(spec: mujoco.MjSpec) -> mujoco.MjModel:
    with warnings.catch_warnings(action="ignore"):  # about attributes that MuJoCo is going to drop
        return spec.compile()


def _put_on_device(flag: str, model: mujoco.MjModel) -> mjw.Model:
    """The model in MuJoCo Warp, which refuses some that MuJoCo takes."""
    import mujoco_warp as mjw

    from mjlab_dist.sim.start import start_warp  # noqa: PLC0415 (with it come torch and Warp)

    start_warp("cpu")
    try:
        return mjw.put_model(model)
    except (NotImplementedError, ValueError) as error:
        raise UserError(f"{flag}: MuJoCo Warp: {' '.join(str(error).split())}") from error


def _tree(model: mujoco.MjModel, joint: int) -> int:
    """The body that a joint's tree starts from."""
    return int(model.body_rootid[model.jnt_bodyid[joint]])


def _simple_joints(model: mujoco.MjModel) -> list[int]:
    """Hinge and slide joints."""
    import mujoco

    return np.flatnonzero(np.isin(model.jnt_type, (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE))).tolist()


def _actuated_joint(model: mujoco.MjModel, actuator: int) -> int | None:
    """The hinge or slide joint that an actuator drives; None where it drives something else."""
    import mujoco

    if not np.isin(model.actuator_trntype[actuator], (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)):
        return None
    joint = int(model.actuator_trnid[actuator, 0])
    return joint if joint in _simple_joints(model) else None


def _driven_joints(model: mujoco.MjModel, free: int | None) -> list[int]:
    """Joints with an actuator; where there is no such joint, all hinge and slide joints of the robot."""
    driven = {joint for i in range(model.nu) if (joint := _actuated_joint(model, i)) is not None}
    if not driven:
        driven = {i for i in _simple_joints(model) if free is None or _tree(model, i) == _tree(model, free)}
    return sorted(driven)


def _find_free_joint(model: mujoco.MjModel) -> int | None:
    """The free joint with most driven joints in its tree; one with none, such as a cube's, does not make a robot float."""
    import mujoco

    trees = Counter(_tree(model, i) for i in _driven_joints(model, None))
    free = np.flatnonzero(model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)).tolist()
    return max((i for i in free if trees[_tree(model, i)]), key=lambda i: trees[_tree(model, i)], default=None)


def _find_key(model: mujoco.MjModel) -> int | None:
    names = [model.key(i).name for i in range(model.nkey)]
    known = [names.index(name) for name in HOME_NAMES if name in names]
    return known[0] if known else 0 if names else None


def _find_lacks(spec: mujoco.MjSpec, model: mujoco.MjModel, free: int | None) -> Lacks:
    key = _find_key(model)
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    is_ground = (model.body_weldid[model.geom_bodyid] == 0) & collides
    return Lacks(
        joint_names=_new_names(
            [joint.name for joint in spec.joints],
            ["root" if i == free else joint.parent.name or "joint" for i, joint in enumerate(spec.joints)],
        ),
        actuator_names=_new_names(
            [actuator.name for actuator in spec.actuators],
            [actuator.target or "actuator" for actuator in spec.actuators],
        ),
        keyframe_name="home" if key is not None and not model.key(key).name else None,
        ground=free is not None and not is_ground.any(),
        camera=free is not None and not model.ncam,
    )


def _new_names(names: Sequence[str], wishes: Sequence[str]) -> dict[int, str]:
    """Names for what has none, by its place: as wished, but no name twice."""
    taken = set(names)
    found: dict[int, str] = {}
    for i, (name, wish) in enumerate(zip(names, wishes, strict=True)):
        if not name:
            endings = ("", *(f"_{n}" for n in range(2, len(names) + 2)))
            found[i] = next(f"{wish}{ending}" for ending in endings if f"{wish}{ending}" not in taken)
            taken.add(found[i])
    return found


def _start(model: mujoco.MjModel, key: int | None) -> mujoco.MjData:
    """The start state, with joints inside their ranges, as an episode starts."""
    import mujoco

    data = mujoco.MjData(model)
    if key is not None:
        mujoco.mj_resetDataKeyframe(model, data, key)
    for i in _simple_joints(model):
        if model.jnt_limited[i]:
            data.qpos[model.jnt_qposadr[i]] = np.clip(data.qpos[model.jnt_qposadr[i]], *model.jnt_range[i])
    mujoco.mj_forward(model, data)
    return data


def _base(model: mujoco.MjModel, start: mujoco.MjData, free: int) -> Base:
    body = int(model.jnt_bodyid[free])
    ground_m = _ground_height(model, start)
    depth_m = max((-c.dist for c in start.contact if 0 in model.body_weldid[model.geom_bodyid[c.geom]]), default=0.0)
    rise_m = depth_m if depth_m > TOLERATED_DEPTH_M else 0.0
    height_m = float(start.xpos[body, 2]) + rise_m - ground_m
    belly_m = min(_clearance(model, start, body), height_m)
    return Base(
        joint=model.joint(free).name,
        is_upright=bool(start.xmat[body, 8] > UPRIGHT),
        rise_m=rise_m,
        least_height_m=ground_m + belly_m + FALLEN_SHARE * (height_m - belly_m),
        speed_m_s=math.sqrt(FROUDE * GRAVITY_M_S2 * max(height_m, 0.1)),
    )


def _ground_height(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Height of the highest plane, or 0."""
    import mujoco

    planes = model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)
    return float(data.geom_xpos[planes, 2].max(initial=-np.inf)) if planes.any() else 0.0


def _clearance(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> float:
    """How high a body's frame is over the lowest point of what is fixed to it, in m."""
    fixed = (model.body_weldid[model.geom_bodyid] == model.body_weldid[body]) & (
        model.geom_contype | model.geom_conaffinity != 0
    )
    up = data.geom_xmat[fixed, 6:]
    centre, half = model.geom_aabb[fixed, :3], model.geom_aabb[fixed, 3:]
    lowest_m = data.geom_xpos[fixed, 2] + (up * centre).sum(axis=1) - (np.abs(up) * half).sum(axis=1)
    return float(data.xpos[body, 2] - lowest_m.min()) if fixed.any() else 0.0


def _blocks(model: mujoco.MjModel) -> dict[str, Block]:
    """Actuators in blocks of those that are alike."""
    alike: dict[Block, list[str]] = {}
    for i in range(model.nu):
        alike.setdefault(_block(model, i), []).append(model.actuator(i).name)
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
    """How one actuator is driven, without its name."""
    import mujoco

    gain, bias = model.actuator_gainprm[actuator], model.actuator_biasprm[actuator]
    joint = _actuated_joint(model, actuator)
    has_range = bool(model.actuator_ctrllimited[actuator])
    low, high = map(float, model.actuator_ctrlrange[actuator])
    is_affine = (
        model.actuator_gaintype[actuator] == mujoco.mjtGain.mjGAIN_FIXED
        and model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_AFFINE
    )
    if is_affine and bias[1] < 0 and joint is not None:
        is_hinge = model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE
        return dataclasses.replace(
            POSITIONS, actuators=(), scale=POSITIONS.scale if is_hinge else rounded(_reach(model, joint) / 4)
        )
    kind = "velocity" if is_affine and bias[2] < 0 and bias[1] == 0 else "effort"
    if has_range:
        return Block(actuators=(), kind=kind, scale=rounded((high - low) / 2), offset=rounded((high + low) / 2))
    most = float(model.actuator_forcerange[actuator, 1])
    if kind == "effort" and model.actuator_forcelimited[actuator] and gain[0] > 0:
        return Block(actuators=(), kind=kind, scale=rounded(most / float(gain[0])), offset=0.0)
    return Block(actuators=(), kind=kind, scale=1.0, offset=0.0)


def _motors(model: mujoco.MjModel, start: mujoco.MjData, joints: Sequence[int], free: int | None) -> dict[str, Motors]:
    """Position motors for joints that have none: strong enough to hold the robot, in groups of joints that bear about as much."""
    alike: dict[tuple[bool, int], list[int]] = {}
    loads = {joint: _load_of(model, start, joint, free) for joint in joints}
    for joint in joints:
        alike.setdefault((_is_hinge(model, joint), round(math.log(loads[joint], 4))), []).append(joint)
    groups: dict[str, Motors] = {}
    for n, ((is_hinge, _), members) in enumerate(sorted(alike.items(), reverse=True), start=1):
        load = max(loads[joint] for joint in members)
        stiffness = load / (SAG_RAD if is_hinge else SAG_M)
        groups["motors" if len(alike) == 1 else f"motors_{n}"] = Motors(
            joints=tuple(model.joint(joint).name for joint in members) if len(alike) > 1 else (".*",),
            stiffness=rounded(stiffness),
            damping=rounded(stiffness * DAMPING_S),
            effort_limit=rounded(2.0 * load),
        )
    return groups


def _load_of(model: mujoco.MjModel, start: mujoco.MjData, joint: int, free: int | None) -> float:
    """About the torque in N m (slide: force in N) that a joint bears: a floating robot's legs half its weight, others what hangs on them."""
    body = int(model.jnt_bodyid[joint])
    least = 1e-3
    if free is not None:
        root = _tree(model, free)
        weight_n = GRAVITY_M_S2 * float(model.body_subtreemass[root])
        height_m = max(float(start.xpos[root, 2]) - _ground_height(model, start), 0.1)
        return max(weight_n * (height_m if _is_hinge(model, joint) else 1.0) / 2, least)
    weight_n = GRAVITY_M_S2 * float(model.body_subtreemass[body])
    if not _is_hinge(model, joint):
        return max(weight_n, least)
    below = [b for b in range(body, model.nbody) if _is_below(model, b, body)]
    lever_m = max(float(np.linalg.norm(start.xipos[b] - start.xanchor[joint])) for b in below)
    return max(weight_n * lever_m, least)


def _is_below(model: mujoco.MjModel, body: int, ancestor: int) -> bool:
    while body > ancestor:  # parents come first
        body = int(model.body_parentid[body])
    return body == ancestor


def _is_hinge(model: mujoco.MjModel, joint: int) -> bool:
    import mujoco

    return bool(model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE)


def _sample_sizes(model: mujoco.MjModel, start: mujoco.MjData, decimation: int) -> tuple[int, int]:
    """Most constraint rows and contacts in episodes of random actions, by MuJoCo's C code.

    MuJoCo Warp's list of contacts must also hold pairs that its broad phase lets pass: of planes all whose bounding sphere reaches them.
    """
    import mujoco

    rng = np.random.default_rng(0)
    data = mujoco.MjData(model)
    planes, others = _plane_pairs(model)
    low, high = np.where(model.actuator_ctrllimited, model.actuator_ctrlrange.T, [[-1.0], [1.0]])
    rows = contacts = 0
    for _ in range(NUM_SAMPLED):
        mujoco.mj_resetData(model, data)
        data.qpos[:] = start.qpos
        for step in range(round(SAMPLED_S / model.opt.timestep)):
            if step % decimation == 0:
                data.ctrl[:] = rng.uniform(low, high)
            mujoco.mj_step(model, data)
            rows = max(rows, data.nefc)
            from_plane_m = np.einsum(
                "ij,ij->i", data.geom_xpos[others] - data.geom_xpos[planes], data.geom_xmat[planes][:, 2::3]
            )
            near = int(
                (
                    from_plane_m <= model.geom_rbound[others] + model.geom_margin[others] + model.geom_margin[planes]
                ).sum()
            )
            on_plane = int(np.isin(data.contact.geom, planes).any(axis=1).sum())
            contacts = max(contacts, data.ncon - on_plane + max(near, on_plane))
    return rows, contacts


def _plane_pairs(model: mujoco.MjModel) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Planes, and geoms that can collide with them, pair by pair."""
    import mujoco

    types, bits = model.geom_contype, model.geom_conaffinity
    mask = (types[:, None] & bits) | (bits[:, None] & types)
    bodies = model.body_weldid[model.geom_bodyid]
    is_plane = model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)
    planes, others = np.nonzero((mask != 0) & is_plane[:, None] & ~is_plane & (bodies[:, None] != bodies))
    return planes, others


def _reach(model: mujoco.MjModel, joint: int) -> float:
    """Width of a joint's range, or 1 where it has none, in m or rad."""
    low, high = model.jnt_range[joint]
    return float(high - low) if model.jnt_limited[joint] else 1.0


def rounded(number: float) -> float:
    """A number as one would write it, with two digits that count."""
    return float(f"{number:.2g}")
