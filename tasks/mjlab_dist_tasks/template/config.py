"""The task template: what is simulated, what the policy sees and does, what it is rewarded for.

All of it is data, and every field is also a flag:
    train template --env.rewards.forward.weight 2
Terms are functions and classes: editors jump to them, and type checkers check their parameters. The terms of
mjlab-dist, and how to write your own: docs/add-a-task.md of mjlab-dist.
"""

from mjlab_dist.config import (
    ActionConfig,
    AgentConfig,
    EnvConfig,
    SimConfig,
    TrainConfig,
    event,
    observation,
    reward,
    term,
)
from mjlab_dist.mdp import events, observations, rewards, terminations
from mjlab_dist_tasks.template import terms

# The free joint of the robot's base.
_ROOT = "root"


def template() -> TrainConfig:
    """Walk forward, with robot.xml."""
    return TrainConfig(
        task="template",
        # Copies of the robot that learn side by side, on each GPU or CPU process; a GPU has room for thousands.
        num_envs=512,
        # Iterations: each is a rollout of 32 control steps of every copy, and an update of the policy.
        max_iterations=300,
        env=_env(),
        # The learner, PPO. More flags: train template --help agent
        agent=AgentConfig(
            # Observations are scaled by their mean and standard deviation, so that none needs a scale of its own.
            obs_normalization=True,
            # A larger bonus explores longer.
            entropy_coef=0.002,
            use_clipped_value_loss=False,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
        ),
    )


def _env() -> EnvConfig:
    return EnvConfig(
        sim=_sim(),
        # Simulated seconds until an episode ends by itself, and the next one starts.
        episode_length_s=10.0,
        # What the policy does: actuators by name, or regular expressions of their names.
        actions={
            # Motors that hold a position: an action of 0 is that of the start state, 1 is further by scale.
            "position": ActionConfig(
                actuators=(".*",),
                scale=0.5,
                offset="home",
            ),
        },
        # What the policy sees. A second group named critic would be for the value function only.
        observations={
            "actor": {
                # Direction of gravity in the robot's frame, and its velocities.
                "gravity": observation(observations.projected_gravity, joint=_ROOT),
                "velocity": observation(observations.base_linear_velocity, joint=_ROOT),
                "turning": observation(observations.base_angular_velocity, joint=_ROOT),
                "height": observation(observations.base_height, joint=_ROOT),
                # Hinge and slide joints, all of them.
                "positions": observation(observations.JointPositions),
                "velocities": observation(observations.JointVelocities),
                "last_action": observation(observations.last_action),
            },
        },
        # What it is rewarded for, per control step: the sum of weight * term. The console shows what each term earns.
        rewards={
            # 1 at 0.74 m/s forward: see terms.py.
            "forward": reward(1.0, terms.forward_speed, max_m_s=0.74, joint=_ROOT),
            # 1 as long as it has not fallen.
            "alive": reward(0.5, rewards.alive),
            # A cost for large actions.
            "effort": reward(-0.013, rewards.action_size),
        },
        # What ends an episode early.
        terminations={
            # It leans by more than this.
            "tilted": term(terminations.tilted, max_rad=1.0, joint=_ROOT),
            # Its base is lower than this.
            "fallen": term(terminations.too_low, min_m=0.077, joint=_ROOT),
        },
        # What happens when an episode starts.
        events={
            # The robot starts with a random heading.
            "start": event(events.DrawRoot, yaw_rad=(-3.14, 3.14), joint=_ROOT),
            # Its joints start near the start state, within their limits.
            "joints": event(events.DrawJoints, position=(-0.1, 0.1)),
            # Pushes every 5 to 10 seconds make it robust; remove the # to turn them on:
            # "push": event(events.Push, linear_m_s=(-0.5, 0.5), joint=_ROOT).every(5.0, 10.0),
        },
    )


def _sim() -> SimConfig:
    return SimConfig(
        # The MJCF, a file of this package.
        model="mjlab_dist_tasks.template:robot.xml",
        # The keyframe that episodes start from.
        keyframe="home",
        # Physics steps per control step, which makes 50 control steps per second.
        decimation=4,
        # Room for constraints and for contacts, per copy. If it is too small, some are dropped, and training reports
        # it; if it is too large, steps take longer. Measure what the task needs:
        #     mjlab-dist size-buffers template
        njmax=20,
        nconmax=8,
        # Poses and sensors are a substep late, which does not matter here: no term below reads any.
        forward_before_observation=False,
    )
