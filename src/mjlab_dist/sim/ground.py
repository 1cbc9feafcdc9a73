"""The surface of a height field: its triangles, the depth of a point, and nearest points of triangles and segments.

MuJoCo uses the same surface: each grid cell is split into two triangles along the diagonal from the corner with the
smallest x and y to the corner with the largest.
"""

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: PLR0911, UP018

import warp as wp


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
