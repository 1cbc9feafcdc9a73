"""A humanoid that walks as it is told: the robot is the Unitree G1's published description with 23 joints, in humanoid.xml.

Rewards are those of the locomotion literature (Rudin et al. 2022, arXiv:2109.11978; for bipeds Siekmann et al. 2021,
arXiv:2011.01387): velocity tracking, an upright and quiet trunk, feet that follow a clock, smooth actions. Weights are per second.
"""

from __future__ import annotations

from mjlab_dist.config import (
    ActionConfig,
    ActuatorConfig,
    AgentConfig,
    EnvConfig,
    EventConfig,
    ObservationConfig,
    ParamValue,
    RandomizationConfig,
    RewardConfig,
    SimConfig,
    TermConfig,
    TrainConfig,
)

_TERMS = "mjlab_dist.mdp.observations"
_REWARDS = "mjlab_dist.mdp.rewards"
_EVENTS = "mjlab_dist.mdp.events"
_TERMINATIONS = "mjlab_dist.mdp.terminations"
_HUMANOID = "mjlab_dist_tasks.humanoid.terms"

_STEP_S = 0.02

_PERIOD_S = 0.8
"""Two steps: at 1 m/s they are 0.4 m long each, two thirds of a leg."""

_STANDING_M = 0.777
"""Height of the pelvis standing."""

_MOTORS = {
    "hips_and_waist": ActuatorConfig(
        joints=(".*_hip_pitch", ".*_hip_yaw", "waist_yaw"),
        stiffness=200.0,
        damping=6.0,
        effort_limit=88.0,
        velocity_limit=32.0,
    ),
    "hip_rolls_and_knees": ActuatorConfig(
        joints=(".*_hip_roll", ".*_knee"),
        stiffness=300.0,
        damping=9.0,
        effort_limit=139.0,
        velocity_limit=20.0,
    ),
    "ankles": ActuatorConfig(
        joints=(".*_ankle_pitch", ".*_ankle_roll"),
        stiffness=200.0,
        damping=4.0,
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
"""Torque and speed limits as in the maker's description (see humanoid.xml). Gains are this project's: stiff enough that the robot
stands still where it is told to, without a policy; hips and knees are about as stiff as usual for this robot, ankles stiffer."""


def velocity_flat() -> TrainConfig:
    """A humanoid of 23 joints walks over flat ground as fast and where it is told, and is pushed."""
    return TrainConfig(
        task="humanoid-velocity-flat",
        num_envs=256,
        max_iterations=3000,
        agent=AgentConfig(
            num_steps_per_env=24,
            actor_hidden_dims=(256, 128, 64),
            critic_hidden_dims=(256, 128, 64),
            obs_normalization=True,
            init_std=0.5,
            entropy_coef=0.003,
            use_clipped_value_loss=False,
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
                "joints": ActionConfig(actuators=(".*",), scale=0.25, offset="home", latency=(0, 1)),
            },
            observations={"actor": _observations(noise=1.0), "critic": _observations(noise=0.0) | _privileged()},
            rewards=_rewards(),
            terminations={
                "tilted": TermConfig(func=f"{_TERMINATIONS}:tilted", params={"most_rad": 1.0}),
                "too_low": TermConfig(func=f"{_TERMINATIONS}:too_low", params={"least_m": 0.45}),
            },
            events={
                "root": EventConfig(
                    func=f"{_EVENTS}:DrawRoot", params={"yaw_rad": (-3.14, 3.14), "linear_m_s": (-0.3, 0.3)}
                ),
                "joints": EventConfig(func=f"{_EVENTS}:DrawJoints", params={"position": (-0.1, 0.1)}),
                "push": EventConfig(
                    func=f"{_EVENTS}:Push",
                    params={"linear_m_s": (-0.5, 0.5)},
                    when="interval",
                    interval_s=(5.0, 10.0),
                ),
            },
            randomizations=_randomizations(),
            commands={
                "velocity": TermConfig(
                    func="mjlab_dist.mdp.commands:Velocity",
                    params={
                        "forward_m_s": (-0.3, 1.0),
                        "left_m_s": (-0.3, 0.3),
                        "yaw_rad_s": (-0.5, 0.5),
                        "resample_s": (5.0, 10.0),
                        "standing_share": 0.1,
                    },
                )
            },
            sensors={
                "feet": TermConfig(
                    func="mjlab_dist.mdp.sensors:Contact",
                    params={"sensors": ("left_foot_contact", "right_foot_contact")},
                )
            },
        ),
    )


def _observations(noise: float) -> dict[str, ObservationConfig]:
    """What the robot's own sensors tell it; noise is a factor."""
    return {
        "angular_velocity": ObservationConfig(func=f"{_TERMS}:base_angular_velocity", uniform_noise=0.2 * noise),
        "gravity": ObservationConfig(func=f"{_TERMS}:projected_gravity", uniform_noise=0.05 * noise),
        "command": ObservationConfig(func=f"{_TERMS}:command", params={"name": "velocity"}),
        "clock": ObservationConfig(func=f"{_HUMANOID}:clock", params={"command": "velocity", "period_s": _PERIOD_S}),
        "joint_positions": ObservationConfig(func=f"{_TERMS}:JointPositions", uniform_noise=0.01 * noise),
        "joint_velocities": ObservationConfig(func=f"{_TERMS}:JointVelocities", uniform_noise=1.0 * noise),
        "last_action": ObservationConfig(func=f"{_TERMS}:last_action"),
    }


def _privileged() -> dict[str, ObservationConfig]:
    """What only a simulation knows."""
    return {
        "linear_velocity": ObservationConfig(func=f"{_TERMS}:base_linear_velocity"),
        "height": ObservationConfig(func=f"{_TERMS}:base_height"),
        "contact_force": ObservationConfig(func=f"{_TERMS}:contact_force", params={"sensor": "feet"}, scale=0.01),
    }


def _rewards() -> dict[str, RewardConfig]:
    def per_second(weight: float, func: str, **params: ParamValue) -> RewardConfig:
        return RewardConfig(func=func, weight=weight * _STEP_S, params=params)

    sites = ("left_foot", "right_foot")
    return {
        "linear_velocity": per_second(1.0, f"{_REWARDS}:track_heading_velocity", command="velocity"),
        "yaw_rate": per_second(0.5, f"{_REWARDS}:track_yaw_rate", command="velocity"),
        "alive": per_second(0.5, f"{_REWARDS}:alive"),
        "gait": per_second(0.5, f"{_HUMANOID}:gait", sensor="feet", command="velocity", period_s=_PERIOD_S),
        "swing_height": per_second(-20.0, f"{_HUMANOID}:SwingHeight", sensor="feet", sites=sites, target_m=0.08),
        "foot_slip": per_second(
            -0.2, f"{_REWARDS}:FootSlip", sensor="feet", velocities=tuple(f"{site}_velocity" for site in sites)
        ),
        "tilt": per_second(-2.0, f"{_REWARDS}:tilt"),
        "tilt_rate": per_second(-0.05, f"{_REWARDS}:tilt_rate"),
        "vertical_velocity": per_second(-1.0, f"{_REWARDS}:vertical_velocity"),
        "height": per_second(-10.0, f"{_REWARDS}:height_error", target_m=_STANDING_M),
        "side_joints": per_second(
            -0.2, f"{_REWARDS}:JointDeviation", joints=(".*_hip_roll", ".*_hip_yaw", ".*_ankle_roll")
        ),
        "upper_joints": per_second(
            -0.1,
            f"{_REWARDS}:JointDeviation",
            joints=("waist_yaw", ".*_shoulder_.*", ".*_elbow", ".*_wrist_roll"),
        ),
        "joint_limits": per_second(-5.0, f"{_REWARDS}:JointLimits"),
        "joint_acceleration": per_second(-2.5e-7, f"{_REWARDS}:JointAcceleration"),
        "action_rate": per_second(-0.01, f"{_REWARDS}:action_rate"),
        "fall": RewardConfig(func=f"{_REWARDS}:terminated", weight=-1.0),
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
