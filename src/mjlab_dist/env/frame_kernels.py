"""Warp kernels of poses and velocities: one thread per env and frame."""

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN201, PLR0917

import warp as wp

wp.set_module_options({"enable_backward": False, "max_unroll": 4})


@wp.func
def compose(a: wp.quat, b: wp.quat):
    """Return the product of two quaternions, which are stored as (w, x, y, z)."""
    return wp.quat(
        a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
        a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
        a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
        a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
    )


@wp.func
def rotate_inverse(q: wp.quat, v: wp.vec3):
    """Rotate a vector from the world frame to the frame of a body with quaternion (w, x, y, z)."""
    axis = wp.vec3(q[1], q[2], q[3])
    twice = 2.0 * wp.cross(axis, v)
    return v - q[0] * twice + wp.cross(axis, twice)


@wp.kernel
def measure_frames(
    ids: wp.array[int],
    bodies: wp.array[int],
    positions: wp.array2d[wp.vec3],
    turns: wp.array2d[wp.quat],
    body_quat: wp.array2d[wp.quat],
    body_velocity: wp.array2d[wp.spatial_vector],
    center: wp.array2d[wp.vec3],
    root: wp.array[int],
    pos: wp.array2d[wp.vec3],
    quat: wp.array2d[wp.quat],
    linear_velocity: wp.array2d[wp.vec3],
    angular_velocity: wp.array2d[wp.vec3],
):
    """Compute poses and velocities of bodies, sites or geoms in the world; one thread per env and element.

    Args:
        ids: Id of each element, (k,).
        bodies: Its body, (k,).
        positions: Positions of all elements of this kind, (num_envs, n).
        turns: Orientations of the elements relative to their bodies, (num_envs, n); (1, n) if all envs share them;
            (1, 1) for bodies.
        body_quat: Orientations of all bodies, (num_envs, nbody).
        body_velocity: Angular and linear velocity of each body, at the center of mass of its tree, (num_envs, nbody).
        center: Centers of mass of the trees, by root body, (num_envs, nbody).
        root: Root of the tree of each body, (nbody,).
    """
    env, i = wp.tid()
    body = bodies[i]
    position = positions[env, ids[i]]
    spatial = body_velocity[env, body]
    angular = wp.vec3(spatial[0], spatial[1], spatial[2])
    linear = wp.vec3(spatial[3], spatial[4], spatial[5])
    pos[env, i] = position
    quat[env, i] = compose(body_quat[env, body], turns[env % turns.shape[0], ids[i] % turns.shape[1]])
    linear_velocity[env, i] = linear + wp.cross(angular, position - center[env, root[body]])
    angular_velocity[env, i] = angular


@wp.kernel
def relate_frames(
    pos: wp.array2d[wp.vec3],
    quat: wp.array2d[wp.quat],
    linear_velocity: wp.array2d[wp.vec3],
    angular_velocity: wp.array2d[wp.vec3],
    other_pos: wp.array2d[wp.vec3],
    other_quat: wp.array2d[wp.quat],
    other_linear: wp.array2d[wp.vec3],
    other_angular: wp.array2d[wp.vec3],
    relative_pos: wp.array2d[wp.vec3],
    relative_quat: wp.array2d[wp.quat],
    relative_linear: wp.array2d[wp.vec3],
    relative_angular: wp.array2d[wp.vec3],
):
    """Compute poses and velocities relative to references, in the axes of the references; one thread per env and frame.

    Args:
        pos: Positions in the world, (num_envs, k).
        other_pos: Positions of the references in the world, (num_envs, k); (num_envs, 1) if there is only one.
    """
    env, i = wp.tid()
    j = i % other_pos.shape[1]
    turn = other_quat[env, j]
    spin = other_angular[env, j]
    offset = pos[env, i] - other_pos[env, j]
    # The velocity relative to the reference also depends on the rotation of the reference.
    moves = linear_velocity[env, i] - other_linear[env, j] - wp.cross(spin, offset)
    relative_pos[env, i] = rotate_inverse(turn, offset)
    relative_quat[env, i] = compose(wp.quat(turn[0], -turn[1], -turn[2], -turn[3]), quat[env, i])
    relative_linear[env, i] = rotate_inverse(turn, moves)
    relative_angular[env, i] = rotate_inverse(turn, angular_velocity[env, i] - spin)
