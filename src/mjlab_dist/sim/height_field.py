"""Replacement for MuJoCo Warp's collision of geoms with the surface of height fields.

MuJoCo Warp 4.0 divides a height field into prisms and collides geoms with each prism. At stairs, where one prism is
higher than the next, the contacts are wrong: normals point down into the ground. Far from the middle of the field,
penetration depths are wrong by meters.
See docs/decisions/0012-contacts-with-terrain-are-found-here.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp
from mujoco_warp._src.math import upper_trid_index

from mjlab_dist.sim.ground import Ground
from mjlab_dist.sim.surface import Contacts, Geoms, collide

# Shapes that the kernel of this package handles
_TYPES = (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_BOX)


def take_over(model: mujoco.MjModel, put: mjw.Model) -> None:
    """Use this package's kernel, instead of MuJoCo Warp's, to find collisions with height fields.

    MuJoCo Warp still handles shapes other than spheres, capsules and boxes. It handles all shapes if bodies may sleep,
    or if any height field is rotated or moves.
    """
    # Models that are left to MuJoCo Warp
    fields = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD)
    # If bodies may sleep, MuJoCo Warp runs collision twice per step. The callback below would append contacts twice.
    sleeps = model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP
    if not len(fields) or not all(is_still(model, int(field)) for field in fields) or sleeps:
        return

    # Pairs that the kernel of this package handles, with the height field first
    pairs, ids = put.nxn_geom_pair_filtered.numpy(), put.nxn_pairid_filtered.numpy()
    first, second = pairs.T
    swapped = model.geom_type[first] > model.geom_type[second]
    ordered = np.where(swapped[:, None], pairs[:, ::-1], pairs)
    ours = np.isin(ordered[:, 0], fields) & np.isin(model.geom_type[ordered[:, 1]], _TYPES) & (ids[:, 0] > -2)

    # Remove these pairs from MuJoCo Warp's list.
    put.nxn_geom_pair_filtered = wp.array(pairs[~ours], dtype=wp.vec2i)
    put.nxn_pairid_filtered = wp.array(ids[~ours], dtype=wp.vec2i)
    # MuJoCo Warp builds no kernel for pairs of types with a count of 0.
    counts = list(put.geom_pair_type_count)
    for kind in _TYPES:
        counts[upper_trid_index(len(mjw.GeomType), int(mujoco.mjtGeom.mjGEOM_HFIELD), int(kind))] = 0
    put.geom_pair_type_count = tuple(counts)

    # MuJoCo Warp calls contactfilter after its own collision. This callback appends the contacts.
    launches = [
        _launch(_with_ceiling(model, ground_of(model, int(field))), ordered[of_field], ids[of_field])
        for field in fields
        if (of_field := ours & (ordered[:, 0] == field)).any()
    ]

    def find_contacts(on_device: mjw.Model, data: mjw.Data) -> None:
        for launch in launches:
            launch(on_device, data)

    put.callback.contactfilter = find_contacts


def is_still(model: mujoco.MjModel, geom: int) -> bool:
    """Return whether a geom is a height field that is level and never moves."""
    is_field = model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_HFIELD
    is_level = (model.geom_quat[geom] == [1, 0, 0, 0]).all()
    return bool(is_field and is_level and model.body_weldid[model.geom_bodyid[geom]] == 0)


def ground_of(model: mujoco.MjModel, geom: int) -> Any:
    """Return a height field as a :class:`Ground` on Warp's current device, without its ceiling."""
    # Heights in m
    field = int(model.geom_dataid[geom])
    rows, cols = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
    half_x, half_y, top, thickness = model.hfield_size[field]
    start = int(model.hfield_adr[field])
    heights = (model.hfield_data[start : start + rows * cols] * top).reshape(rows, cols).astype(np.float32)
    ground = Ground()
    ground.heights = wp.array(heights, dtype=float)
    ground.half = wp.vec2(half_x, half_y)
    ground.cell = wp.vec2(2 * half_x / (cols - 1), 2 * half_y / (rows - 1))
    ground.thickness = thickness
    return ground


def _with_ceiling(model: mujoco.MjModel, ground: Any) -> Any:
    # A geom can touch the ground only within its bounding radius. The window covers the largest moving geom.
    moving = model.body_weldid[model.geom_bodyid] != 0
    ground.window = int(np.ceil(model.geom_rbound[moving].max(initial=0.0) / min(ground.cell))) + 2
    # For each point, the maximum height within the window along both axes
    heights, window = ground.heights.numpy(), ground.window
    for axis in (0, 1):
        widths = [(window, window) if axis == i else (0, 0) for i in (0, 1)]
        padded = np.moveaxis(np.pad(heights, widths, mode="edge"), axis, 0)
        shifted = (padded[start : start + heights.shape[axis]] for start in range(2 * window + 1))
        heights = np.moveaxis(functools.reduce(np.maximum, shifted), 0, axis)
    ground.ceiling = wp.array(np.ascontiguousarray(heights), dtype=float)
    return ground


def _launch(ground: Any, pairs: np.ndarray, ids: np.ndarray) -> Callable[[mjw.Model, mjw.Data], None]:
    warp_pairs, warp_ids = wp.array(pairs, dtype=wp.vec2i), wp.array(ids, dtype=wp.vec2i)

    def launch(on_device: mjw.Model, data: mjw.Data) -> None:
        model, contacts = _fields_of(Geoms, on_device), _fields_of(Contacts, data.contact)
        geoms = [model, data.geom_xpos, data.geom_xmat]
        inputs = [ground, warp_pairs, warp_ids, *geoms, data.naconmax, contacts, data.nacon]
        wp.launch(collide, dim=(len(pairs), data.nworld), inputs=inputs)

    return launch


def _fields_of(struct: Any, source: Any) -> Any:
    """Return a Warp struct whose fields are copied from attributes of an object."""
    made = struct()
    for name in struct.vars:
        setattr(made, name, getattr(source, name))
    return made
