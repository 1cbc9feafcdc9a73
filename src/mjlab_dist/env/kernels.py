"""Warp kernels of the env and its terms: one thread per env, or per env and item (actuator, body, ray)."""

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN201, D417, PLR0917, PLR1730

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
    """Compute gravity, velocities and heading of a free-floating body; the outputs are those of ``Base``.

    Args:
        pose: Position and quaternion (w, x, y, z), (num_envs, 7).
        velocity: Linear in the world's frame, angular in the body's, (num_envs, 6).
    """
    env = wp.tid()
    w, x, y, z = pose[env, 3], pose[env, 4], pose[env, 5], pose[env, 6]
    # Gravity: minus the third row of the rotation matrix
    gravity[env, 0] = -2.0 * (x * z - w * y)
    gravity[env, 1] = -2.0 * (y * z + w * x)
    gravity[env, 2] = 2.0 * (x * x + y * y) - 1.0
    # Velocity in the body's frame: v - 2 w (axis x v) + 2 axis x (axis x v), rotated by the inverse quaternion
    moves = wp.vec3(velocity[env, 0], velocity[env, 1], velocity[env, 2])
    axis = wp.vec3(x, y, z)
    twice = 2.0 * wp.cross(axis, moves)
    turned = moves - w * twice + wp.cross(axis, twice)
    # Heading, and velocity in its frame
    yaw = wp.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    heading[env] = yaw
    cos, sin = wp.cos(yaw), wp.sin(yaw)
    level_velocity[env, 0] = cos * moves[0] + sin * moves[1]
    level_velocity[env, 1] = cos * moves[1] - sin * moves[0]
    level_velocity[env, 2] = moves[2]
    for i in range(3):
        linear_velocity[env, i] = turned[i]


@wp.kernel
def send_actions(
    given: wp.array2d[float],
    low: wp.array[float],
    high: wp.array[float],
    scale: wp.array[float],
    offset: wp.array[float],
    action_ids: wp.array[int],
    lag: wp.array2d[wp.int64],
    actions: wp.array2d[float],
    previous: wp.array2d[float],
    sent: wp.array3d[float],
    ctrl: wp.array2d[float],
):
    """Compute ctrl = offset + scale * clip(action), delayed by ``lag`` steps; one thread per env and actuator.

    Args:
        given: The policy's output, (num_envs, num_actions).
        low: Lower bounds of the actions.
        high: Upper bounds of the actions.
        scale: Factors.
        offset: Offsets, added to the scaled actions.
        action_ids: The action that drives each actuator; -1 without one, which sets the input to 0.
        lag: Delay of each action in steps, (num_envs, num_actions).
        actions: The policy's latest output, (num_envs, num_actions).
        previous: The output before that, (num_envs, num_actions).
        sent: Clipped outputs of the latest steps, newest first, (num_envs, steps, num_actions).
        ctrl: Actuator inputs, (num_envs, nu).
    """
    env, actuator = wp.tid()
    i = action_ids[actuator]
    if i < 0:
        ctrl[env, actuator] = 0.0
        return
    action = given[env, i]
    previous[env, i] = actions[env, i]
    actions[env, i] = action
    # Unlike clamp, these comparisons keep a NaN, so that the checks for finite values find it.
    if action < low[i]:
        action = low[i]
    if action > high[i]:
        action = high[i]
    # Shift the history, and send the action that is due.
    for step in range(sent.shape[1] - 1, 0, -1):
        sent[env, step, i] = sent[env, step - 1, i]
    sent[env, 0, i] = action
    ctrl[env, actuator] = offset[i] + scale[i] * sent[env, int(lag[env, i]), i]


@wp.kernel
def draw_lags(
    mask: wp.array[wp.bool],
    drawn: wp.array[float],
    min_lag: wp.array[int],
    spread: wp.array[int],
    lag: wp.array2d[wp.int64],
):
    """Draw the latency of actions in some envs; one thread per env and action.

    Args:
        mask: Envs to draw for, (num_envs,).
        drawn: One number from [0, 1) per env, because latency of the link to the robot affects all motors alike.
        min_lag: Minimum lag of each action, in steps.
        spread: Maximum minus minimum lag of each action, in steps.
        lag: Output, (num_envs, num_actions).
    """
    env, i = wp.tid()
    if mask[env]:
        lag[env, i] = wp.int64(min_lag[i] + wp.min(int(drawn[env] * float(spread[i] + 1)), spread[i]))


@wp.kernel
def read_contacts(
    data: wp.array2d[float],
    addresses: wp.array[int],
    dt_s: float,
    force_n: wp.array3d[float],
    in_contact: wp.array2d[wp.bool],
    first_contact: wp.array2d[wp.bool],
    air_time_s: wp.array2d[float],
    last_air_time_s: wp.array2d[float],
    contact_time_s: wp.array2d[float],
):
    """Update a contact sensor; one thread per env and body. The outputs are those of ``Contact``.

    Args:
        data: Readings of all MuJoCo sensors, (num_envs, nsensordata).
        addresses: Column of each body's ``found``; the next three columns are its force.
        dt_s: Time since the previous update.
    """
    env, i = wp.tid()
    column = addresses[i]
    touches = data[env, column] > 0.0
    first = touches and air_time_s[env, i] > 0.0
    air_s = air_time_s[env, i] + dt_s
    for k in range(3):
        force_n[env, i, k] = data[env, column + 1 + k]
    first_contact[env, i] = first
    in_contact[env, i] = touches
    if first:
        last_air_time_s[env, i] = air_s
    air_time_s[env, i] = wp.where(touches, 0.0, air_s)
    contact_time_s[env, i] = wp.where(touches, contact_time_s[env, i] + dt_s, 0.0)


@wp.kernel
def begin_step(
    max_steps: int,
    dt_s: float,
    episode_length: wp.array[wp.int64],
    length_row: wp.array[float],
    until_event_s: wp.array2d[float],
    timed_out: wp.array[wp.bool],
    terminated: wp.array[wp.bool],
):
    """Advance the clocks of every env; one thread per env.

    Args:
        max_steps: Maximum number of steps of an episode.
        dt_s: Duration of a step.
        episode_length: Steps since the start of the episode.
        length_row: The same number as a float.
        until_event_s: Time until each interval event, (num_envs, events).
        timed_out: Output: whether the episode has reached its maximum length.
        terminated: Output, set to False.
    """
    env = wp.tid()
    episode_length[env] = episode_length[env] + wp.int64(1)
    length_row[env] = float(episode_length[env])
    for i in range(until_event_s.shape[1]):
        until_event_s[env, i] = until_event_s[env, i] - dt_s
    timed_out[env] = episode_length[env] >= wp.int64(max_steps)
    terminated[env] = False


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
        origins: Start of the episode, added to the positions, (num_envs, 3).
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
    w, x, y, z = pose[env, 3], pose[env, 4], pose[env, 5], pose[env, 6]
    yaw = wp.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    cos, sin = wp.cos(yaw), wp.sin(yaw)
    forward, left = offsets[ray, 0], offsets[ray, 1]
    starts[env, ray] = wp.vec3(
        pose[env, 0] + cos * forward - sin * left, pose[env, 1] + sin * forward + cos * left, pose[env, 2] + above_m
    )


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
