"""The task example-push."""

import math

from example_tasks.push import terms
from mjlab_dist.config import (
    ActionConfig,
    ActuatorConfig,
    ContactConfig,
    EntityConfig,
    EnvConfig,
    PpoConfig,
    RandomizationConfig,
    SimConfig,
    TrainConfig,
    event,
    metric,
    observation,
    reward,
    term,
    termination,
)
from mjlab_dist.mdp import commands, events, observations, rewards, sensors

_BOX = "box/root"

_REACH_M = 0.3


def push() -> TrainConfig:
    """Push a box to a goal on a table; masses, friction, motors, delays and noise differ from env to env."""
    return TrainConfig(
        task="example-push",
        num_envs=256,
        max_iterations=150,
        env=_env(),
        agent=PpoConfig(
            num_steps_per_env=32,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            obs_normalization=True,
            entropy_coef=0.005,
            use_clipped_value_loss=False,
        ),
    )


def _env() -> EnvConfig:
    return EnvConfig(
        sim=SimConfig(
            model="example_tasks.push:pusher.xml",
            # Contacts of the pusher with the box
            contacts={
                "touch": ContactConfig(kind="geom", names=("pusher",), other_kind="geom", other_names=("box/box",))
            },
            entities={"box": EntityConfig(model="example_tasks.push:box.xml", pos=(0.0, 0.0, 0.05))},
            actuators={
                "slides": ActuatorConfig(joints=("x", "y"), kind="velocity", damping=40.0, effort_limit=20.0),
            },
            decimation=8,
            njmax=32,
            nconmax=8,
            forward_before_observation=False,
        ),
        episode_length_s=6.0,
        actions={"velocity": ActionConfig(actuators=("x", "y"), scale=0.5, clip=(-2.0, 2.0), latency=(0, 1))},
        observations={
            "actor": {
                "pusher_to_box": observation(terms.pusher_to_box).processed(uniform_noise=0.003),
                "box_to_goal": observation(terms.box_to_goal, command="goal").processed(uniform_noise=0.003),
                "box_angle": observation(terms.box_angle).processed(uniform_noise=0.02, delay=(0, 1)),
                "velocity": observation(observations.JointVelocities, joints=("x", "y")),
                "touch": observation(observations.in_contact, sensor="touch"),
                "last_action": observation(observations.last_action),
            },
            "critic": {
                "pusher_to_box": observation(terms.pusher_to_box),
                "box_to_goal": observation(terms.box_to_goal, command="goal"),
                "box_angle": observation(terms.box_angle),
                "box_velocity": observation(observations.joint_velocity, joint=_BOX),
                "velocity": observation(observations.JointVelocities, joints=("x", "y")),
                "last_action": observation(observations.last_action),
            },
        },
        reward_scale="dt",
        rewards={
            "near_goal": reward(2.0, terms.at_goal, command="goal", scale_m=0.3),
            "at_goal": reward(3.0, terms.at_goal, command="goal", scale_m=0.05),
            "near_box": reward(1.0, terms.behind_box, command="goal", scale_m=0.3),
            "behind_box": reward(0.5, terms.behind_box, command="goal", scale_m=0.05),
            "action_rate": reward(-0.01, rewards.action_rate),
        },
        terminations={"off_table": termination(terms.off_table, max_m=0.8)},
        metrics={"success": metric(terms.is_at_goal, "last", command="goal", max_m=0.04)},
        events={
            "box": event(
                events.DrawRoot,
                x_m=(-_REACH_M, _REACH_M),
                y_m=(-_REACH_M, _REACH_M),
                yaw_rad=(-math.pi, math.pi),
                joint=_BOX,
            ),
            "pusher": event(terms.place_pusher, reach_m=0.4, min_m=0.12),
        },
        sensors={"touch": term(sensors.Contact, contacts="touch")},
        commands={
            "goal": term(
                commands.Pose,
                x_m=(-_REACH_M, _REACH_M),
                y_m=(-_REACH_M, _REACH_M),
                z_m=(0.001, 0.001),
                marker="goal",
            )
        },
        randomizations={
            "friction": RandomizationConfig(
                field="geom_friction", names=("box/box",), columns=(0,), low=0.25, high=0.6, operation="set"
            ),
            "mass": RandomizationConfig(field="body_mass", names=("box/box",), low=0.6, high=1.6),
            "motors": RandomizationConfig(field="actuator_gainprm", columns=(6,), low=0.8, high=1.2),
        },
    )
