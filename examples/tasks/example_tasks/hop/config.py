"""The task example-hop."""

from example_tasks.hop import terms
from mjlab_dist.config import (
    ActionConfig,
    ActuatorConfig,
    EnvConfig,
    PpoConfig,
    SimConfig,
    TrainConfig,
    event,
    metric,
    observation,
    reward,
    term,
    termination,
)
from mjlab_dist.mdp import events, observations, rewards

_HINGES = ("hip", "knee", "ankle")


def hop() -> TrainConfig:
    """Hop once to the commanded height after each command; otherwise, stand."""
    return TrainConfig(
        task="example-hop",
        num_envs=256,
        max_iterations=250,
        env=_env(),
        agent=PpoConfig(
            num_steps_per_env=32,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            obs_normalization=True,
            entropy_coef=0.002,
            init_std=0.6,
            use_clipped_value_loss=False,
        ),
    )


def _env() -> EnvConfig:
    return EnvConfig(
        sim=SimConfig(
            model="example_tasks.hop:hopper.xml",
            keyframe="home",
            actuators={
                "leg": ActuatorConfig(
                    joints=("hip", "knee"),
                    stiffness=80.0,
                    damping=2.0,
                    effort_limit=60.0,
                    velocity_limit=25.0,
                ),
                "ankle": ActuatorConfig(
                    joints=("ankle",),
                    stiffness=40.0,
                    damping=1.0,
                    effort_limit=25.0,
                    velocity_limit=25.0,
                ),
            },
            decimation=4,
            njmax=12,
            nconmax=4,
            forward_before_observation=False,
        ),
        episode_length_s=10.0,
        actions={"joints": ActionConfig(actuators=_HINGES, scale=0.6, offset="home")},
        observations={
            "actor": {
                "command": observation(observations.command, name="hop"),
                "pitch": observation(observations.joint_position, joint="pitch"),
                "height": observation(observations.joint_position, joint="z"),
                "x": observation(observations.joint_position, joint="x"),
                "positions": observation(observations.JointPositions, joints=_HINGES),
                "velocities": observation(observations.JointVelocities).processed(scale=0.1),
                "last_action": observation(observations.last_action),
            }
        },
        reward_scale="dt",
        rewards={
            "hop": reward(100.0, terms.hop_gain, command="hop"),
            "excess": reward(-20.0, terms.hop_excess, command="hop"),
            "alive": reward(1.0, rewards.alive),
            "pitch": reward(-2.0, terms.pitch),
            "drift": reward(-1.0, terms.drift),
            "posture": reward(-0.2, rewards.JointDeviation, joints=_HINGES),
            "action_rate": reward(-0.02, rewards.action_rate),
        },
        terminations={"fallen": termination(terms.fallen, max_rad=0.8, min_m=0.25)},
        metrics={"followed": metric(terms.share_followed, "last", command="hop")},
        events={"joints": event(events.DrawJoints, position=(-0.1, 0.1), joints=_HINGES)},
        commands={"hop": term(terms.Hop, height_m=(0.08, 0.3))},
    )
