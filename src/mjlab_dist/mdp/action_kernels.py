"""Warp kernels of action terms: inverse kinematics, motors."""

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN201, PLR0917

import warp as wp

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

mat66 = wp.types.matrix(shape=(6, 6), dtype=float)
vec6 = wp.types.vector(length=6, dtype=float)


@wp.func
def rotation_of(vector: wp.vec3):
    """Return the quaternion of a rotation vector, whose length is the angle in rad."""
    angle = wp.length(vector)
    # sin(angle / 2) / angle; near 0, its Taylor series
    factor = 0.5 - angle * angle / 48.0
    if angle > 1.0e-3:
        factor = wp.sin(0.5 * angle) / angle
    return wp.quat(vector[0] * factor, vector[1] * factor, vector[2] * factor, wp.cos(0.5 * angle))


@wp.func
def vector_of(turn: wp.quat):
    """Return the rotation vector of a quaternion; its length is at most pi."""
    axis = wp.vec3(turn[0], turn[1], turn[2])
    w = turn[3]
    if w < 0.0:
        axis = -axis
        w = -w
    length = wp.length(axis)
    # angle / sin(angle / 2); near 0, its Taylor series
    factor = 2.0 + length * length / 3.0
    if length > 1.0e-3:
        factor = 2.0 * wp.atan2(length, w) / length
    return axis * factor


@wp.func
def pose_error(
    values: wp.array2d[float],
    point: wp.vec3,
    turned: wp.array3d[float],
    env: int,
    num_rows: int,
    is_absolute: bool,
):
    """Return the change from the current pose to the target pose: position, then rotation vector."""
    error = vec6()
    for r in range(num_rows):
        error[r] = values[env, r]
    if is_absolute:
        for r in range(3):
            error[r] = error[r] - point[r]
    if is_absolute and num_rows == 6:
        now = wp.mat33()
        for r in range(3):
            for c in range(3):
                now[r, c] = turned[env, r, c]
        goal = rotation_of(wp.vec3(values[env, 3], values[env, 4], values[env, 5]))
        turn = vector_of(goal * wp.quat_inverse(wp.quat_from_matrix(now)))
        for r in range(3):
            error[3 + r] = turn[r]
    return error


@wp.func
def damped_square(jacobian: wp.array3d[float], env: int, qvel_ids: wp.array[int], num_rows: int, damping2: float):
    """Return the lower triangle of J J^T + damping2 I."""
    square = mat66()
    for r in range(num_rows):
        for c in range(r + 1):
            for k in range(qvel_ids.shape[0]):
                square[r, c] += jacobian[env, r, qvel_ids[k]] * jacobian[env, c, qvel_ids[k]]
        square[r, r] += damping2
    return square


@wp.func
def solve_positive(matrix: mat66, right: vec6, num_rows: int):
    """Solve a positive definite system, given by its lower triangle, with a Cholesky factorization."""
    factor = matrix
    x = right
    for r in range(num_rows):
        for c in range(r):
            for k in range(c):
                factor[r, c] -= factor[r, k] * factor[c, k]
            factor[r, c] /= factor[c, c]
            factor[r, r] -= factor[r, c] * factor[r, c]
        factor[r, r] = wp.sqrt(factor[r, r])
    for r in range(num_rows):
        for k in range(r):
            x[r] -= factor[r, k] * x[k]
        x[r] /= factor[r, r]
    for back in range(num_rows):
        r = num_rows - 1 - back
        for k in range(r + 1, num_rows):
            x[r] -= factor[k, r] * x[k]
        x[r] /= factor[r, r]
    return x


@wp.kernel
def solve_ik(
    jacobian: wp.array3d[float],
    values: wp.array2d[float],
    point: wp.array[wp.vec3],
    turned: wp.array3d[float],
    qpos: wp.array2d[float],
    qpos_ids: wp.array[int],
    qvel_ids: wp.array[int],
    ctrl_ids: wp.array[int],
    num_rows: int,
    is_absolute: bool,
    damping2: float,
    ctrl: wp.array2d[float],
):
    """Compute target positions of joints with damped least squares; one thread per env.

    Args:
        jacobian: Jacobian of the controlled point, (num_envs, 6, nv): linear, then angular velocity.
        values: Position in m and rotation vector in rad of the target pose, or of a change of the current pose,
            (num_envs, num_rows).
        point: Current position of the controlled point, (num_envs,).
        turned: Current rotation matrix of the frame at this point, (num_envs, 3, 3).
        qpos: Joint positions, (num_envs, nq).
        qpos_ids: Column of each joint in ``qpos``.
        qvel_ids: Column of each joint in ``qvel``.
        ctrl_ids: Actuator of each joint.
        num_rows: 3 for the position alone, 6 with the rotation.
        is_absolute: Whether the values are the target pose, and not a change.
        damping2: Square of the damping.
        ctrl: Output: target positions, (num_envs, nu).
    """
    env = wp.tid()
    error = pose_error(values, point[env], turned, env, num_rows, is_absolute)
    force = solve_positive(damped_square(jacobian, env, qvel_ids, num_rows, damping2), error, num_rows)
    for k in range(qvel_ids.shape[0]):
        ctrl[env, ctrl_ids[k]] = qpos[env, qpos_ids[k]]
        for r in range(num_rows):
            ctrl[env, ctrl_ids[k]] += jacobian[env, r, qvel_ids[k]] * force[r]
