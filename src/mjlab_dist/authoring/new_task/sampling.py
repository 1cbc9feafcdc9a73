"""Sizes of the buffers for constraints and contacts, measured with random actions in MuJoCo's C code."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.authoring.new_task.action_blocks import Block, Kind, action_inputs, driving
from mjlab_dist.authoring.new_task.source import rounded

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Length in simulated seconds of the episodes in which constraints and contacts are counted
SAMPLED_S = 2.0

# Length of the episodes in which the physics must stay finite, in simulated seconds
STABLE_S = 5.0

# Maximum speed of any joint in the episodes in which the physics must stay finite, in rad/s or m/s
MAX_SPEED = 300.0

# Numbers of control steps during which a random action is held. 1 is similar to a policy at the start of training,
# and 25 to a trained policy.
HELD_STEPS = (1, 25)

# Maximum number of times that the scale of a block is halved. Torques may be far too large in an MJCF. A position
# motor that needs more halvings has too little damping, so the trial fails. The scales of muscles are kept.
MAX_HALVINGS: dict[Kind, int] = {"effort": 12, "position": 2, "velocity": 2}

# A block is halved at most this many times more than the block with the fewest halvings
MAX_LEAD = 3

# Number of the episodes in which constraints and contacts are counted
NUM_SAMPLED = 24

# Standard deviation of the random actions in these episodes. Policies at the start of training have 1.
SAMPLED_STD = 1.5


def calmed(model: mujoco.MjModel, start: mujoco.MjData, decimation: int, blocks: dict[str, Block]) -> dict[str, Block]:
    """Return action blocks whose scales are halved until the physics is stable with random actions.

    In each round, the scale of the block that drives the fastest joint is halved. If no block drives this joint, or if
    earlier halvings of the block did not help, the scales of the blocks with the fewest halvings are halved. If a block
    must not be halved again, the physics stays unstable, and the trial of the task fails.
    """
    num_halved = dict.fromkeys([name for name, block in blocks.items() if block.kind in MAX_HALVINGS], 0)
    while num_halved:
        episodes = map(functools.partial(_too_fast, model, start, decimation, blocks), HELD_STEPS)
        fastest = next((joint for joint in episodes if joint is not None), None)
        if fastest is None:
            break
        least = min(num_halved.values())
        causes = [name for name in driving(model, blocks, fastest) if name in num_halved]
        # No block drives the joint, or halving the scale of the block did not help
        if not causes or num_halved[causes[0]] >= least + MAX_LEAD:
            causes = [name for name, number in num_halved.items() if number == least]
        if any(num_halved[name] == MAX_HALVINGS[blocks[name].kind] for name in causes):
            break
        for name in causes:
            num_halved[name] += 1
            blocks = blocks | {name: replace(blocks[name], scale=rounded(blocks[name].scale / 2), is_clipped=True)}
    return blocks


def _too_fast(
    model: mujoco.MjModel, start: mujoco.MjData, decimation: int, blocks: Mapping[str, Block], held: int
) -> int | None:
    """Simulate a long episode of random actions in MuJoCo's C code, each held for ``held`` control steps.

    If the physics becomes unstable, return the fastest joint, else None.
    """
    import mujoco

    bad = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
    rng = np.random.default_rng(1)
    inputs = action_inputs(model, start.qpos, blocks)
    data = mujoco.MjData(model)
    data.qpos[:] = start.qpos
    for step in range(round(STABLE_S / model.opt.timestep)):
        if step % (held * decimation) == 0:
            data.ctrl[:] = inputs.of(rng.normal(size=model.nu))
        speeds = np.abs(data.qvel)
        mujoco.mj_step(model, data)
        if np.abs(data.qvel).max(initial=0.0) > MAX_SPEED:
            speeds = np.abs(data.qvel)
        elif not any(data.warning[kind].number for kind in bad):
            continue
        return int(model.dof_jntid[speeds.argmax()])
    return None


def sample_sizes(
    model: mujoco.MjModel, start: mujoco.MjData, decimation: int, blocks: Mapping[str, Block], root: Sequence[int]
) -> tuple[int, int]:
    """Return the maximum number of constraint rows and of contacts in episodes of random actions, in MuJoCo's C code.

    The actions are larger than those of a new policy, and half of the robots with a free joint start in a random
    orientation, because a robot that falls touches the ground with more geoms than one that stands.

    MuJoCo Warp's list of contacts needs space for all pairs of geoms that pass its broad phase. For a plane, these are
    the pairs with all geoms whose bounding sphere reaches the plane. The number of contacts therefore includes these
    pairs, even if the geoms do not touch the plane.
    """
    import mujoco

    rng = np.random.default_rng(0)
    is_free = bool(root) and bool(model.jnt_type[root[0]] == mujoco.mjtJoint.mjJNT_FREE)
    data = mujoco.MjData(model)
    planes, others = _plane_pairs(model)
    inputs = action_inputs(model, start.qpos, blocks)
    # Episodes
    rows = contacts = 0
    for episode in range(NUM_SAMPLED):
        mujoco.mj_resetData(model, data)
        data.qpos[:] = start.qpos
        if is_free and episode % 4 < 2:
            column = model.jnt_qposadr[root[0]]
            data.qpos[column + 3 : column + 7] = rng.normal(size=4)  # MuJoCo normalizes quaternions
            mujoco.mj_forward(model, data)
            data.qpos[column + 2] += max(0.0, -data.contact.dist.min(initial=0.0))
        held = HELD_STEPS[episode % 2]
        for step in range(round(SAMPLED_S / model.opt.timestep)):
            if step % (held * decimation) == 0:
                data.ctrl[:] = inputs.of(SAMPLED_STD * rng.normal(size=model.nu))
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
