"""Warp kernels of motors, which run in every physics step."""

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN201, PLR0917

import warp as wp

wp.set_module_options({"enable_backward": False, "max_unroll": 4})

LINEAR = wp.constant(0)
SOFTSIGN = wp.constant(1)
ELU = wp.constant(2)
RELU = wp.constant(3)
TANH = wp.constant(4)


@wp.func
def limited(value: float, low: float, high: float):
    """Clip a number. Unlike clamp, the comparisons keep a NaN, so that the checks for finite values find it."""
    if value < low:
        return low
    if value > high:
        return high
    return value


@wp.kernel
def drive_dc(
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    qpos_ids: wp.array[int],
    qvel_ids: wp.array[int],
    ctrl_ids: wp.array[int],
    stiffness: wp.array[float],
    damping: wp.array[float],
    effort_limit: wp.array[float],
    velocity_limit: wp.array[float],
    values: wp.array2d[float],
    offset: wp.array[float],
    lag: wp.array[int],
    targets: wp.array3d[float],
    ctrl: wp.array2d[float],
):
    """Compute the torques of PD controllers with the limits of DC motors; one thread per env and motor.

    Args:
        qpos: Joint positions, (num_envs, nq).
        qvel: Joint velocities, (num_envs, nv).
        qpos_ids: Column of each motor's joint in ``qpos``.
        qvel_ids: Column of each motor's joint in ``qvel``.
        ctrl_ids: Actuator of each motor.
        stiffness: Torque per position error.
        damping: Torque per velocity.
        effort_limit: Maximum torque at rest.
        velocity_limit: No-load speed.
        values: Target positions, (num_envs, motors).
        offset: Target position at action 0. Until the first target arrives, it is the target.
        lag: Delay of each env in physics steps.
        targets: In and out: targets of the latest physics steps minus the offset, newest first, (num_envs, steps,
            motors).
        ctrl: Output: torques, (num_envs, nu).
    """
    env, i = wp.tid()
    for step in range(targets.shape[1] - 1, 0, -1):
        targets[env, step, i] = targets[env, step - 1, i]
    targets[env, 0, i] = values[env, i] - offset[i]
    target = offset[i] + targets[env, lag[env], i]
    velocity = qvel[env, qvel_ids[i]]
    torque = stiffness[i] * (target - qpos[env, qpos_ids[i]]) - damping[i] * velocity
    limit = effort_limit[i]
    share = velocity / velocity_limit[i]
    torque = limited(torque, limit * (-1.0 - share), limit * (1.0 - share))
    ctrl[env, ctrl_ids[i]] = limited(torque, -limit, limit)


@wp.kernel
def push_history(
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    qpos_ids: wp.array[int],
    qvel_ids: wp.array[int],
    values: wp.array2d[float],
    ages: wp.array[int],
    position_scale: float,
    velocity_scale: float,
    velocities_first: bool,
    errors: wp.array3d[float],
    velocities: wp.array3d[float],
    inputs: wp.array2d[float],
):
    """Add the current state to the history of each motor, and write the inputs of its network.

    The kernel has one thread per env and motor.

    Args:
        qpos: Joint positions, (num_envs, nq), or lengths of actuators, (num_envs, nu).
        qvel: Joint velocities, (num_envs, nv), or velocities of actuators, (num_envs, nu).
        qpos_ids: Column of each motor in ``qpos``.
        qvel_ids: Column of each motor in ``qvel``.
        values: Target positions, (num_envs, motors).
        ages: Ages, in physics steps, of the errors and velocities that the network takes.
        position_scale: Factor of the errors.
        velocity_scale: Factor of the velocities.
        velocities_first: Whether velocities come before errors.
        errors: In and out: position errors of the latest physics steps, newest first, (num_envs, steps, motors).
        velocities: In and out: velocities of the same steps, (num_envs, steps, motors).
        inputs: Output, (num_envs * motors, 2 * ages).
    """
    env, i = wp.tid()
    for step in range(errors.shape[1] - 1, 0, -1):
        errors[env, step, i] = errors[env, step - 1, i]
        velocities[env, step, i] = velocities[env, step - 1, i]
    errors[env, 0, i] = values[env, i] - qpos[env, qpos_ids[i]]
    velocities[env, 0, i] = qvel[env, qvel_ids[i]]
    row = env * values.shape[1] + i
    num = ages.shape[0]
    for k in range(num):
        error = position_scale * errors[env, ages[k], i]
        velocity = velocity_scale * velocities[env, ages[k], i]
        if velocities_first:
            inputs[row, k] = velocity
            inputs[row, num + k] = error
        else:
            inputs[row, k] = error
            inputs[row, num + k] = velocity


@wp.kernel
def apply_layer(
    x: wp.array2d[float], weight: wp.array2d[float], bias: wp.array[float], activation: int, y: wp.array2d[float]
):
    """Compute a linear layer and its activation; one thread per row and output.

    Args:
        x: Inputs, (rows, k).
        weight: (outputs, k).
        bias: (outputs,).
        activation: LINEAR, SOFTSIGN, ELU, RELU or TANH.
        y: Output, (rows, outputs).
    """
    row, i = wp.tid()
    value = bias[i]
    for k in range(weight.shape[1]):
        value += weight[i, k] * x[row, k]
    if activation == SOFTSIGN:
        value = value / (1.0 + wp.abs(value))
    elif activation == ELU:
        value = wp.where(value > 0.0, value, wp.exp(wp.min(value, 0.0)) - 1.0)
    elif activation == RELU:
        value = wp.where(value < 0.0, 0.0, value)
    elif activation == TANH:
        value = wp.tanh(value)
    y[row, i] = value


@wp.kernel
def send_torques(
    outputs: wp.array2d[float], ctrl_ids: wp.array[int], scale: float, effort_limit: float, ctrl: wp.array2d[float]
):
    """Scale and limit the outputs of the networks; one thread per env and motor.

    Args:
        outputs: (num_envs * motors, 1).
        ctrl_ids: Actuator of each motor.
        scale: Torque per unit of output.
        effort_limit: Maximum torque.
        ctrl: Output: torques, (num_envs, nu).
    """
    env, i = wp.tid()
    torque = scale * outputs[env * ctrl_ids.shape[0] + i, 0]
    ctrl[env, ctrl_ids[i]] = limited(torque, -effort_limit, effort_limit)
