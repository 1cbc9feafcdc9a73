"""A quadruped that follows velocity commands, after Rudin et al. 2022, "Learning to Walk in Minutes".

Noise, actions, pushes, friction and the terrain curriculum are those of the paper (arXiv:2109.11978). Costs have
smaller weights than in the paper, because a robot that cannot walk yet would otherwise learn to stand still. A gait
clock and the rewards for following it, as in Siekmann et al. 2021 (arXiv:2011.01387), replace the reward for air time:
without them, robots stand still for the first minutes. Weights are per second: while a robot follows its command and
the clock exactly, it earns 1 + 3 + 1.5 + 0.5, and 1.3 for lifting its feet, minus the costs of moving.
"""

from __future__ import annotations

import dataclasses

from mjlab_dist.config import (
    ActionConfig,
    ActuatorConfig,
    EnvConfig,
    EventConfig,
    ObservationConfig,
    OptionsConfig,
    PpoConfig,
    RandomizationConfig,
    RewardConfig,
    SimConfig,
    SymmetryConfig,
    TermConfig,
    TerrainConfig,
    TerrainPartConfig,
    TrainConfig,
    event,
    observation,
    reward,
    term,
    termination,
)
from mjlab_dist.mdp import commands, curricula, events, height_scan, observations, rewards, sensors, terminations
from mjlab_dist_tasks.quadruped import terms

_LEGS = ("FL", "FR", "RL", "RR")

_JOINTS = (".*_(hip|thigh|calf)",)

_PI = 3.141592653589793


_AGENT = PpoConfig(
    num_steps_per_env=24,
    num_learning_epochs=3,
    num_mini_batches=16,
    schedule="linear",
    gamma=0.97,
    init_std=0.8,
    actor_hidden_dims=(128, 128),
    critic_hidden_dims=(128, 128),
    entropy_coef=0.004,
    symmetry=SymmetryConfig(use_data_augmentation=True),
)
"""Settings for 256 envs: within three minutes on two cores, the robot walks (docs/performance.md).
Many small mini-batches in few epochs need the least time. Learning with gamma 0.99 needs more samples (docs/lab.md)."""


def flat() -> TrainConfig:
    """Follow velocity commands on flat ground with a quadruped."""
    return TrainConfig(
        task="quadruped-velocity-flat",
        total_num_envs=256,
        gpu_num_envs=4096,
        max_iterations=390,
        agent=_AGENT,
        env=EnvConfig(
            sim=SimConfig(
                model="mjlab_dist_tasks.quadruped:quadruped.xml",
                actuators={
                    "legs": ActuatorConfig(
                        joints=_JOINTS, stiffness=30.0, damping=0.8, effort_limit=33.5, velocity_limit=21.0
                    )
                },
                keyframe="home",
                # Cheaper than the MJCF's options, with which trained policies are evaluated (docs/performance.md)
                options=OptionsConfig(timestep_s=0.02 / 3, cone="pyramidal"),
                decimation=3,
                njmax=48,
                nconmax=12,
                forward_before_observation=False,
            ),
            episode_length_s=10.0,
            actions={
                "joints": ActionConfig(actuators=_JOINTS, scale=0.25, offset="home", clip=(-10.0, 10.0), latency=(0, 1))
            },
            observations={"actor": _actor(), "critic": _critic()},
            rewards=_rewards(),
            reward_scale="dt",
            terminations={
                "trunk": termination(terminations.illegal_contact, sensor="trunk"),
                "tilt": termination(terminations.tilted, max_rad=1.0),
            },
            events=_events(),
            randomizations=_randomizations(),
            commands={
                "velocity": term(
                    commands.Velocity,
                    forward_m_s=(-1.0, 1.0),
                    left_m_s=(-0.5, 0.5),
                    yaw_rad_s=(-1.0, 1.0),
                    resample_s=(2.0, 5.0),
                    standing_share=0.1,
                    heading_share=0.5,
                )
            },
            sensors={
                "gait": term(
                    sensors.Gait,
                    feet=(".*_foot",),
                    offsets=(0.0, 0.5, 0.5, 0.0),  # a trot
                    frequency_hz=2.5,
                    command="velocity",
                    still_m_s=0.3,
                ),
                "feet": _contact(".*_foot_contact"),
                "legs": _contact(".*_(thigh|calf)_contact"),
                "trunk": _contact("trunk_contact"),
            },
        ),
    )


def rough() -> TrainConfig:
    """Follow velocity commands over rough ground, slopes, stairs, boxes and gaps with a quadruped."""
    easy = flat()
    ground = observation(height_scan.height_scan, sensor="ground").processed(clip=(-0.5, 0.5), scale=5.0)
    noisy = ground.processed(uniform_noise=0.05)
    seen = {name: dict(group) for name, group in easy.env.observations.items()}
    seen["actor"]["ground"], seen["critic"]["ground"] = noisy, ground
    # The critic does not observe the height, because it is measured from the tile's origin and not from the ground.
    del seen["critic"]["height"]
    velocity = easy.env.commands["velocity"]
    tilt = easy.env.rewards["tilt"]
    return dataclasses.replace(
        easy,
        task="quadruped-velocity-rough",
        max_iterations=1700,
        env=dataclasses.replace(
            easy.env,
            episode_length_s=20.0,
            sim=dataclasses.replace(easy.env.sim, terrain=_terrain(), njmax=64, nconmax=24),
            observations=seen,
            rewards={**easy.env.rewards, "tilt": dataclasses.replace(tilt, weight=0.1 * tilt.weight)},
            # A robot that leaves its tile goes on at the next level at once.
            terminations={**easy.env.terminations, "left_tile": termination(terminations.left_tile).as_time_out()},
            # Nearly all commands have a target heading, so robots walk in one direction and leave their tiles.
            commands={
                "velocity": dataclasses.replace(
                    velocity,
                    params={
                        **velocity.params,
                        "heading_share": 1.0,
                        "standing_share": 0.02,
                        "resample_s": (10.0, 10.0),
                    },
                )
            },
            sensors={
                **easy.env.sensors,
                "ground": term(height_scan.HeightScan, size_m=(1.2, 0.8), spacing_m=0.1, offset_m=0.27),
            },
            curricula={"terrain": term(curricula.TerrainLevels)},
        ),
    )


def _terrain() -> TerrainConfig:
    """Return terrain whose tiles range from nearly flat to barely passable for a robot with legs of 0.4 m.

    The shares of the kinds of tiles are those of the paper (section 3.3).
    """
    return TerrainConfig(
        parts={
            "rough": TerrainPartConfig(kind="rough", share=0.2, height_m=(0.0, 0.06), width_m=(0.2, 0.2)),
            "slope_up": TerrainPartConfig(kind="slope_up", share=0.1, slope=(0.0, 0.5)),
            "slope_down": TerrainPartConfig(kind="slope_down", share=0.1, slope=(0.0, 0.5)),
            "stairs_up": TerrainPartConfig(kind="stairs_up", share=0.2, height_m=(0.01, 0.12), width_m=(0.3, 0.3)),
            "stairs_down": TerrainPartConfig(kind="stairs_down", share=0.2, height_m=(0.01, 0.12), width_m=(0.3, 0.3)),
            "boxes": TerrainPartConfig(kind="boxes", share=0.1, height_m=(0.01, 0.12), width_m=(0.4, 0.8)),
            "gaps": TerrainPartConfig(kind="gaps", share=0.1, height_m=(0.1, 0.4), width_m=(0.1, 0.3)),
        }
    )


def _contact(pattern: str) -> TermConfig:
    return term(sensors.Contact, sensors=(pattern,))


def _actor(noise: float = 1.0) -> dict[str, ObservationConfig]:
    """Return the actor's observations, scaled to about 1, with the paper's noise (table 3) times ``noise``."""
    return {
        "linear_velocity": observation(observations.base_linear_velocity).processed(
            scale=2.0, uniform_noise=0.1 * noise
        ),
        "angular_velocity": observation(observations.base_angular_velocity).processed(
            scale=0.25, uniform_noise=0.2 * noise
        ),
        "gravity": observation(observations.projected_gravity).processed(uniform_noise=0.05 * noise),
        "command": observation(observations.command, name="velocity").processed(scale=2.0),
        "joint_positions": observation(observations.JointPositions, joints=_JOINTS).processed(
            uniform_noise=0.01 * noise
        ),
        "joint_velocities": observation(observations.JointVelocities, joints=_JOINTS).processed(
            scale=0.05, uniform_noise=1.5 * noise
        ),
        "last_action": observation(observations.last_action),
        "gait": observation(observations.gait_clock, sensor="gait"),
    }


def _critic() -> dict[str, ObservationConfig]:
    """Return the actor's observations without noise, and privileged observations."""
    feet = tuple(f"{leg}_foot" for leg in _LEGS)
    return {
        **_actor(noise=0.0),
        "feet_in_contact": observation(observations.in_contact, sensor="feet"),
        "feet_in_the_air": observation(observations.air_time, sensor="feet").processed(clip=(0.0, 1.0)),
        "height": observation(observations.base_height).processed(scale=5.0),
        "friction": observation(terms.FootFriction, geoms=feet),
        "added_mass": observation(terms.AddedMass, body="trunk"),
    }


def _rewards() -> dict[str, RewardConfig]:
    return {
        "alive": reward(1.0, rewards.alive),
        "track_linear_velocity": reward(3.0, rewards.track_linear_velocity, command="velocity"),
        "track_yaw_rate": reward(1.5, rewards.track_yaw_rate, command="velocity", std_rad_s=0.3),
        "gait": reward(0.5, rewards.scheduled_contacts, gait="gait", contacts="feet"),
        "foot_lift": reward(1.0, rewards.FootLift, gait="gait", height_m=0.06),
        "vertical_velocity": reward(-1.0, rewards.vertical_velocity),
        "tilt_rate": reward(-0.05, rewards.tilt_rate),
        "tilt": reward(-5.0, rewards.tilt),
        "torque": reward(-1e-4, rewards.actuator_force),
        "joint_acceleration": reward(-1e-7, rewards.JointAcceleration, joints=_JOINTS),
        "action_rate": reward(-0.01, rewards.action_rate),
        "posture": reward(-0.05, rewards.JointDeviation, joints=_JOINTS),
        "joint_limits": reward(-1.0, rewards.JointLimits, joints=_JOINTS),
        "leg_contacts": reward(-1.0, rewards.contacts, sensor="legs", min_n=0.1),
    }


def _events() -> dict[str, EventConfig]:
    return {
        "joints": event(events.DrawJoints, joints=_JOINTS, position=(-0.2, 0.2), velocity=(-0.5, 0.5)),
        "root": event(
            events.DrawRoot,
            z_m=(0.0, 0.05),
            roll_rad=(-0.1, 0.1),
            pitch_rad=(-0.1, 0.1),
            yaw_rad=(-_PI, _PI),
            linear_m_s=(-0.5, 0.5),
            angular_rad_s=(-0.5, 0.5),
        ),
        "push": event(events.Push, linear_m_s=(-0.5, 0.5)).every(8.0, 15.0),
    }


def _randomizations() -> dict[str, RandomizationConfig]:
    """Return randomizations of friction, as in the paper (section 3.4), and of mass, center of mass and gains."""
    return {
        "friction": RandomizationConfig(
            field="geom_friction", names=(".*_foot",), columns=(0,), low=0.5, high=1.25, operation="set", shared=True
        ),
        "trunk_mass": RandomizationConfig(field="body_mass", names=("trunk",), low=-1.0, high=1.0, operation="add"),
        "trunk_com": RandomizationConfig(field="body_ipos", names=("trunk",), low=-0.02, high=0.02, operation="add"),
        "stiffness": RandomizationConfig(field="actuator_gainprm", columns=(4,), low=0.9, high=1.1),
        "damping": RandomizationConfig(field="actuator_gainprm", columns=(6,), low=0.9, high=1.1),
    }
