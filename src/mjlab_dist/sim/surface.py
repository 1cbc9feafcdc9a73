"""What touches the surface of a height field: spheres, capsules and boxes, each by one thread per env.

The surface is that of MuJoCo's height field: two triangles to each square of points, cut along the diagonal from the corner of least x
and y to that of greatest.
"""

# Warp reads the annotations of kernels at run time, and its own language is not Python's: no checker of types follows it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: PLR0911, PLR0917, UP018

import warp as wp
from mujoco_warp._src.collision_core import contact_params, write_contact
from mujoco_warp._src.math import make_frame
from mujoco_warp._src.types import GeomType, vec5

# Unrolling loops of more than four steps doubles the time of compiling for a GPU and saves none on a CPU (docs/performance.md).
wp.set_module_options({"enable_backward": False, "max_unroll": 4})

_FAR = wp.constant(1.0e6)
"""More than any distance, in m."""

_OTHER_WAY = wp.constant(0.9)
"""Cosine between the normals of two contacts from which on they count as one."""


_MAX_TOUCHES = wp.constant(8)
"""Contacts of one geom with the ground."""

_Numbers = wp.types.vector(length=8, dtype=float)
_Vectors = wp.types.matrix(shape=(8, 3), dtype=float)


@wp.struct
class Ground:
    """A height field, in the frame of its geom: x along rows, y across them."""

    heights: wp.array2d[float]
    """Of the points, in m, (num_rows, num_points_per_row)."""
    ceiling: wp.array2d[float]
    """Greatest height within ``window`` points of each point."""
    window: int
    """Points."""
    half: wp.vec2
    """Half the extent, in m."""
    cell: wp.vec2
    """Distance of the points, in m."""
    thickness: float
    """What is further below the surface is not in the ground, in m."""


@wp.struct
class Touch:
    """Where a sphere is nearest to the surface."""

    dist: float
    """Distance of the two in m, negative where they overlap; ``_FAR`` where nothing is near."""
    normal: wp.vec3
    """From the ground to the sphere."""
    point: wp.vec3
    """On the surface."""


@wp.func
def _vertex(ground: Ground, row: int, col: int) -> wp.vec3:
    return wp.vec3(
        float(col) * ground.cell[0] - ground.half[0],
        float(row) * ground.cell[1] - ground.half[1],
        ground.heights[row, col],
    )


@wp.func
def _cell_of(ground: Ground, x: float, y: float) -> wp.vec2i:
    """Row and column of the square that a point lies in, or that is nearest to it."""
    row = int(wp.floor((y + ground.half[1]) / ground.cell[1]))
    col = int(wp.floor((x + ground.half[0]) / ground.cell[0]))
    return wp.vec2i(
        wp.clamp(row, 0, ground.heights.shape[0] - 2),
        wp.clamp(col, 0, ground.heights.shape[1] - 2),
    )


@wp.func
def _depth(ground: Ground, point: wp.vec3) -> float:
    """How far a point lies below the surface, in m; negative above it."""
    cell = _cell_of(ground, point[0], point[1])
    near = _vertex(ground, cell[0], cell[1])
    x = (point[0] - near[0]) / ground.cell[0]
    y = (point[1] - near[1]) / ground.cell[1]
    other = wp.where(x > y, ground.heights[cell[0], cell[1] + 1], ground.heights[cell[0] + 1, cell[1]])
    far = ground.heights[cell[0] + 1, cell[1] + 1]
    more = wp.max(x, y)
    less = wp.min(x, y)
    return (1.0 - more) * near[2] + (more - less) * other + less * far - point[2]


@wp.func
def _closest_on_triangle(p: wp.vec3, a: wp.vec3, b: wp.vec3, c: wp.vec3) -> wp.vec3:
    """The point of a triangle nearest to another, by the region of its plane that this one lies over."""
    ab = b - a
    ac = c - a
    ap = p - a
    d1 = wp.dot(ab, ap)
    d2 = wp.dot(ac, ap)
    if d1 <= 0.0 and d2 <= 0.0:
        return a
    bp = p - b
    d3 = wp.dot(ab, bp)
    d4 = wp.dot(ac, bp)
    if d3 >= 0.0 and d4 <= d3:
        return b
    over_ab = d1 * d4 - d3 * d2
    if over_ab <= 0.0 and d1 >= 0.0 and d3 <= 0.0:
        return a + ab * (d1 / (d1 - d3))
    cp = p - c
    d5 = wp.dot(ab, cp)
    d6 = wp.dot(ac, cp)
    if d6 >= 0.0 and d5 <= d6:
        return c
    over_ac = d5 * d2 - d1 * d6
    if over_ac <= 0.0 and d2 >= 0.0 and d6 <= 0.0:
        return a + ac * (d2 / (d2 - d6))
    over_bc = d3 * d6 - d5 * d4
    if over_bc <= 0.0 and d4 >= d3 and d5 >= d6:
        return b + (c - b) * ((d4 - d3) / ((d4 - d3) + (d5 - d6)))
    return a + (ab * over_ac + ac * over_ab) / (over_ab + over_ac + over_bc)


@wp.func
def _touch(ground: Ground, center: wp.vec3, radius: float, margin: float, first: Touch, second: Touch) -> Touch:
    """Where a sphere is nearest to the surface, if within the margin, apart from where it touches already.

    Args:
        ground: The surface.
        center: In the ground's frame.
        radius: In m.
        margin: In m.
        first: A contact that there is already; ``dist`` is ``_FAR`` where there is none.
        second: Another.
    """
    touch = Touch()
    touch.dist = _FAR
    depth = _depth(ground, center)
    inside = depth > 0.0
    if depth > ground.thickness or (inside and first.dist < _FAR):
        return touch
    reach = wp.max(radius + margin, depth)
    nearest = reach
    low = _cell_of(ground, center[0] - reach, center[1] - reach)
    high = _cell_of(ground, center[0] + reach, center[1] + reach)
    for row in range(low[0], high[0] + 1):
        for col in range(low[1], high[1] + 1):
            a = _vertex(ground, row, col)
            c = _vertex(ground, row + 1, col + 1)
            for half in range(2):
                b = _vertex(ground, row + half, col + 1 - half)
                point = _closest_on_triangle(center, a, b, c)
                distance = wp.length(center - point)
                if distance > nearest:
                    continue
                # Upwards, whichever way round the corners are.
                upwards = wp.normalize(wp.cross(b - a, c - a) * (1.0 - 2.0 * float(half)))
                normal = upwards
                if distance > 1.0e-6:
                    normal = (center - point) / wp.where(inside, -distance, distance)
                # A further contact is with a face or an edge of its own, not with the rim of one that goes on to the first.
                faces = first.dist >= _FAR or wp.dot(normal, upwards) > 0.7
                if faces and _is_another(point, normal, first, radius) and _is_another(point, normal, second, radius):
                    nearest = distance
                    touch.dist = wp.where(inside, -distance, distance) - radius
                    touch.normal = normal
                    touch.point = point
    return touch


@wp.func
def _is_another(point: wp.vec3, normal: wp.vec3, known: Touch, radius: float) -> bool:
    """Whether the surface turns up from where it is touched already, so that it is touched once more."""
    if known.dist >= _FAR:
        return True
    rises = wp.dot(point - known.point, known.normal) > 0.05 * radius
    return rises and wp.dot(normal, known.normal) < _OTHER_WAY


@wp.func
def _closest_on_segments(a: wp.vec3, b: wp.vec3, c: wp.vec3, d: wp.vec3) -> wp.vec2:
    """Where on two segments, ab and cd, they are nearest to each other, from 0 to 1 each; ab has a length."""
    u = b - a
    v = d - c
    w = a - c
    uu = wp.dot(u, u)
    vv = wp.dot(v, v)
    uv = wp.dot(u, v)
    uw = wp.dot(u, w)
    vw = wp.dot(v, w)
    across = uu * vv - uv * uv
    s = float(0.5)  # parallel: anywhere
    if across > 1.0e-6 * uu * vv:
        s = wp.clamp((uv * vw - vv * uw) / across, 0.0, 1.0)
    t = wp.clamp((uv * s + vw) / vv, 0.0, 1.0)
    return wp.vec2(wp.clamp((uv * t - uw) / uu, 0.0, 1.0), t)


@wp.func
def _touch_between(ground: Ground, start: wp.vec3, end: wp.vec3, radius: float, margin: float) -> Touch:
    """Where an edge of the surface reaches into the middle part of a capsule, deeper than it does at the ends."""
    none = Touch()
    none.dist = _FAR
    reach = radius + margin
    low = _cell_of(ground, wp.min(start[0], end[0]) - reach, wp.min(start[1], end[1]) - reach)
    high = _cell_of(ground, wp.max(start[0], end[0]) + reach, wp.max(start[1], end[1]) + reach)
    bottom = wp.min(start[2], end[2]) - reach
    best = -reach
    place = float(-1.0)
    for row in range(low[0], high[0] + 1):
        for col in range(low[1], high[1] + 1):
            near = _vertex(ground, row, col)
            for edge in range(3):
                other = _vertex(ground, row + wp.min(edge, 1), col + wp.where(edge == 1, 0, 1))
                if near[2] < bottom and other[2] < bottom:
                    continue
                at = _closest_on_segments(start, end, near, other)
                center = start + (end - start) * at[0]
                depth = _depth(ground, center)
                if depth <= 0.0:
                    depth = -wp.length(center - near - (other - near) * at[1])
                if depth > best and at[0] > 0.05 and at[0] < 0.95:
                    best = depth
                    place = at[0]
    if place < 0.0:
        return none
    touch = _touch(ground, start + (end - start) * place, radius, margin, none, none)
    # Over a plane the ends tell all: a capsule that lies flat touches with these.
    depth = (1.0 - place) * _depth(ground, start) + place * _depth(ground, end)
    if touch.dist < -depth * touch.normal[2] - radius - 1.0e-3:
        return touch
    return none


@wp.func
def _touch_inside_box(ground: Ground, center: wp.vec3, rotation: wp.mat33, size: wp.vec3, known: Touch) -> Touch:
    """The point of the surface that is deepest in a box; next to a known one, that which is furthest from it."""
    touch = Touch()
    touch.dist = _FAR
    best = float(-_FAR)
    extent = wp.vec3()
    for i in range(3):
        extent[i] = (
            wp.abs(rotation[i, 0]) * size[0] + wp.abs(rotation[i, 1]) * size[1] + wp.abs(rotation[i, 2]) * size[2]
        )
    low = _cell_of(ground, center[0] - extent[0], center[1] - extent[1])
    high = _cell_of(ground, center[0] + extent[0], center[1] + extent[1])
    for row in range(low[0], high[0] + 2):
        for col in range(low[1], high[1] + 2):
            point = _vertex(ground, row, col)
            if point[2] < center[2] - extent[2]:
                continue
            local = wp.transpose(rotation) @ (point - center)
            # The way out is the nearest face, of those that do not press the box into the ground.
            inside = bool(True)
            depth = float(_FAR)
            outward = wp.vec3()
            for i in range(3):
                inside = inside and wp.abs(local[i]) < size[i]
                for side in range(2):
                    sign = 2.0 * float(side) - 1.0
                    to_face = size[i] - sign * local[i]
                    if to_face < depth and sign * rotation[2, i] < 1.0e-3:
                        depth = to_face
                        outward = sign * wp.vec3(rotation[0, i], rotation[1, i], rotation[2, i])
            if not inside:
                continue
            worth = wp.where(known.dist < _FAR, wp.length(point - known.point), depth)
            if worth > wp.max(best, 1.0e-3 * float(known.dist < _FAR)):
                best = worth
                touch.dist = -depth
                touch.normal = -outward
                touch.point = point
    return touch


@wp.struct
class Touches:
    """Contacts of one geom, the first ``count`` of what is held."""

    count: int
    dist: _Numbers
    normal: _Vectors
    point: _Vectors


@wp.func
def _with(touches: Touches, touch: Touch) -> Touches:
    if touch.dist < _FAR and touches.count < _MAX_TOUCHES:
        touches.dist[touches.count] = touch.dist
        touches.normal[touches.count] = touch.normal
        touches.point[touches.count] = touch.point
        touches.count += 1
    return touches


@wp.func
def _with_sphere(touches: Touches, ground: Ground, center: wp.vec3, radius: float, margin: float) -> Touches:
    """Add up to three contacts: a foot in the corner of a stairwell touches the step and two walls."""
    none = Touch()
    none.dist = _FAR
    first = _touch(ground, center, radius, margin, none, none)
    if first.dist < _FAR:
        second = _touch(ground, center, radius, margin, first, none)
        touches = _with(_with(touches, first), second)
        if second.dist < _FAR:
            touches = _with(touches, _touch(ground, center, radius, margin, first, second))
    return touches


@wp.func
def _corner(size: wp.vec3, corner: int) -> wp.vec3:
    """One of a box's corners, whose number's bits say on which side along which axis it lies."""
    return wp.vec3(
        wp.where(corner & 1, size[0], -size[0]),
        wp.where(corner & 2, size[1], -size[1]),
        wp.where(corner & 4, size[2], -size[2]),
    )


@wp.func
def _touch_edges(ground: Ground, center: wp.vec3, rotation: wp.mat33, size: wp.vec3) -> Touch:
    """Where an edge of a box is deepest in the ground, between corners that are not."""
    touch = Touch()
    touch.dist = _FAR
    for corner in range(8):
        for axis in range(3):
            other = corner | (1 << axis)
            if other != corner:
                start = center + rotation @ _corner(size, corner)
                end = center + rotation @ _corner(size, other)
                between = _touch_between(ground, start, end, 0.0, 0.0)
                if between.dist < touch.dist:
                    touch = between
    return touch


@wp.func
def _with_box(
    touches: Touches, ground: Ground, center: wp.vec3, rotation: wp.mat33, size: wp.vec3, margin: float
) -> Touches:
    """Add the corners that are in the ground; where they are few, an edge, and points of the ground that are in the box."""
    none = Touch()
    none.dist = _FAR
    for corner in range(8):
        touches = _with(touches, _touch(ground, center + rotation @ _corner(size, corner), 0.0, margin, none, none))
    if touches.count < 3:
        touches = _with(touches, _touch_edges(ground, center, rotation, size))
        deepest = _touch_inside_box(ground, center, rotation, size, none)
        if deepest.dist < _FAR:
            touches = _with(_with(touches, deepest), _touch_inside_box(ground, center, rotation, size, deepest))
    return touches


@wp.kernel(grid_stride=False)
def collide(
    ground: Ground,
    pairs: wp.array[wp.vec2i],
    pair_ids: wp.array[wp.vec2i],
    geom_type: wp.array[int],
    geom_condim: wp.array[int],
    geom_priority: wp.array[int],
    geom_solmix: wp.array2d[float],
    geom_solref: wp.array2d[wp.vec2],
    geom_solimp: wp.array2d[vec5],
    geom_size: wp.array2d[wp.vec3],
    geom_rbound: wp.array2d[float],
    geom_friction: wp.array2d[wp.vec3],
    geom_margin: wp.array2d[float],
    geom_gap: wp.array2d[float],
    geom_adhesion: wp.array2d[float],
    pair_dim: wp.array[int],
    pair_solref: wp.array2d[wp.vec2],
    pair_solreffriction: wp.array2d[wp.vec2],
    pair_solimp: wp.array2d[vec5],
    pair_margin: wp.array2d[float],
    pair_gap: wp.array2d[float],
    pair_adhesion: wp.array2d[float],
    pair_friction: wp.array2d[vec5],
    geom_xpos: wp.array2d[wp.vec3],
    geom_xmat: wp.array2d[wp.mat33],
    max_contacts: int,
    contact_dist: wp.array[float],
    contact_pos: wp.array[wp.vec3],
    contact_frame: wp.array[wp.mat33],
    contact_includemargin: wp.array[float],
    contact_friction: wp.array[vec5],
    contact_solref: wp.array[wp.vec2],
    contact_solreffriction: wp.array[wp.vec2],
    contact_solimp: wp.array[vec5],
    contact_dim: wp.array[int],
    contact_geom: wp.array[wp.vec2i],
    contact_efc_address: wp.array2d[int],
    contact_worldid: wp.array[int],
    contact_type: wp.array[int],
    contact_geomcollisionid: wp.array[int],
    contact_adhesion: wp.array[float],
    num_contacts: wp.array[int],
) -> None:
    """Write the contacts of one geom with the ground to MuJoCo Warp's list of contacts."""
    world, pair = wp.tid()
    geoms = pairs[pair]
    origin = geom_xpos[world, geoms[0]]
    center = geom_xpos[world, geoms[1]] - origin
    bound = geom_rbound[world % geom_rbound.shape[0], geoms[1]]
    if wp.abs(center[0]) > ground.half[0] + bound or wp.abs(center[1]) > ground.half[1] + bound:
        return
    _geoms, margin, gap, condim, friction, solref, solreffriction, solimp, adhesion = contact_params(
        geom_condim,
        geom_priority,
        geom_solmix,
        geom_solref,
        geom_solimp,
        geom_friction,
        geom_margin,
        geom_gap,
        geom_adhesion,
        pair_dim,
        pair_solref,
        pair_solreffriction,
        pair_solimp,
        pair_margin,
        pair_gap,
        pair_adhesion,
        pair_friction,
        pairs,
        pair_ids,
        pair,
        world,
    )

    size = geom_size[world % geom_size.shape[0], geoms[1]]
    rotation = geom_xmat[world, geoms[1]]
    near = _cell_of(ground, center[0], center[1])
    covered = bound + margin < float(ground.window - 1) * wp.min(ground.cell[0], ground.cell[1])
    if covered and center[2] - bound - margin > ground.ceiling[near[0], near[1]]:
        return

    touches = Touches()
    kind = geom_type[geoms[1]]
    if kind == GeomType.SPHERE:
        touches = _with_sphere(touches, ground, center, size[0], margin)
    elif kind == GeomType.CAPSULE:
        along = rotation @ wp.vec3(0.0, 0.0, size[1])
        touches = _with_sphere(touches, ground, center + along, size[0], margin)
        touches = _with_sphere(touches, ground, center - along, size[0], margin)
        touches = _with(touches, _touch_between(ground, center + along, center - along, size[0], margin))
    elif kind == GeomType.BOX:
        touches = _with_box(touches, ground, center, rotation, size, margin)

    for i in range(touches.count):
        normal = wp.vec3(touches.normal[i, 0], touches.normal[i, 1], touches.normal[i, 2])
        point = wp.vec3(touches.point[i, 0], touches.point[i, 1], touches.point[i, 2])
        write_contact(
            max_contacts,
            i,
            touches.dist[i],
            origin + point + 0.5 * touches.dist[i] * normal,
            make_frame(normal),
            margin,
            gap,
            condim,
            friction,
            solref,
            solreffriction,
            solimp,
            adhesion,
            geoms,
            pair_ids[pair],
            world,
            contact_dist,
            contact_pos,
            contact_frame,
            contact_includemargin,
            contact_friction,
            contact_solref,
            contact_solreffriction,
            contact_solimp,
            contact_dim,
            contact_geom,
            contact_efc_address,
            contact_worldid,
            contact_type,
            contact_geomcollisionid,
            contact_adhesion,
            num_contacts,
        )
