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
        error_m_s: Output: distance between the horizontal velocities.
        error_rad_s: Output: magnitude of the difference between the yaw rates.
    """
    env = wp.tid()
    forward = command[env, 0] - level_velocity[env, 0]
    left = command[env, 1] - level_velocity[env, 1]
    error_m_s[env] = wp.sqrt(forward * forward + left * left)
    error_rad_s[env] = wp.abs(command[env, 2] - velocity[env, 5])


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
    """Update a contact sensor; one thread per env and body. The outputs are those of ``Contact``.

    Args:
        data: Readings of all MuJoCo sensors, (num_envs, nsensordata).
        addresses: Column of ``found`` of each sensor of a body, (bodies, sensors); the next three columns are its
            force.
        adds: Whether the force of a body is the sum over its sensors; else it is the largest.
        history: Length of ``force_history_n``; it is not written if 0.
        dt_s: Time since the previous update.
    """
    env, i = wp.tid()
    # Force: the first sensor's, then those of the others
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
    # Times
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
def advance_command(
    dt_s: float, starts: wp.array[wp.bool], drawn_s: wp.array[float], left_s: wp.array[float], due: wp.array[wp.bool]
):
    """Advance the clock of a command by one step; one thread per env.

    Args:
        dt_s: Duration of a step.
        starts: Whether an episode starts.
        drawn_s: Time until the draw after this one.
        left_s: In and out: time until the next draw.
        due: Output: whether the command is drawn now.
    """
    env = wp.tid()
    left = left_s[env] - dt_s
    due[env] = starts[env] or left < 0.5 * dt_s  # round to the nearest step
    left_s[env] = wp.where(due[env], drawn_s[env], left)


@wp.kernel
def begin_step(
    max_steps: int,
    dt_s: float,
    episode_length: wp.array[wp.int64],
    length_row: wp.array[float],
    until_event_s: wp.array2d[float],
    timed_out: wp.array[wp.bool],
    terminated: wp.array[wp.bool],
    limit_row: wp.array[float],
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
        limit_row: Output: 1 if the episode has reached its maximum length, else 0.
    """
    env = wp.tid()
    episode_length[env] = episode_length[env] + wp.int64(1)
    length_row[env] = float(episode_length[env])
    for i in range(until_event_s.shape[1]):
        until_event_s[env, i] = until_event_s[env, i] - dt_s
    timed_out[env] = episode_length[env] >= wp.int64(max_steps)
    terminated[env] = False
    limit_row[env] = wp.where(timed_out[env], 1.0, 0.0)


@wp.kernel
def end_by_terms(
    ended_by: wp.array2d[wp.bool],
    is_time_out: wp.array[wp.bool],
    timed_out: wp.array[wp.bool],
    terminated: wp.array[wp.bool],
    endings: wp.array2d[float],
):
    """Combine the termination terms of a step; one thread per env.

    Args:
        ended_by: Results of the terms, (num_terminations, num_envs).
        is_time_out: Whether a term ends episodes as the time limit does, (num_terminations,).
        timed_out: In and out: whether the episode is cut off, by the time limit or by a term.
        terminated: In and out: whether the episode is terminated.
        endings: Output: 1 for each term that holds, else 0, (num_terminations, num_envs).
    """
    env = wp.tid()
    for i in range(ended_by.shape[0]):
        endings[i, env] = wp.where(ended_by[i, env], 1.0, 0.0)
        if ended_by[i, env]:
            if is_time_out[i]:
                timed_out[env] = True
            else:
                terminated[env] = True


MEAN = wp.constant(0)
SUM = wp.constant(1)
MAX = wp.constant(2)
MIN = wp.constant(3)
LAST = wp.constant(4)


@wp.func
def add_value(reduction: int, steps: float, before: float, value: float):
    """Return the updated state of a metric after a step.

    Args:
        reduction: MEAN, SUM, MAX, MIN or LAST.
        steps: Steps of the episode, this one included.
        before: Its state before the step.
        value: Its value in this step.
    """
    if steps <= 1.0:
        return value
    if reduction == MAX:
        return wp.max(before, value)
    if reduction == MIN:
        return wp.min(before, value)
    if reduction == LAST:
        return value
    return before + value


@wp.kernel
def end_step(
    timed_out: wp.array[wp.bool],
    broken: wp.array[wp.bool],
    values: wp.array2d[float],
    reductions: wp.array[int],
    steps: wp.array[float],
    terminated: wp.array[wp.bool],
    terms: wp.array2d[float],
    counts: wp.array[float],
    done: wp.array[wp.bool],
    time_outs: wp.array[wp.bool],
    finished: wp.array[float],
    rewards: wp.array2d[float],
    memory: wp.array2d[float],
    metrics: wp.array2d[float],
):
    """Determine which episodes end, and add a step to the sums over their episodes; one thread per env.

    Args:
        timed_out: Whether the episode is cut off.
        broken: Whether a number of the env is not finite: its episode terminates, does not count and earns nothing.
        values: Metrics of this step, (num_metrics, num_envs).
        reductions: How each metric is reduced over the steps of an episode: MEAN, SUM, MAX, MIN or LAST.
        steps: Steps of the episode, this one included.
        terminated: In and out: whether the episode is terminated.
        terms: In and out: reward of each term in this step, (num_terms, num_envs).
        counts: In and out: 1 if the episode counts, else 0.
        done: Output: whether the episode ends.
        time_outs: Output: whether it is cut off and not terminated.
        finished: Output: 1 if an episode that counts ends, else 0.
        rewards: In and out: sums of the reward terms over the episode, (num_terms, num_envs).
        memory: In and out: what the metrics keep between steps, (num_metrics, num_envs).
        metrics: Output: metrics of the episode up to this step, (num_metrics, num_envs); 0 if it does not count.
    """
    env = wp.tid()
    # End of the episode
    if broken[env]:
        terminated[env] = True
        counts[env] = 0.0
    ends = timed_out[env] or terminated[env]
    done[env] = ends
    time_outs[env] = timed_out[env] and not terminated[env]
    finished[env] = wp.where(ends, counts[env], 0.0)
    # Rewards
    for i in range(terms.shape[0]):
        if broken[env]:
            terms[i, env] = 0.0
        rewards[i, env] = rewards[i, env] + terms[i, env]
    # Metrics
    for i in range(values.shape[0]):
        value = add_value(reductions[i], steps[env], memory[i, env], values[i, env])
        memory[i, env] = value
        value = wp.where(reductions[i] == MEAN, value / steps[env], value)
        metrics[i, env] = wp.where(counts[env] > 0.0, value, 0.0)
    # The next episode counts
    if ends:
        counts[env] = 1.0


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
