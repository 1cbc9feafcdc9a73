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
from mujoco_warp._src.collision_core import contact_params, write_contact
from mujoco_warp._src.math import make_frame, upper_trid_index
from mujoco_warp._src.types import GeomType, vec5

from mjlab_dist.sim.height_field_contacts import Ground, Touches, cell_of, with_box, with_capsule, with_sphere

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: PLR0917


# Unrolling more than four iterations doubles the compile time for a GPU and makes steps on a CPU no faster
# (docs/lab.md).
# On a GPU, the kernel uses so many registers that a multiprocessor runs only 256 threads. In small blocks, threads that
# return early make room for others.
wp.set_module_options({"enable_backward": False, "max_unroll": 4, "block_dim": 64})

# Shapes that the kernel of this package handles
_TYPES = (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_BOX)


@wp.struct
class Geoms:
    """Fields of ``mujoco_warp.Model`` that describe geoms and pairs of geoms."""

    geom_type: wp.array[int]
    geom_condim: wp.array[int]
    geom_priority: wp.array[int]
    geom_solmix: wp.array2d[float]
    geom_solref: wp.array2d[wp.vec2]
    geom_solimp: wp.array2d[vec5]
    geom_size: wp.array2d[wp.vec3]
    geom_rbound: wp.array2d[float]
    geom_friction: wp.array2d[wp.vec3]
    geom_margin: wp.array2d[float]
    geom_gap: wp.array2d[float]
    geom_adhesion: wp.array2d[float]
    pair_dim: wp.array[int]
    pair_solref: wp.array2d[wp.vec2]
    pair_solreffriction: wp.array2d[wp.vec2]
    pair_solimp: wp.array2d[vec5]
    pair_margin: wp.array2d[float]
    pair_gap: wp.array2d[float]
    pair_adhesion: wp.array2d[float]
    pair_friction: wp.array2d[vec5]


@wp.struct
class Contacts:
    """Fields of ``mujoco_warp.Contact``."""

    dist: wp.array[float]
    pos: wp.array[wp.vec3]
    frame: wp.array[wp.mat33]
    includemargin: wp.array[float]
    friction: wp.array[vec5]
    solref: wp.array[wp.vec2]
    solreffriction: wp.array[wp.vec2]
    solimp: wp.array[vec5]
    dim: wp.array[int]
    geom: wp.array[wp.vec2i]
    efc_address: wp.array2d[int]
    worldid: wp.array[int]
    type: wp.array[int]
    geomcollisionid: wp.array[int]
    adhesion: wp.array[float]


@wp.kernel(grid_stride=False)
def collide(
    ground: Ground,
    pairs: wp.array[wp.vec2i],
    pair_ids: wp.array[wp.vec2i],
    geoms: Geoms,
    geom_xpos: wp.array2d[wp.vec3],
    geom_xmat: wp.array2d[wp.mat33],
    max_contacts: int,
    contacts: Contacts,
    num_contacts: wp.array[int],
) -> None:
    """Append the contacts of one geom with the ground to MuJoCo Warp's list; one thread per pair and env."""
    pair, world = wp.tid()  # on a GPU, neighboring threads then have the same shape, and take the same branches
    geom = pairs[pair][1]
    origin = geom_xpos[world, pairs[pair][0]]
    center = geom_xpos[world, geom] - origin

    # Skip geoms outside the area of the ground, and geoms that are higher than all ground near them.
    bound = geoms.geom_rbound[world % geoms.geom_rbound.shape[0], geom]
    if wp.abs(center[0]) > ground.half[0] + bound or wp.abs(center[1]) > ground.half[1] + bound:
        return
    ids, margin, gap, condim, friction, solref, solreffriction, solimp, adhesion = contact_params(
        geoms.geom_condim,
        geoms.geom_priority,
        geoms.geom_solmix,
        geoms.geom_solref,
        geoms.geom_solimp,
        geoms.geom_friction,
        geoms.geom_margin,
        geoms.geom_gap,
        geoms.geom_adhesion,
        geoms.pair_dim,
        geoms.pair_solref,
        geoms.pair_solreffriction,
        geoms.pair_solimp,
        geoms.pair_margin,
        geoms.pair_gap,
        geoms.pair_adhesion,
        geoms.pair_friction,
        pairs,
        pair_ids,
        pair,
        world,
    )
    near = cell_of(ground, center[0], center[1])
    covered = bound + margin < float(ground.window - 1) * wp.min(ground.cell[0], ground.cell[1])
    if covered and center[2] - bound - margin > ground.ceiling[near[0], near[1]]:
        return

    # Contacts by shape
    size = geoms.geom_size[world % geoms.geom_size.shape[0], geom]
    rotation = geom_xmat[world, geom]
    touches = Touches()
    kind = geoms.geom_type[geom]
    if kind == GeomType.SPHERE:
        touches = with_sphere(touches, ground, center, size[0], margin)
    elif kind == GeomType.CAPSULE:
        along = rotation @ wp.vec3(0.0, 0.0, size[1])
        touches = with_capsule(touches, ground, center, along, size[0], margin)
    elif kind == GeomType.BOX:
        touches = with_box(touches, ground, center, rotation, size, margin)

    # A contact is placed halfway between the two surfaces, as in MuJoCo.
    for i in range(touches.count):
        dist = touches.dist[i]
        normal = wp.vec3(touches.normal[i, 0], touches.normal[i, 1], touches.normal[i, 2])
        point = wp.vec3(touches.point[i, 0], touches.point[i, 1], touches.point[i, 2])
        pos = origin + point + 0.5 * dist * normal
        write_contact(
            max_contacts,
            i,
            dist,
            pos,
            make_frame(normal),
            margin,
            gap,
            condim,
            friction,
            solref,
            solreffriction,
            solimp,
            adhesion,
            ids,
            pair_ids[pair],
            world,
            contacts.dist,
            contacts.pos,
            contacts.frame,
            contacts.includemargin,
            contacts.friction,
            contacts.solref,
            contacts.solreffriction,
            contacts.solimp,
            contacts.dim,
            contacts.geom,
            contacts.efc_address,
            contacts.worldid,
            contacts.type,
            contacts.geomcollisionid,
            contacts.adhesion,
            num_contacts,
        )


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
