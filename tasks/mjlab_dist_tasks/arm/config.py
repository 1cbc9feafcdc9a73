"""An arm that reaches for poses or lifts a cube. arm.xml follows the Franka Emika Panda's published parameters.

Weights of rewards are per second: they are multiplied by the length of a control step.
"""

from __future__ import annotations

import math

from mjlab_dist.config import (
    ActionConfig,
    ActuatorConfig,
    EntityConfig,
    EnvConfig,
    EventConfig,
    ObservationConfig,
    PpoConfig,
    RewardConfig,
    SimConfig,
    TermConfig,
    TrainConfig,
    event,
    metric,
    observation,
    reward,
    term,
    termination,
)
from mjlab_dist.mdp import commands, events, observations, rewards, sensors
from mjlab_dist_tasks.arm import terms

_JOINTS = ("joint[1-7]",)

_CUBE = "cube/root"

_ON_TABLE_M = 0.02
"""Height of the cube's center while the cube is on the table."""

_LIFTED_M = 0.07
"""Minimum height of the center of a lifted cube."""


def _motor(joint: str, stiffness: float, damping: float, effort_limit: float, velocity_limit: float) -> ActuatorConfig:
    return ActuatorConfig(
        joints=(joint,),
        stiffness=stiffness,
        damping=damping,
        effort_limit=effort_limit,
        velocity_limit=velocity_limit,
    )


_MOTORS = {
    "joints_1_to_4": _motor("joint[1-4]", 600.0, 50.0, 87.0, 2.175),
    "joint_5": _motor("joint5", 250.0, 30.0, 12.0, 2.61),
    "joint_6": _motor("joint6", 150.0, 25.0, 12.0, 2.61),
    "joint_7": _motor("joint7", 50.0, 15.0, 12.0, 2.61),
}
"""Torque and speed limits are from the manufacturer (frankaemika.github.io/docs/control_parameters.html), and the gains
from its example of joint impedance control (github.com/frankaemika/libfranka, examples/joint_impedance_control.cpp at
commit 01392b6)."""


def reach() -> TrainConfig:
    """Move the gripper of a 7-joint arm to poses above a table, one after another."""
    return TrainConfig(
        task="arm-reach",
        total_num_envs=256,
        gpu_num_envs=4096,
        max_iterations=400,
        agent=_AGENT,
        env=EnvConfig(
            sim=SimConfig(
                model="mjlab_dist_tasks.arm:arm.xml",
                keyframe="home",
                actuators=_MOTORS,
                decimation=4,
                njmax=32,
                nconmax=8,
                forward_before_observation=False,
            ),
            episode_length_s=10.0,
            actions={"joints": ActionConfig(actuators=_JOINTS, scale=0.5, offset="home")},
            observations={
                "actor": {
                    **_proprioception(_JOINTS),
                    "target": observation(observations.command, name="target"),
                    "last_action": observation(observations.last_action),
                }
            },
            rewards={
                "near": reward(0.5, terms.AtPosition, command="target", scale_m=0.3),
                "at_position": reward(1.0, terms.AtPosition, command="target", scale_m=0.05),
                "at_orientation": reward(0.5, terms.AtOrientation, command="target", scale_rad=0.5),
                **_smooth(),
            },
            reward_scale="dt",
            events={"joints": _draw_joints(0.25)},
            commands={
                "target": term(
                    commands.Pose,
                    x_m=(0.35, 0.65),
                    y_m=(-0.25, 0.25),
                    z_m=(0.15, 0.5),
                    roll_rad=(math.pi, math.pi),  # fingers down, as in the start state
                    yaw_rad=(-1.0, 1.0),
                    resample_s=(4.0, 6.0),
                    marker="target",
                )
            },
        ),
    )


def lift_cube() -> TrainConfig:
    """Lift a cube from a table with a 7-joint arm, and hold it at a target."""
    return TrainConfig(
        task="arm-lift-cube",
        total_num_envs=256,
        gpu_num_envs=4096,
        max_iterations=400,
        agent=_AGENT,
        env=EnvConfig(
            sim=SimConfig(
                model="mjlab_dist_tasks.arm:arm.xml",
                entities={"cube": EntityConfig(model="mjlab_dist_tasks.arm:cube.xml")},
                keyframe="over_table",
                actuators=_MOTORS,
                decimation=4,
                njmax=128,
                nconmax=24,
                forward_before_observation=False,
            ),
            episode_length_s=5.0,
            actions={
                "joints": ActionConfig(actuators=_JOINTS, scale=0.25, offset="home"),
                # An action of -1 closes the gripper, and 1/3 opens it. At 0, the gap is 1.5 times as wide as the cube.
                "gripper": ActionConfig(actuators=("gripper",), scale=0.06, offset=0.06, clip=(-1.0, 1.0 / 3.0)),
            },
            observations={
                "actor": {
                    **_proprioception((*_JOINTS, "left_finger")),
                    "cube": observation(observations.joint_position, joint=_CUBE),
                    "gripper_to_cube": observation(terms.GripperToCube, cube=_CUBE),
                    "cube_to_target": observation(terms.cube_to_target, cube=_CUBE, command="target"),
                    "last_action": observation(observations.last_action),
                }
            },
            rewards={
                "near_cube": reward(1.0, terms.AtCube, cube=_CUBE, scale_m=0.2),
                "at_cube": reward(1.0, terms.AtCube, cube=_CUBE, scale_m=0.04),
                "grasp": reward(1.0, terms.Grasp, cube=_CUBE, sensor="pads", max_m=0.02),
                "height": reward(3.0, terms.height, cube=_CUBE, low_m=_ON_TABLE_M, high_m=_LIFTED_M),
                "near_target": _at_target(5.0, 0.3),
                "at_target": _at_target(5.0, 0.05),
                **_smooth(),
            },
            reward_scale="dt",
            terminations={"off_table": termination(terms.off_table, cube=_CUBE, x_m=(-0.25, 1.05), y_m=(-0.6, 0.6))},
            events={
                "joints": _draw_joints(0.1),
                "cube": event(events.DrawRoot, x_m=(-0.1, 0.1), y_m=(-0.2, 0.2), joint=_CUBE),
            },
            commands={"target": _cube_target()},
            sensors={"pads": term(sensors.Contact, sensors=("left_pad_contact", "right_pad_contact"))},
            metrics={"success": metric(terms.is_at_target, "last", cube=_CUBE, command="target", max_m=0.05)},
        ),
    )


_AGENT = PpoConfig(
    num_steps_per_env=24,
    num_learning_epochs=3,
    num_mini_batches=16,
    schedule="linear",
    gamma=0.97,
    init_std=0.8,
    actor_hidden_dims=(128, 128),
    critic_hidden_dims=(128, 128),
    obs_normalization=True,
    entropy_coef=0.004,
    use_clipped_value_loss=False,
)
"""Settings for 256 envs, which need the least time on two cores (docs/lab.md)."""


def _proprioception(joints: tuple[str, ...]) -> dict[str, ObservationConfig]:
    return {
        "joint_positions": observation(observations.JointPositions, joints=joints),
        "joint_velocities": observation(observations.JointVelocities, joints=joints),
    }


def _smooth() -> dict[str, RewardConfig]:
    return {
        "action_rate": reward(-0.005, rewards.action_rate),
        "joint_velocity": reward(-0.005, rewards.JointVelocity, joints=_JOINTS),
    }


def _cube_target() -> TermConfig:
    return term(
        commands.Pose,
        x_m=(0.4, 0.6),
        y_m=(-0.2, 0.2),
        z_m=(0.2, 0.4),
        roll_rad=(math.pi, math.pi),
        marker="target",
    )


def _at_target(weight: float, scale_m: float) -> RewardConfig:
    return reward(
        weight,
        terms.cube_at_target,
        cube=_CUBE,
        command="target",
        scale_m=scale_m,
        low_m=_ON_TABLE_M,
        high_m=_LIFTED_M,
    )


def _draw_joints(max_rad: float) -> EventConfig:
    return event(events.DrawJoints, joints=_JOINTS, position=(-max_rad, max_rad))
