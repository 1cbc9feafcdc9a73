"""Warp kernels of the env: one thread per env, or per env and action."""

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN201, PLR0917, PLR1730

import warp as wp

from mjlab_dist.env.frame_kernels import rotate_inverse

wp.set_module_options({"enable_backward": False, "max_unroll": 4})


@wp.kernel
def measure_base(
    pose: wp.array2d[float],
    velocity: wp.array2d[float],
    acceleration: wp.array2d[float],
    gravity: wp.array2d[float],
    linear_velocity: wp.array2d[float],
    level_velocity: wp.array2d[float],
    heading: wp.array[float],
):
    """Compute gravity, velocities and heading of a free-floating body. The class ``Base`` describes these outputs.

    Args:
        pose: Position and quaternion (w, x, y, z), (num_envs, 7).
        velocity: Linear velocity in the world frame, angular velocity in the body's frame, (num_envs, 6).
        acceleration: Acceleration by gravity in the world frame, (num_envs, 3).
    """
    env = wp.tid()
    w, x, y, z = pose[env, 3], pose[env, 4], pose[env, 5], pose[env, 6]
    # Direction of gravity and velocity in the body's frame. Without gravity, down is the direction of -z.
    down = wp.normalize(wp.vec3(acceleration[env, 0], acceleration[env, 1], acceleration[env, 2]))
    if wp.length_sq(down) == 0.0:
        down = wp.vec3(0.0, 0.0, -1.0)
    moves = wp.vec3(velocity[env, 0], velocity[env, 1], velocity[env, 2])
    pulled = rotate_inverse(wp.quat(w, x, y, z), down)
    turned = rotate_inverse(wp.quat(w, x, y, z), moves)
    # Heading (yaw), and velocity in the frame that is rotated only by the heading
    yaw = wp.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    heading[env] = yaw
    cos, sin = wp.cos(yaw), wp.sin(yaw)
    level_velocity[env, 0] = cos * moves[0] + sin * moves[1]
    level_velocity[env, 1] = cos * moves[1] - sin * moves[0]
    level_velocity[env, 2] = moves[2]
    for i in range(3):
        gravity[env, i] = pulled[i]
        linear_velocity[env, i] = turned[i]


@wp.kernel
def send_actions(
    given: wp.array2d[float],
    low: wp.array[float],
    high: wp.array[float],
    scale: wp.array[float],
    offset: wp.array[float],
    action_ids: wp.array[int],
    targets: wp.array[wp.uint64],
    strides: wp.array[wp.int64],
    lag: wp.array2d[wp.int64],
    actions: wp.array2d[float],
    previous: wp.array2d[float],
    sent: wp.array3d[float],
):
    """Compute value = offset + scale * clip(action), delayed by ``lag`` steps; one thread per env and target.

    Args:
        given: The policy's output, (num_envs, num_actions).
        low: Lower bounds of the actions.
        high: Upper bounds of the actions.
        scale: Factors.
        offset: Offsets, added to the scaled actions.
        action_ids: Index of the action of each target; -1 for an actuator without an action, whose input is set to 0.
        targets: Address of each target in the first env. A target is an actuator input, or a value of an action term.
        strides: For each target, the number of bytes from the value of one env to the value of the next.
        lag: Delay of each action in steps, (num_envs, num_actions).
        actions: The policy's latest output, (num_envs, num_actions).
        previous: The output before that, (num_envs, num_actions).
        sent: Clipped outputs of the latest steps, newest first, (num_envs, steps, num_actions).
    """
    env, thread = wp.tid()
    address = targets[thread] + wp.uint64(wp.int64(env) * strides[thread])
    value = wp.array(ptr=address, shape=(1,), dtype=float)
    i = action_ids[thread]
    if i < 0:
        value[0] = 0.0
        return
    action = given[env, i]
    previous[env, i] = actions[env, i]
    actions[env, i] = action
    # Unlike clamp, these comparisons keep a NaN, so that the checks for finite values find it.
    if action < low[i]:
        action = low[i]
    if action > high[i]:
        action = high[i]
    # Shift the history, and use the action that is due.
    for step in range(sent.shape[1] - 1, 0, -1):
        sent[env, step, i] = sent[env, step - 1, i]
    sent[env, 0, i] = action
    value[0] = offset[i] + scale[i] * sent[env, int(lag[env, i]), i]


@wp.kernel
def draw_lags(
    mask: wp.array[wp.bool],
    drawn: wp.array[float],
    min_lag: wp.array[int],
    spread: wp.array[int],
    jitter: wp.array[float],
    lag: wp.array2d[wp.int64],
    next_lag: wp.array2d[wp.int64],
):
    """Draw the latency of actions in the masked envs; with jitter, also update it in the other envs.

    The kernel has one thread per env and action.

    Args:
        mask: Envs to draw for, (num_envs,).
        drawn: One random number from [0, 1) per env, because one communication link delays all actions of an env.
        min_lag: Minimum lag of each action, in steps.
        spread: Maximum minus minimum lag of each action, in steps.
        jitter: Probability of a draw in envs outside the mask, per action.
        lag: In and out: the current lag, (num_envs, num_actions).
        next_lag: In and out: the lag that was drawn last, (num_envs, num_actions). ``lag`` grows toward it by at most 1
            per step, so that no action arrives before an earlier one. A lower ``next_lag`` applies at once.
    """
    env, i = wp.tid()
    share = drawn[env]
    draws = mask[env]
    if not draws and share < jitter[i]:
        # Given that share < jitter, share / jitter is uniform in [0, 1).
        share /= jitter[i]
        draws = True
    if draws:
        next_lag[env, i] = wp.int64(min_lag[i] + wp.min(int(share * float(spread[i] + 1)), spread[i]))
    if mask[env]:
        lag[env, i] = next_lag[env, i]
    elif jitter[i] > 0.0:
        lag[env, i] = wp.min(lag[env, i] + wp.int64(1), next_lag[env, i])


@wp.kernel
def advance_command(
    dt_s: float, starts: wp.array[wp.bool], drawn_s: wp.array[float], left_s: wp.array[float], due: wp.array[wp.bool]
):
    """Advance the clock of a command by one step; one thread per env.

    Args:
        dt_s: Duration of a step.
        starts: Whether an episode starts.
        drawn_s: New time until the next draw, used if the command is drawn in this step.
        left_s: In and out: time until the next draw.
        due: Output: whether the command is drawn in this step.
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
        is_time_out: Whether a term cuts episodes off, as the time limit does, (num_terminations,).
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
        steps: Steps of the episode, including this one.
        before: State of the metric before the step.
        value: Value of the metric in this step.
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


@wp.func
def weighted_sum(weights: wp.array[float], terms: wp.array2d[float], env: int):
    """Return an env's weighted sum of reward terms. torch.mv is not used: its rounding depends on the number of envs.

    Args:
        weights: Weight of each term, (num_terms,).
        terms: Reward of each term, (num_terms, num_envs).
        env: Index of the env.
    """
    total = float(0.0)  # noqa: UP018 (a Warp variable, which the loop changes)
    for i in range(terms.shape[0]):
        total += weights[i] * terms[i, env]
    return total


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
    weights: wp.array[float],
    reward: wp.array[float],
):
    """Determine which episodes end, and add this step to the sums of every episode; one thread per env.

    Args:
        timed_out: Whether the episode is cut off.
        broken: Whether a number is not finite. If so, the totals exclude the episode.
        values: Metrics of this step, (num_metrics, num_envs).
        reductions: How each metric is reduced over the steps of an episode: MEAN, SUM, MAX, MIN or LAST.
        steps: Steps of the episode, including this one.
        terminated: In and out: whether the episode is terminated; set to True if ``broken``.
        terms: In and out: reward of each term in this step, (num_terms, num_envs); set to 0 if ``broken``.
        counts: In and out: 1 if the totals include the episode when it ends, else 0.
        done: Output: whether the episode ends.
        time_outs: Output: whether the episode is cut off and not terminated.
        finished: Output: 1 if an episode ends and the totals include it, else 0.
        rewards: In and out: sums of the reward terms over the episode, (num_terms, num_envs).
        memory: In and out: state of the metrics between steps, (num_metrics, num_envs).
        metrics: Output: metrics of the episode so far, (num_metrics, num_envs); 0 if the totals exclude the episode.
        weights: Weight of each reward term, (num_terms,).
        reward: Output: weighted sum of the reward terms.
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
        terms[i, env] = wp.where(broken[env], 0.0, terms[i, env])
        rewards[i, env] = rewards[i, env] + terms[i, env]
    reward[env] = weighted_sum(weights, terms, env)
    # Metrics
    for i in range(values.shape[0]):
        value = add_value(reductions[i], steps[env], memory[i, env], values[i, env])
        memory[i, env] = value
        value = wp.where(reductions[i] == MEAN, value / steps[env], value)
        metrics[i, env] = wp.where(counts[env] > 0.0, value, 0.0)
    # The totals include the next episode
    counts[env] = wp.where(ends, 1.0, counts[env])
