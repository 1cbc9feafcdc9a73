"""Sizes of the buffers for constraints and contacts, measured with random actions in MuJoCo's C code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.new_task.actuation import Block, action_inputs
from mjlab_dist.new_task.rounding import rounded

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

SAMPLED_S = 2.0
"""Length in simulated seconds of the episodes in which constraints and contacts are counted."""

STABLE_S = 5.0
"""Length in simulated seconds of the episode in which the physics must stay finite."""

MAX_SPEED = 300.0
"""Maximum speed of any joint in this episode, in rad/s or m/s."""

MAX_HALVINGS = 12
"""Maximum number of times that the torques are halved."""

NUM_SAMPLED = 20
"""Number of these episodes."""


def calmed(model: mujoco.MjModel, start: mujoco.MjData, decimation: int, blocks: dict[str, Block]) -> dict[str, Block]:
    """Return action blocks whose torques and forces are halved until random actions do not make the physics unstable.

    Args:
        model: The MuJoCo model.
        start: The start state.
        decimation: Substeps per control step.
        blocks: The action blocks.
    """
    for _ in range(MAX_HALVINGS):
        if not any(block.kind == "effort" for block in blocks.values()) or _is_stable(model, start, decimation, blocks):
            return blocks
        blocks = {
            name: replace(block, scale=rounded(block.scale / 2)) if block.kind == "effort" else block
            for name, block in blocks.items()
        }
    return blocks


def _is_stable(model: mujoco.MjModel, start: mujoco.MjData, decimation: int, blocks: Mapping[str, Block]) -> bool:
    """Return whether the physics stays calm in one long episode of random actions, in MuJoCo's C code."""
    import mujoco

    bad = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
    rng = np.random.default_rng(1)
    offsets, scales = action_inputs(model, start.qpos, blocks)
    data = mujoco.MjData(model)
    data.qpos[:] = start.qpos
    for step in range(round(STABLE_S / model.opt.timestep)):
        if step % decimation == 0:
            data.ctrl[:] = offsets + scales * rng.normal(size=model.nu)
        mujoco.mj_step(model, data)
        if any(data.warning[kind].number for kind in bad) or np.abs(data.qvel).max(initial=0.0) > MAX_SPEED:
            return False
    return True


def sample_sizes(
    model: mujoco.MjModel, start: mujoco.MjData, decimation: int, blocks: Mapping[str, Block]
) -> tuple[int, int]:
    """Return the maximum number of constraint rows and of contacts in episodes of random actions, in MuJoCo's C code.

    MuJoCo Warp's list of contacts needs space for all pairs that pass its broad phase. With a plane these are all geoms
    whose bounding sphere reaches it.

    Args:
        model: The MuJoCo model.
        start: The start state.
        decimation: Substeps per control step.
        blocks: The action blocks.
    """
    import mujoco

    rng = np.random.default_rng(0)
    data = mujoco.MjData(model)
    planes, others = _plane_pairs(model)
    offsets, scales = action_inputs(model, start.qpos, blocks)
    # Episodes
    rows = contacts = 0
    for _ in range(NUM_SAMPLED):
        mujoco.mj_resetData(model, data)
        data.qpos[:] = start.qpos
        for step in range(round(SAMPLED_S / model.opt.timestep)):
            if step % decimation == 0:
                data.ctrl[:] = offsets + scales * rng.uniform(-1.0, 1.0, model.nu)
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
