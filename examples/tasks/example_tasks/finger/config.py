"""The task example-finger."""

from example_tasks.finger import terms
from mjlab_dist.config import (
    EnvConfig,
    PpoConfig,
    SimConfig,
    TrainConfig,
    action,
    event,
    metric,
    observation,
    reward,
    term,
)
from mjlab_dist.mdp import events, motors, observations, rewards

_JOINTS = ("proximal", "middle", "distal")


def finger() -> TrainConfig:
    """Touch a ball with a fingertip; the finger has tendons with learned motors, and sees the ball in a depth image."""
    return TrainConfig(
        task="example-finger",
        num_envs=256,
        max_iterations=150,
        env=_env(),
        agent=PpoConfig(
            num_steps_per_env=32,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            obs_normalization=True,
            entropy_coef=0.002,
            use_clipped_value_loss=False,
        ),
    )


def _env() -> EnvConfig:
    joints = {
        "positions": observation(observations.JointPositions, joints=_JOINTS),
        "velocities": observation(observations.JointVelocities, joints=_JOINTS),
        "last_action": observation(observations.last_action),
    }
    return EnvConfig(
        sim=SimConfig(
            model="example_tasks.finger:finger.xml",
            decimation=5,
            njmax=8,
            nconmax=1,
        ),
        episode_length_s=6.0,
        # The actions are target lengths of the tendons, from lengths at which a tendon is slack to lengths at which the
        # finger is bent. history, position_scale, velocity_scale and effort_scale have the same values in fit_motor.py.
        actions={
            "tendons": action(
                motors.LearnedMotor,
                ("flexor_1", "flexor_2"),
                file="example_tasks.finger:motor.pt",
                activation="softsign",
                history=(0, 1, 2, 4),
                position_scale=50.0,
                velocity_scale=5.0,
                effort_scale=10.0,
                effort_limit=25.0,
            ).processed(
                scale={"flexor_1": 0.012, "flexor_2": 0.04},
                offset={"flexor_1": -0.016, "flexor_2": -0.155},
                clip=(-1.0, 1.0),
            ),
        },
        observations={
            "actor": {
                "image": observation(terms.DepthImage, sensor="depth", near_m=0.4, far_m=0.6),
                **joints,
            },
            "critic": {
                "tip_to_target": observation(terms.tip_to_target, command="target"),
                "target": observation(observations.command, name="target"),
                **joints,
            },
        },
        reward_scale="dt",
        rewards={
            "near": reward(1.0, terms.at_target, command="target", scale_m=0.1),
            "at_target": reward(1.0, terms.at_target, command="target", scale_m=0.02),
            "action_rate": reward(-0.02, rewards.action_rate),
        },
        metrics={"distance_m": metric(terms.distance, "mean", command="target")},
        events={"joints": event(events.DrawJoints, position=(0.0, 0.5), joints=_JOINTS)},
        commands={"target": term(terms.Target, bend_rad=(0.1, 1.1), curl=(0.0, 1.0), resample_s=(1.5, 2.5))},
    )
