"""A humanoid that follows velocity commands. humanoid.xml describes the Unitree G1 with 23 joints, from published data.

The rewards are common in the literature on locomotion: velocity tracking, an upright and steady trunk, and smooth
actions (Rudin et al. 2022, arXiv:2109.11978), and feet that follow a clock (Siekmann et al. 2021, arXiv:2011.01387).
Weights are per second: while a robot follows its command and the clock exactly, it earns 1 + 3 + 1.5 + 1, and 1.3 for
lifting its feet, minus the costs of moving.
"""

from __future__ import annotations

from mjlab_dist.config import (
    ActionConfig,
    ActuatorConfig,
    EnvConfig,
    ObservationConfig,
    PpoConfig,
    RandomizationConfig,
    RewardConfig,
    SimConfig,
    SymmetryConfig,
    TrainConfig,
    event,
    observation,
    reward,
    term,
    termination,
)
from mjlab_dist.mdp import commands, events, observations, rewards, sensors, terminations

_STANDING_M = 0.777
"""Height of the pelvis when the robot stands."""

_MOTORS = {
    "hips_and_waist": ActuatorConfig(
        joints=(".*_hip_pitch", ".*_hip_yaw", "waist_yaw"),
        stiffness=100.0,
        damping=9.0,
        effort_limit=88.0,
        velocity_limit=32.0,
    ),
    "hip_rolls_and_knees": ActuatorConfig(
        joints=(".*_hip_roll", ".*_knee"),
        stiffness=150.0,
        damping=13.0,
        effort_limit=139.0,
        velocity_limit=20.0,
    ),
    "ankles": ActuatorConfig(
        joints=(".*_ankle_pitch", ".*_ankle_roll"),
        stiffness=60.0,
        damping=6.0,
        effort_limit=50.0,
        velocity_limit=37.0,
    ),
    "arms": ActuatorConfig(
        joints=(".*_shoulder_.*", ".*_elbow", ".*_wrist_roll"),
        stiffness=40.0,
        damping=1.5,
        effort_limit=25.0,
        velocity_limit=37.0,
    ),
}
"""Torque and speed limits are those of the manufacturer's description (see humanoid.xml). The gains were chosen for
this project: with a third of this damping, robots learn several times as slowly (docs/lab.md). They do not hold the
robot upright without a policy."""


def velocity_flat() -> TrainConfig:
    """Follow velocity commands on flat ground with a humanoid of 23 joints."""
    return TrainConfig(
        task="humanoid-velocity-flat",
        total_num_envs=256,
        gpu_num_envs=4096,
        max_iterations=1300,
        # Settings for 256 envs, which walk within 21 minutes on two cores (docs/lab.md has alternatives)
        agent=PpoConfig(
            num_steps_per_env=24,
            num_learning_epochs=3,
            num_mini_batches=16,
            schedule="linear",
            gamma=0.98,
            init_std=0.5,
            actor_hidden_dims=(256, 128),
            critic_hidden_dims=(256, 128),
            obs_normalization=True,
            entropy_coef=0.001,
            symmetry=SymmetryConfig(use_data_augmentation=True),
        ),
        env=EnvConfig(
            sim=SimConfig(
                model="mjlab_dist_tasks.humanoid:humanoid.xml",
                keyframe="home",
                actuators=_MOTORS,
                decimation=4,
                njmax=72,
                nconmax=20,
                forward_before_observation=False,
            ),
            episode_length_s=20.0,
            actions={
                "joints": ActionConfig(
                    actuators=(".*",),
                    # Legs move most, because turning trunks and arms turn the pelvis
                    scale={".*_(hip_.*|knee|ankle_.*)": 0.25, ".*": 0.1},
                    offset="home",
                    latency=(0, 1),
                ),
            },
            observations={"actor": _observations(noise=1.0), "critic": _observations(noise=0.0) | _privileged()},
            rewards=_rewards(),
            reward_scale="dt",
            terminations={
                "tilted": termination(terminations.tilted, max_rad=1.0),
                "too_low": termination(terminations.too_low, min_m=0.45),
            },
            events={
                "root": event(events.DrawRoot, yaw_rad=(-3.14, 3.14), linear_m_s=(-0.3, 0.3)),
                "joints": event(events.DrawJoints, position=(-0.1, 0.1)),
                "push": event(events.Push, linear_m_s=(-0.5, 0.5)).every(5.0, 10.0),
            },
            randomizations=_randomizations(),
            commands={
                "velocity": term(
                    commands.Velocity,
                    forward_m_s=(-0.3, 1.0),
                    left_m_s=(-0.3, 0.3),
                    yaw_rad_s=(-0.5, 0.5),
                    resample_s=(5.0, 10.0),
                    standing_share=0.25,
                    heading_share=0.5,
                )
            },
            sensors={
                "gait": term(
                    sensors.Gait,
                    feet=("(left|right)_foot",),
                    offsets=(0.0, 0.5),
                    frequency_hz=50 / 34,  # half a period is a whole number of control steps
                    command="velocity",
                    still_m_s=0.15,  # the soft motors alone do not hold a pushed robot (docs/lab.md)
                ),
                "feet": term(sensors.Contact, sensors=("left_foot_contact", "right_foot_contact")),
            },
        ),
    )


def _observations(noise: float) -> dict[str, ObservationConfig]:
    """Return the observations that a real robot also has or estimates; ``noise`` scales the noise of its sensors."""
    return {
        "linear_velocity": observation(observations.base_linear_velocity).processed(uniform_noise=0.1 * noise),
        "angular_velocity": observation(observations.base_angular_velocity).processed(uniform_noise=0.2 * noise),
        "gravity": observation(observations.projected_gravity).processed(uniform_noise=0.05 * noise),
        "command": observation(observations.command, name="velocity"),
        "joint_positions": observation(observations.JointPositions).processed(uniform_noise=0.01 * noise),
        "joint_velocities": observation(observations.JointVelocities).processed(uniform_noise=1.0 * noise),
        "last_action": observation(observations.last_action),
        "gait": observation(observations.gait_clock, sensor="gait"),
    }


def _privileged() -> dict[str, ObservationConfig]:
    """Return privileged observations, which are known only in simulation."""
    return {
        "height": observation(observations.base_height),
        "feet_in_contact": observation(observations.in_contact, sensor="feet"),
        "feet_in_the_air": observation(observations.air_time, sensor="feet").processed(clip=(0.0, 1.0)),
    }


def _rewards() -> dict[str, RewardConfig]:
    velocities = ("left_foot_velocity", "right_foot_velocity")
    side_joints = (".*_hip_roll", ".*_ankle_roll")
    upper_joints = ("waist_yaw", ".*_shoulder_.*", ".*_elbow", ".*_wrist_roll")
    return {
        "alive": reward(1.0, rewards.alive),
        "track_linear_velocity": reward(3.0, rewards.track_heading_velocity, command="velocity", std_m_s=0.4),
        "track_yaw_rate": reward(1.5, rewards.track_yaw_rate, command="velocity", std_rad_s=0.8),
        "gait": reward(1.0, rewards.scheduled_contacts, gait="gait", contacts="feet"),
        "foot_lift": reward(2.0, rewards.FootLift, gait="gait", height_m=0.08),
        "foot_slip": reward(-0.2, rewards.FootSlip, sensor="feet", velocities=velocities),
        "tilt": reward(-5.0, rewards.tilt),
        "tilt_rate": reward(-0.05, rewards.tilt_rate),
        "vertical_velocity": reward(-1.0, rewards.vertical_velocity),
        "height": reward(-10.0, rewards.height_error, target_m=_STANDING_M),
        "side_joints": reward(-0.2, rewards.JointDeviation, joints=side_joints),
        "upper_joints": reward(-0.1, rewards.JointDeviation, joints=upper_joints),
        "joint_limits": reward(-5.0, rewards.JointLimits),
        "joint_acceleration": reward(-2.5e-7, rewards.JointAcceleration),
        "action_rate": reward(-0.02, rewards.action_rate),
        # A fall costs 1: the weight of 50 per second is multiplied by the length of a control step, 0.02 s
        "fall": reward(-50.0, rewards.terminated),
    }


def _randomizations() -> dict[str, RandomizationConfig]:
    return {
        "friction": RandomizationConfig(
            field="geom_friction",
            names=(".*_(heel|toe)_.*",),
            columns=(0,),
            low=0.4,
            high=1.0,
            operation="set",
            shared=True,
        ),
        "load": RandomizationConfig(field="body_mass", names=("torso",), low=-1.0, high=2.0, operation="add"),
        "stiffness": RandomizationConfig(field="actuator_gainprm", columns=(4,), low=0.9, high=1.1),
        "damping": RandomizationConfig(field="actuator_gainprm", columns=(6,), low=0.9, high=1.1),
        "armature": RandomizationConfig(
            field="dof_armature", names=(".*_(hip|knee|ankle|shoulder|elbow|wrist).*", "waist_yaw"), low=0.8, high=1.2
        ),
    }
