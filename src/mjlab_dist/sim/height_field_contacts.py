"""Contacts of spheres, capsules and boxes with the surface of a height field.

MuJoCo uses the same surface: each grid cell is split into two triangles along the diagonal from the corner with the
smallest x and y to the corner with the largest.
"""

from __future__ import annotations

import warp as wp

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: PLR0911, PLR0917, UP018

# A distance in m that stands for no contact
_FAR = wp.constant(1.0e6)

# Two contacts of a sphere can be different contacts only if the cosine of the angle between their normals is below
# this number.
_OTHER_WAY = wp.constant(0.9)

# Maximum number of contacts of one geom with the ground
_MAX_TOUCHES = wp.constant(8)

_Numbers = wp.types.vector(length=8, dtype=float)
_Vectors = wp.types.matrix(shape=(8, 3), dtype=float)


@wp.struct
class Ground:
    """A height field in the frame of its geom; x points along rows, y across them."""

    # Heights of the points, in m, (num_rows, num_points_per_row)
    heights: wp.array2d[float]
    # Maximum height within window points of each point, in m, (num_rows, num_points_per_row)
    ceiling: wp.array2d[float]
    # Radius of the neighborhood that ceiling covers, in points
    window: int
    # Half the extent along x and y, in m
    half: wp.vec2
    # Distance between neighboring points along x and y, in m
    cell: wp.vec2
    # Thickness of the ground below the surface, in m; a sphere whose center is deeper has no contact
    thickness: float


@wp.func
def vertex(ground: Ground, row: int, col: int) -> wp.vec3:
    """Return a point of the height field."""
    return wp.vec3(
        float(col) * ground.cell[0] - ground.half[0],
        float(row) * ground.cell[1] - ground.half[1],
        ground.heights[row, col],
    )


@wp.func
def cell_of(ground: Ground, x: float, y: float) -> wp.vec2i:
    """Return row and column of the grid cell that contains a point, or of the nearest cell if no cell contains it."""
    row = int(wp.floor((y + ground.half[1]) / ground.cell[1]))
    col = int(wp.floor((x + ground.half[0]) / ground.cell[0]))
    return wp.vec2i(
        wp.clamp(row, 0, ground.heights.shape[0] - 2),
        wp.clamp(col, 0, ground.heights.shape[1] - 2),
    )


@wp.func
def depth_of(ground: Ground, point: wp.vec3) -> float:
    """Return the depth of a point below the surface, in m; negative above it."""
    # Position within the cell, from 0 to 1 along each axis
    cell = cell_of(ground, point[0], point[1])
    near = vertex(ground, cell[0], cell[1])
    x = (point[0] - near[0]) / ground.cell[0]
    y = (point[1] - near[1]) / ground.cell[1]
    # Barycentric interpolation in the triangle that the point is in
    other = wp.where(x > y, ground.heights[cell[0], cell[1] + 1], ground.heights[cell[0] + 1, cell[1]])
    far = ground.heights[cell[0] + 1, cell[1] + 1]
    more = wp.max(x, y)
    less = wp.min(x, y)
    return (1.0 - more) * near[2] + (more - less) * other + less * far - point[2]


@wp.func
def closest_on_triangle(p: wp.vec3, a: wp.vec3, b: wp.vec3, c: wp.vec3) -> wp.vec3:
    """Return the point of triangle abc that is nearest to p.

    The algorithm tests which corner, edge or face p projects to (Ericson, Real-Time Collision Detection, 5.1.5).
    """
    ab = b - a
    ac = c - a
    # Corner a, corner b, edge ab
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
    # Corner c, edge ac
    cp = p - c
    d5 = wp.dot(ab, cp)
    d6 = wp.dot(ac, cp)
    if d6 >= 0.0 and d5 <= d6:
        return c
    over_ac = d5 * d2 - d1 * d6
    if over_ac <= 0.0 and d2 >= 0.0 and d6 <= 0.0:
        return a + ac * (d2 / (d2 - d6))
    # Edge bc, face
    over_bc = d3 * d6 - d5 * d4
    if over_bc <= 0.0 and d4 >= d3 and d5 >= d6:
        return b + (c - b) * ((d4 - d3) / ((d4 - d3) + (d5 - d6)))
    return a + (ab * over_ac + ac * over_ab) / (over_ab + over_ac + over_bc)


@wp.func
def closest_on_segments(a: wp.vec3, b: wp.vec3, c: wp.vec3, d: wp.vec3) -> wp.vec2:
    """Return the nearest points of segments ab and cd, as positions from 0 (a, c) to 1 (b, d).

    The segments must be longer than 0.
    """
    u = b - a
    v = d - c
    w = a - c
    uu = wp.dot(u, u)
    vv = wp.dot(v, v)
    uv = wp.dot(u, v)
    uw = wp.dot(u, w)
    vw = wp.dot(v, w)
    across = uu * vv - uv * uv
    s = float(0.5)  # for parallel segments, any initial s is correct
    if across > 1.0e-6 * uu * vv:
        s = wp.clamp((uv * vw - vv * uw) / across, 0.0, 1.0)
    t = wp.clamp((uv * s + vw) / vv, 0.0, 1.0)
    return wp.vec2(wp.clamp((uv * t - uw) / uu, 0.0, 1.0), t)


@wp.struct
class Touch:
    """Contact of a sphere with the surface."""

    # Distance between sphere and surface in m, negative if they overlap; _FAR without a contact
    dist: float
    # Unit vector from the ground to the sphere
    normal: wp.vec3
    # Point on the surface
    point: wp.vec3


@wp.func
def _touch(ground: Ground, center: wp.vec3, radius: float, margin: float, first: Touch, second: Touch) -> Touch:
    """Return the nearest contact of a sphere and the surface, except known ones and those beyond the margin."""
    # A sphere whose center is below the surface has one contact: the nearest point of the surface.
    touch = Touch()
    touch.dist = _FAR
    depth = depth_of(ground, center)
    inside = depth > 0.0
    if depth > ground.thickness or (inside and first.dist < _FAR):
        return touch
    # All triangles of the grid cells within reach
    reach = wp.max(radius + margin, depth)
    nearest = reach
    low = cell_of(ground, center[0] - reach, center[1] - reach)
    high = cell_of(ground, center[0] + reach, center[1] + reach)
    for row in range(low[0], high[0] + 1):
        for col in range(low[1], high[1] + 1):
            a = vertex(ground, row, col)
            c = vertex(ground, row + 1, col + 1)
            for half in range(2):
                b = vertex(ground, row + half, col + 1 - half)
                point = closest_on_triangle(center, a, b, c)
                distance = wp.length(center - point)
                if distance > nearest:
                    continue
                # Upward normal of the triangle; the order of the corners differs between the two halves of a cell
                upwards = wp.normalize(wp.cross(b - a, c - a) * (1.0 - 2.0 * float(half)))
                normal = upwards
                if distance > 1.0e-6:
                    normal = (center - point) / wp.where(inside, -distance, distance)
                # An additional contact must be on another face or edge, not on the rim of the first contact's face.
                faces = first.dist >= _FAR or wp.dot(normal, upwards) > 0.7
                if faces and _is_another(point, normal, first, radius) and _is_another(point, normal, second, radius):
                    nearest = distance
                    touch.dist = wp.where(inside, -distance, distance) - radius
                    touch.normal = normal
                    touch.point = point
    return touch


@wp.func
def _is_another(point: wp.vec3, normal: wp.vec3, known: Touch, radius: float) -> bool:
    """Return whether a point is separate from a known contact.

    It is separate if it is above the tangent plane of the known contact, and the two normals differ clearly.
    """
    if known.dist >= _FAR:
        return True
    rises = wp.dot(point - known.point, known.normal) > 0.05 * radius
    return rises and wp.dot(normal, known.normal) < _OTHER_WAY


@wp.func
def _touch_between(ground: Ground, start: wp.vec3, end: wp.vec3, radius: float, margin: float) -> Touch:
    """Return the contact of a capsule's middle part with an edge of the surface.

    The contact is returned only if it is deeper than a linear interpolation between the depths of the two ends.
    """
    none = Touch()
    none.dist = _FAR
    # The deepest edge, and its position along the capsule
    reach = radius + margin
    low = cell_of(ground, wp.min(start[0], end[0]) - reach, wp.min(start[1], end[1]) - reach)
    high = cell_of(ground, wp.max(start[0], end[0]) + reach, wp.max(start[1], end[1]) + reach)
    bottom = wp.min(start[2], end[2]) - reach
    best = -reach
    place = float(-1.0)
    for row in range(low[0], high[0] + 1):
        for col in range(low[1], high[1] + 1):
            near = vertex(ground, row, col)
            for edge in range(3):
                other = vertex(ground, row + wp.min(edge, 1), col + wp.where(edge == 1, 0, 1))
                if near[2] < bottom and other[2] < bottom:
                    continue
                at = closest_on_segments(start, end, near, other)
                center = start + (end - start) * at[0]
                depth = depth_of(ground, center)
                if depth <= 0.0:
                    depth = -wp.length(center - near - (other - near) * at[1])
                if depth > best and at[0] > 0.05 and at[0] < 0.95:
                    best = depth
                    place = at[0]
    if place < 0.0:
        return none
    touch = _touch(ground, start + (end - start) * place, radius, margin, none, none)
    # On a plane, the depth is linear between the ends, and their contacts are sufficient: keep only a deeper contact.
    depth = (1.0 - place) * depth_of(ground, start) + place * depth_of(ground, end)
    if touch.dist < -depth * touch.normal[2] - radius - 1.0e-3:
        return touch
    return none


@wp.func
def _touch_inside_box(ground: Ground, center: wp.vec3, rotation: wp.mat33, size: wp.vec3, known: Touch) -> Touch:
    """Return a contact at a grid point in a box: the deepest, or the furthest from a known contact if one is given."""
    # Grid points in the bounding box of the box
    touch = Touch()
    touch.dist = _FAR
    best = float(-_FAR)
    extent = wp.vec3()
    for i in range(3):
        extent[i] = (
            wp.abs(rotation[i, 0]) * size[0] + wp.abs(rotation[i, 1]) * size[1] + wp.abs(rotation[i, 2]) * size[2]
        )
    low = cell_of(ground, center[0] - extent[0], center[1] - extent[1])
    high = cell_of(ground, center[0] + extent[0], center[1] + extent[1])
    for row in range(low[0], high[0] + 2):
        for col in range(low[1], high[1] + 2):
            point = vertex(ground, row, col)
            if point[2] < center[2] - extent[2]:
                continue
            local = wp.transpose(rotation) @ (point - center)
            # Use the normal of the nearest face. Faces that would push the box into the ground are excluded.
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
    """Contacts of one geom, in the first ``count`` rows."""

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
def with_sphere(touches: Touches, ground: Ground, center: wp.vec3, radius: float, margin: float) -> Touches:
    """Add up to three contacts of a sphere: in a corner of stairs, for example, a foot touches a step and two walls."""
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
def with_capsule(
    touches: Touches, ground: Ground, center: wp.vec3, along: wp.vec3, radius: float, margin: float
) -> Touches:
    """Add the contacts of a capsule: up to three at each end, and up to one between the ends."""
    touches = with_sphere(touches, ground, center + along, radius, margin)
    touches = with_sphere(touches, ground, center - along, radius, margin)
    return _with(touches, _touch_between(ground, center + along, center - along, radius, margin))


@wp.func
def _corner(size: wp.vec3, corner: int) -> wp.vec3:
    """Return a corner of a box; bit i of the index selects its side along axis i."""
    return wp.vec3(
        wp.where(corner & 1, size[0], -size[0]),
        wp.where(corner & 2, size[1], -size[1]),
        wp.where(corner & 4, size[2], -size[2]),
    )


@wp.func
def _touch_edges(ground: Ground, center: wp.vec3, rotation: wp.mat33, size: wp.vec3) -> Touch:
    """Return the deepest contact that :func:`_touch_between` finds on any edge of a box."""
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
def with_box(
    touches: Touches, ground: Ground, center: wp.vec3, rotation: wp.mat33, size: wp.vec3, margin: float
) -> Touches:
    """Add the contacts of a box: its corners that touch the ground.

    If fewer than three corners touch the ground, also add the deepest contact of an edge, if any, and up to two points
    of the ground that are inside the box.
    """
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
