"""Warp kernels of the env's own bookkeeping: one thread per env, or per env and body."""

# Warp reads the annotations of kernels at run time, and its own language is not Python's: no checker of types follows it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN201, D417, PLR0917

import warp as wp

wp.set_module_options({"enable_backward": False, "max_unroll": 4})


@wp.kernel
def measure_base(
    pose: wp.array2d[float],
    velocity: wp.array2d[float],
    gravity: wp.array2d[float],
    linear_velocity: wp.array2d[float],
    level_velocity: wp.array2d[float],
    heading: wp.array[float],
):
    """Compute what terms ask of a free-floating body; the outputs are those of ``Base``.

    Args:
        pose: Position and quaternion (w, x, y, z), (num_envs, 7).
        velocity: Linear in the world's frame, angular in the body's, (num_envs, 6).
    """
    env = wp.tid()
    w, x, y, z = pose[env, 3], pose[env, 4], pose[env, 5], pose[env, 6]
    # Minus the third row of the rotation matrix
    gravity[env, 0] = -2.0 * (x * z - w * y)
    gravity[env, 1] = -2.0 * (y * z + w * x)
    gravity[env, 2] = 2.0 * (x * x + y * y) - 1.0
    moves = wp.vec3(velocity[env, 0], velocity[env, 1], velocity[env, 2])
    axis = wp.vec3(x, y, z)
    twice = 2.0 * wp.cross(axis, moves)
    turned = moves - w * twice + wp.cross(axis, twice)
    yaw = wp.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    heading[env] = yaw
    cos, sin = wp.cos(yaw), wp.sin(yaw)
    level_velocity[env, 0] = cos * moves[0] + sin * moves[1]
    level_velocity[env, 1] = cos * moves[1] - sin * moves[0]
    level_velocity[env, 2] = moves[2]
    for i in range(3):
        linear_velocity[env, i] = turned[i]
