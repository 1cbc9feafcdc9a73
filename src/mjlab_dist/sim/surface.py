"""The kernel that appends contacts with a height field to MuJoCo Warp's list of contacts."""

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: PLR0917

import warp as wp
from mujoco_warp._src.collision_core import contact_params, write_contact
from mujoco_warp._src.math import make_frame
from mujoco_warp._src.types import GeomType, vec5

from mjlab_dist.sim.ground import Ground, cell_of
from mjlab_dist.sim.touches import Touches, with_box, with_capsule, with_sphere

# Unrolling more than four iterations doubles the compile time for a GPU and makes steps on a CPU no faster
# (docs/lab.md).
# On a GPU, the kernel uses so many registers that a multiprocessor runs only 256 threads. In small blocks, threads that
# return early make room for others.
wp.set_module_options({"enable_backward": False, "max_unroll": 4, "block_dim": 64})


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
