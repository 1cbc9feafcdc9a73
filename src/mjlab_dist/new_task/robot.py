"""Examination of the robot in an MJCF, for the settings of a first task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.buffer_sizes import MARGIN, can_constrain, can_touch, size_for
from mjlab_dist.errors import UserError
from mjlab_dist.new_task.actuation import POSITIONS, Block, Motors, find_blocks, make_motors
from mjlab_dist.new_task.base import Base, find_base
from mjlab_dist.new_task.joints import driven_joints, find_free_joint, simple_joints
from mjlab_dist.new_task.lacks import Lacks, find_lacks, supply
from mjlab_dist.new_task.loading import compile_spec, load, put_on_device

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

CONTROL_HZ = 50.0
"""Target for the control steps per second; the timestep of the MJCF sets the next possible rate."""

HOME_NAMES = ("home", "stand", "standing", "default")
"""Names of keyframes to start from, in order of preference; without any of these, the first keyframe is used."""

SAMPLED_S = 2.0
"""Length in simulated seconds of the episodes in which constraints and contacts are counted."""

NUM_SAMPLED = 20
"""Number of these episodes."""


@dataclass(frozen=True, kw_only=True)
class Robot:
    """The properties of an MJCF that determine the config of its task."""

    base: Base | None
    """The floating base; None if the robot is fixed to the world."""
    joints: tuple[str, ...]
    """Names of the driven hinge and slide joints."""
    blocks: dict[str, Block]
    """Action blocks by name."""
    motors: dict[str, Motors]
    """Motors to add, by name of the group of joints; empty if the MJCF has actuators."""
    lacks: Lacks
    """Parts that the MJCF lacks."""
    keyframe: str | None
    """Keyframe that episodes start from."""
    decimation: int
    """Substeps per control step."""
    control_hz: float
    """Control steps per second."""
    has_pgs: bool
    """Whether the MJCF uses the solver PGS, which MuJoCo Warp does not support."""
    has_rk4: bool
    """Whether the MJCF uses the integrator RK4, which takes four times as long as the others."""
    njmax: int
    """Constraint rows to allocate per env."""
    nconmax: int
    """Contacts to allocate per env."""


def examine(mjcf: Path, flag: str | None = None) -> Robot:
    """Load an MJCF and examine the robot in it.

    Args:
        mjcf: The file.
        flag: The flag that names it, for messages; ``--mjcf`` and the file by default.

    Raises:
        UserError: If MuJoCo or MuJoCo Warp does not accept it, or it has no hinge or slide joint.
    """
    import mujoco

    # The MJCF as it is
    flag = flag or f"--mjcf {mjcf}"
    spec, model = load(flag, mjcf)
    free = find_free_joint(model)
    lacks = find_lacks(spec, model, _find_key(model), free)
    # The MJCF with the missing parts, and with a solver that MuJoCo Warp supports
    supply(spec, lacks, None if free is None else spec.joints[free].name or lacks.joint_names[free])
    has_pgs = model.opt.solver == mujoco.mjtSolver.mjSOL_PGS
    if has_pgs:
        spec.option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    model = compile_spec(spec)
    joints = driven_joints(model, free)
    if not joints:
        raise UserError(f"{flag}: has no hinge or slide joint to drive; choose another MJCF")

    # Sizes of the buffers
    touches = can_touch(model, put_on_device(flag, model))
    key = _find_key(model)
    start = _start_state(model, key)
    decimation = max(1, round(1.0 / (CONTROL_HZ * model.opt.timestep)))
    rows, contacts = _sample_sizes(model, start, decimation)
    return Robot(
        base=None if free is None else find_base(model, start, free),
        joints=tuple(model.joint(i).name for i in joints),
        blocks=find_blocks(model) if model.nu else {"joints": POSITIONS},
        motors={} if model.nu else make_motors(model, start, joints, free),
        lacks=lacks,
        keyframe=None if key is None else model.key(key).name,
        decimation=decimation,
        control_hz=1.0 / (decimation * model.opt.timestep),
        has_pgs=bool(has_pgs),
        has_rk4=model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4,
        njmax=size_for(MARGIN * rows, touches or can_constrain(model)),
        nconmax=size_for(MARGIN * contacts, touches),
    )


def _find_key(model: mujoco.MjModel) -> int | None:
    names = [model.key(i).name for i in range(model.nkey)]
    known = [names.index(name) for name in HOME_NAMES if name in names]
    return known[0] if known else 0 if names else None


def _start_state(model: mujoco.MjModel, key: int | None) -> mujoco.MjData:
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


def _sample_sizes(model: mujoco.MjModel, start: mujoco.MjData, decimation: int) -> tuple[int, int]:
    """Return the maximum number of constraint rows and of contacts in episodes of random actions, in MuJoCo's C code.

    MuJoCo Warp's list of contacts needs space for all pairs that pass its broad phase. With a plane these are all geoms
    whose bounding sphere reaches it.
    """
    import mujoco

    # Range of random actions: that of the actuators, or -1 to 1 without limits
    rng = np.random.default_rng(0)
    data = mujoco.MjData(model)
    planes, others = _plane_pairs(model)
    low, high = np.where(model.actuator_ctrllimited, model.actuator_ctrlrange.T, [[-1.0], [1.0]])
    # Episodes
    rows = contacts = 0
    for _ in range(NUM_SAMPLED):
        mujoco.mj_resetData(model, data)
        data.qpos[:] = start.qpos
        for step in range(round(SAMPLED_S / model.opt.timestep)):
            if step % decimation == 0:
                data.ctrl[:] = rng.uniform(low, high)
            mujoco.mj_step(model, data)
            rows = max(rows, data.nefc)
            # Pairs that pass the broad phase for planes
            offset_m, normal = data.geom_xpos[others] - data.geom_xpos[planes], data.geom_xmat[planes][:, 2::3]
            from_plane_m = np.einsum("ij,ij->i", offset_m, normal)
            reach_m = model.geom_rbound[others] + model.geom_margin[others] + model.geom_margin[planes]
            near = int((from_plane_m <= reach_m).sum())
            on_plane = int(np.isin(data.contact.geom, planes).any(axis=1).sum())
            contacts = max(contacts, data.ncon - on_plane + max(near, on_plane))
    return rows, contacts


def _plane_pairs(model: mujoco.MjModel) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return all pairs of a plane and a geom that can collide: ids of the planes, and of the geoms, (num_pairs,)."""
    import mujoco

    types, bits = model.geom_contype, model.geom_conaffinity
    mask = (types[:, None] & bits) | (bits[:, None] & types)
    bodies = model.body_weldid[model.geom_bodyid]
    is_plane = model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)
    planes, others = np.nonzero((mask != 0) & is_plane[:, None] & ~is_plane & (bodies[:, None] != bodies))
    return planes, others
