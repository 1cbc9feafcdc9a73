"""An arm that reaches for poses, and one that lifts a cube: the robot is the Franka Emika Panda's published parameters, in arm.xml.

Weights of rewards are per second.
"""

from __future__ import annotations

import dataclasses
import math

from mjlab_dist.config import (
    ActionConfig,
    ActuatorConfig,
    AgentConfig,
    EntityConfig,
    EnvConfig,
    EventConfig,
    ObservationConfig,
    ParamValue,
    RewardConfig,
    SimConfig,
    TermConfig,
    TrainConfig,
)

_TERMS = "mjlab_dist.mdp.observations"
_REWARDS = "mjlab_dist.mdp.rewards"
_EVENTS = "mjlab_dist.mdp.events"
_COMMANDS = "mjlab_dist.mdp.commands"
_ARM = "mjlab_dist_tasks.arm.terms"

_STEP_S = 0.02

_JOINTS = ("joint[1-7]",)

_CUBE = "cube/root"

_LIFTED_M = {"low_m": 0.02, "high_m": 0.07}
"""From where the cube's middle is on the table to where it has clearly left it."""


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
"""Limits of torque and speed are the maker's (frankaemika.github.io/docs/control_parameters.html), gains those of its example of joint
impedance control (github.com/frankaemika/libfranka, examples/joint_impedance_control.cpp at commit 01392b6)."""


def reach() -> TrainConfig:
    """A 7-joint arm brings its gripper to poses above a table, again and again."""
    return TrainConfig(
        task="arm-reach",
        num_envs=256,
        max_iterations=500,
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
                    "target": ObservationConfig(func=f"{_TERMS}:command", params={"name": "target"}),
                    "last_action": ObservationConfig(func=f"{_TERMS}:last_action"),
                }
            },
            rewards={
                "near": _per_second(0.5, f"{_ARM}:AtPosition", command="target", scale_m=0.3),
                "at_position": _per_second(1.0, f"{_ARM}:AtPosition", command="target", scale_m=0.05),
                "at_orientation": _per_second(0.5, f"{_ARM}:AtOrientation", command="target", scale_rad=0.5),
                **_smooth(),
            },
            events={"joints": _event_joints(0.25)},
            commands={
                "target": TermConfig(
                    func=f"{_COMMANDS}:Pose",
                    params={
                        "x_m": (0.35, 0.65),
                        "y_m": (-0.25, 0.25),
                        "z_m": (0.15, 0.5),
                        "roll_rad": (math.pi, math.pi),  # fingers down, as at home
                        "yaw_rad": (-1.0, 1.0),
                        "resample_s": (4.0, 6.0),
                        "marker": "target",
                    },
                )
            },
        ),
    )


def lift_cube() -> TrainConfig:
    """A 7-joint arm takes a cube from a table and holds it where it is told to."""
    return TrainConfig(
        task="arm-lift-cube",
        num_envs=256,
        max_iterations=500,
        agent=dataclasses.replace(_AGENT, entropy_coef=0.005),
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
                # From closed to open; without an action half as wide again as the cube.
                "gripper": ActionConfig(actuators=("gripper",), scale=0.06, offset=0.06, clip=(-1.0, 1.0 / 3.0)),
            },
            observations={
                "actor": {
                    **_proprioception((*_JOINTS, "left_finger")),
                    "cube": ObservationConfig(func=f"{_TERMS}:joint_position", params={"joint": _CUBE}),
                    "gripper_to_cube": ObservationConfig(func=f"{_ARM}:GripperToCube", params={"cube": _CUBE}),
                    "cube_to_target": ObservationConfig(
                        func=f"{_ARM}:cube_to_target", params={"cube": _CUBE, "command": "target"}
                    ),
                    "last_action": ObservationConfig(func=f"{_TERMS}:last_action"),
                }
            },
            rewards={
                "near_cube": _per_second(1.0, f"{_ARM}:AtCube", cube=_CUBE, scale_m=0.2),
                "at_cube": _per_second(1.0, f"{_ARM}:AtCube", cube=_CUBE, scale_m=0.04),
                "grasp": _per_second(1.0, f"{_ARM}:Grasp", cube=_CUBE, sensor="pads", most_m=0.02),
                "height": _per_second(3.0, f"{_ARM}:height", cube=_CUBE, **_LIFTED_M),
                "near_target": _at_target(5.0, 0.3),
                "at_target": _at_target(5.0, 0.05),
                **_smooth(),
            },
            terminations={
                "off_table": TermConfig(
                    func=f"{_ARM}:off_table", params={"cube": _CUBE, "x_m": (-0.25, 1.05), "y_m": (-0.6, 0.6)}
                )
            },
            events={
                "joints": _event_joints(0.1),
                "cube": EventConfig(
                    func=f"{_EVENTS}:DrawRoot",
                    params={"x_m": (-0.1, 0.1), "y_m": (-0.2, 0.2), "joint": _CUBE},
                ),
            },
            commands={
                "target": TermConfig(
                    func=f"{_COMMANDS}:Pose",
                    params={
                        "x_m": (0.4, 0.6),
                        "y_m": (-0.2, 0.2),
                        "z_m": (0.2, 0.4),
                        "roll_rad": (math.pi, math.pi),
                        "marker": "target",
                    },
                )
            },
            sensors={
                "pads": TermConfig(
                    func="mjlab_dist.mdp.sensors:Contact",
                    params={"sensors": ("left_pad_contact", "right_pad_contact")},
                )
            },
        ),
    )


_AGENT = AgentConfig(
    num_steps_per_env=32,
    actor_hidden_dims=(128, 128),
    critic_hidden_dims=(128, 128),
    obs_normalization=True,
    entropy_coef=0.002,
    use_clipped_value_loss=False,
)


def _proprioception(joints: tuple[str, ...]) -> dict[str, ObservationConfig]:
    return {
        "joint_positions": ObservationConfig(func=f"{_TERMS}:JointPositions", params={"joints": joints}),
        "joint_velocities": ObservationConfig(func=f"{_TERMS}:JointVelocities", params={"joints": joints}),
    }


def _per_second(weight: float, func: str, **params: ParamValue) -> RewardConfig:
    return RewardConfig(func=func, weight=weight * _STEP_S, params=params)


def _smooth() -> dict[str, RewardConfig]:
    return {
        "action_rate": _per_second(-0.005, f"{_REWARDS}:action_rate"),
        "joint_velocity": _per_second(-0.005, f"{_REWARDS}:JointVelocity", joints=_JOINTS),
    }


def _at_target(weight: float, scale_m: float) -> RewardConfig:
    return _per_second(weight, f"{_ARM}:cube_at_target", cube=_CUBE, command="target", scale_m=scale_m, **_LIFTED_M)


def _event_joints(most_rad: float) -> EventConfig:
    return EventConfig(func=f"{_EVENTS}:DrawJoints", params={"joints": _JOINTS, "position": (-most_rad, most_rad)})
