"""Warp kernels of terms: one thread per env, or per env and item (body, ray)."""

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN201, PLR0917

import warp as wp

from mjlab_dist.sim.height_field_contacts import Ground, depth_of

wp.set_module_options({"enable_backward": False, "max_unroll": 4})


@wp.kernel
def measure_tracking(
    command: wp.array2d[float],
    level_velocity: wp.array2d[float],
    velocity: wp.array2d[float],
    error_m_s: wp.array[float],
    error_rad_s: wp.array[float],
):
    """Compute how far a velocity is from its command; one thread per env.

    Args:
        command: Forward velocity, left velocity and yaw rate, (num_envs, 3).
        level_velocity: Linear velocity in the heading frame, (num_envs, 3).
        velocity: Linear velocity in the world's frame, angular velocity in the body's, (num_envs, 6).
        error_m_s: Output: norm of the difference between the horizontal velocities.
        error_rad_s: Output: magnitude of the difference between the yaw rates.
    """
    env = wp.tid()
    forward = command[env, 0] - level_velocity[env, 0]
    left = command[env, 1] - level_velocity[env, 1]
    error_m_s[env] = wp.sqrt(forward * forward + left * left)
    error_rad_s[env] = wp.abs(command[env, 2] - velocity[env, 5])


@wp.kernel
def read_contacts(
    chosen: wp.array[wp.bool],
    data: wp.array2d[float],
    addresses: wp.array2d[int],
    adds: bool,
    history: int,
    dt_s: float,
    force_n: wp.array3d[float],
    in_contact: wp.array2d[wp.bool],
    first_contact: wp.array2d[wp.bool],
    air_time_s: wp.array2d[float],
    last_air_time_s: wp.array2d[float],
    contact_time_s: wp.array2d[float],
    last_contact_time_s: wp.array2d[float],
    force_history_n: wp.array4d[float],
):
    """Update a contact sensor; one thread per env and body. The outputs are attributes of ``Contact``.

    Args:
        chosen: Envs to update, (num_envs,).
        data: Readings of all MuJoCo sensors, (num_envs, nsensordata).
        addresses: For each body and each of its sensors, the column of the reading ``found``, (bodies, sensors). The
            next three columns are the force that the same sensor measures.
        adds: Whether the force of a body is the sum over its sensors. If not, it is the largest force of a sensor.
        history: Number of steps in ``force_history_n``; with 0, the array is not written.
        dt_s: Time since the previous update.
    """
    env, i = wp.tid()
    if not chosen[env]:
        return
    # Force: start with the first sensor, then combine it with each of the others
    column = addresses[i, 0]
    touches = data[env, column] > 0.0
    force = wp.vec3(data[env, column + 1], data[env, column + 2], data[env, column + 3])
    for j in range(1, addresses.shape[1]):
        other = addresses[i, j]
        touches = touches or data[env, other] > 0.0
        push = wp.vec3(data[env, other + 1], data[env, other + 2], data[env, other + 3])
        if adds:
            force = force + push
        elif wp.length_sq(push) > wp.length_sq(force):
            force = push
    for k in range(3):
        for step in range(history - 1, 0, -1):
            force_history_n[env, step, i, k] = force_history_n[env, step - 1, i, k]
        if history > 0:
            force_history_n[env, 0, i, k] = force[k]
        force_n[env, i, k] = force[k]
    # Times in contact and in the air
    first = touches and air_time_s[env, i] > 0.0
    air_s = air_time_s[env, i] + dt_s
    contact_s = contact_time_s[env, i] + dt_s
    first_contact[env, i] = first
    in_contact[env, i] = touches
    if first:
        last_air_time_s[env, i] = air_s
    if not touches and contact_time_s[env, i] > 0.0:
        last_contact_time_s[env, i] = contact_s
    air_time_s[env, i] = wp.where(touches, 0.0, air_s)
    contact_time_s[env, i] = wp.where(touches, contact_s, 0.0)


@wp.kernel
def draw_root(
    mask: wp.array[wp.bool],
    drawn: wp.array2d[float],
    low: wp.array[float],
    high: wp.array[float],
    home: wp.array2d[float],
    origins: wp.array2d[float],
    pose: wp.array2d[float],
    velocity: wp.array2d[float],
):
    """Randomize pose and velocity of a free-floating body around its start pose in some envs; one thread per env.

    Args:
        mask: Envs to write, (num_envs,).
        drawn: Numbers from [0, 1): position (3), roll, pitch, yaw, linear (3) and angular velocity (3), (num_envs, 12).
        low: Minimum of each of the twelve quantities.
        high: Maximum of each of the twelve quantities.
        home: Start poses, (num_envs, 7).
        origins: Origins of the envs, added to the positions, (num_envs, 3).
        pose: Output: position and quaternion (w, x, y, z), (num_envs, 7).
        velocity: Output: linear and angular velocity, (num_envs, 6).
    """
    env = wp.tid()
    if not mask[env]:
        return
    # Position and velocities
    for i in range(3):
        moved = drawn[env, i] * (high[i] - low[i]) + low[i]
        pose[env, i] = home[env, i] + origins[env, i] + moved
    for i in range(6):
        velocity[env, i] = drawn[env, 6 + i] * (high[6 + i] - low[6 + i]) + low[6 + i]
    # Rotation: half angles, as quaternions use them
    roll = 0.5 * (drawn[env, 3] * (high[3] - low[3]) + low[3])
    pitch = 0.5 * (drawn[env, 4] * (high[4] - low[4]) + low[4])
    yaw = 0.5 * (drawn[env, 5] * (high[5] - low[5]) + low[5])
    # Warp's quaternions are (x, y, z, w).
    turn = (
        wp.quat(0.0, 0.0, wp.sin(yaw), wp.cos(yaw))
        * wp.quat(0.0, wp.sin(pitch), 0.0, wp.cos(pitch))
        * wp.quat(wp.sin(roll), 0.0, 0.0, wp.cos(roll))
    )
    turned = turn * wp.quat(home[env, 4], home[env, 5], home[env, 6], home[env, 3])
    pose[env, 3] = turned[3]
    for i in range(3):
        pose[env, 4 + i] = turned[i]


@wp.func
def _scanned_point(pose: wp.array2d[float], env: int, forward: float, left: float) -> wp.vec3:
    """Return a point at a horizontal offset from a body, in the world frame. The offset turns with the heading."""
    w, x, y, z = pose[env, 3], pose[env, 4], pose[env, 5], pose[env, 6]
    yaw = wp.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    cos, sin = wp.cos(yaw), wp.sin(yaw)
    return wp.vec3(pose[env, 0] + cos * forward - sin * left, pose[env, 1] + sin * forward + cos * left, pose[env, 2])


@wp.kernel
def scan_ground(
    pose: wp.array2d[float],
    offsets: wp.array2d[float],
    ground: Ground,
    geom: int,
    geom_xpos: wp.array2d[wp.vec3],
    missed_m: float,
    offset_m: float,
    heights: wp.array2d[float],
):
    """Read the heights of a height scan from a height field; one thread per env and point.

    Args:
        pose: Position and quaternion (w, x, y, z) of a body, (num_envs, 7).
        offsets: Offsets from the body, forward and to the left, (points, 2).
        ground: The height field.
        geom: Index of its geom.
        geom_xpos: Positions of geoms.
        missed_m: Height for a point that is not above the height field.
        offset_m: Offset, subtracted from all heights.
        heights: Output: distance of the ground below the body, minus the offset, (num_envs, points).
    """
    env, i = wp.tid()
    point = _scanned_point(pose, env, offsets[i, 0], offsets[i, 1]) - geom_xpos[env, geom]
    is_above = wp.abs(point[0]) <= ground.half[0] and wp.abs(point[1]) <= ground.half[1]
    heights[env, i] = wp.where(is_above, -depth_of(ground, point), missed_m) - offset_m


@wp.kernel
def place_rays(pose: wp.array2d[float], offsets: wp.array2d[float], above_m: float, starts: wp.array2d[wp.vec3]):
    """Compute the start points of the rays of a height scan; one thread per env and ray.

    Args:
        pose: Position and quaternion (w, x, y, z) of a body, (num_envs, 7).
        offsets: Offsets from the body, forward and to the left, (rays, 2).
        above_m: Height of the start points above the body.
        starts: Output: start points in the world frame, (num_envs, rays).
    """
    env, ray = wp.tid()
    starts[env, ray] = _scanned_point(pose, env, offsets[ray, 0], offsets[ray, 1]) + wp.vec3(0.0, 0.0, above_m)


@wp.kernel
def read_rays(
    distances: wp.array2d[float], above_m: float, missed_m: float, offset_m: float, heights: wp.array2d[float]
):
    """Convert distances along the rays of a height scan to heights; one thread per env and ray.

    Args:
        distances: Distance from the start of each ray to the ground, in m; negative if the ray hits nothing.
        above_m: Height of the start points above the body.
        missed_m: Height for a ray that hits nothing.
        offset_m: Offset, subtracted from all heights.
        heights: Output: distance of the ground below the body, minus the offset, (num_envs, rays).
    """
    env, ray = wp.tid()
    below = distances[env, ray] - above_m
    heights[env, ray] = wp.where(distances[env, ray] < 0.0, missed_m, below) - offset_m
