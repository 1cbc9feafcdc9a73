"""The task template: simulation, observations, actions, rewards and terminations.

Every field is also a flag of the command line:
    train template --env.rewards.forward.weight 2
Terms are functions and classes, so that editors can jump to them and type checkers check their parameters. For a list
of all terms, and for writing your own, see docs/task-reference.md of mjlab-dist.

The goal of this task is walk. For a task with another goal, run new-task with --goal walk|hold|none.
"""

from mjlab_dist.config import (
    ActionConfig,
    EnvConfig,
    PpoConfig,
    SimConfig,
    TrainConfig,
    event,
    observation,
    reward,
    termination,
)
from mjlab_dist.mdp import events, observations, rewards, terminations
from mjlab_dist_tasks.template import terms

# The free joint of the robot's base.
_ROOT = "root"


def template() -> TrainConfig:
    """Walk forward, with robot.xml."""
    return TrainConfig(
        task="template",
        # Number of envs (copies of the robot) on all CPU cores together, and on each GPU.
        total_num_envs=256,
        gpu_num_envs=4096,
        # Each iteration is a rollout of 24 control steps in every env, and an update of the policy.
        max_iterations=300,
        env=_env(),
        # The learner, PPO. More flags: train template --help agent
        agent=PpoConfig(
            # Normalizes observations by their mean and standard deviation, so that terms need no scale.
            obs_normalization=True,
            # A larger entropy bonus leads to longer exploration.
            entropy_coef=0.002,
            # Standard deviation of the actions at the start.
            init_std=0.8,
            # Small rollouts, and many small mini-batches, take the least time on a CPU.
            num_steps_per_env=24,
            num_learning_epochs=3,
            num_mini_batches=16,
            # The learning rate falls to 0.
            schedule="linear",
            # Discount factor per control step.
            gamma=0.97,
            use_clipped_value_loss=False,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
        ),
    )


def _env() -> EnvConfig:
    return EnvConfig(
        sim=_sim(),
        # Time limit of an episode, in simulated seconds.
        episode_length_s=10.0,
        # Actions of the policy. Actuators are selected by name or by regular expressions.
        actions={
            # Position motors: target = position in the start state + scale * action.
            "position": ActionConfig(
                actuators=(".*",),
                scale=0.5,
                offset="home",
            ),
        },
        # Observations of the policy and the value function. If you add a second group named critic, the value
        # function uses only that group.
        observations={
            "actor": {
                # Direction of gravity in the robot's frame, velocities of the robot, and its height.
                "gravity": observation(observations.projected_gravity, joint=_ROOT),
                "velocity": observation(observations.base_linear_velocity, joint=_ROOT),
                "turning": observation(observations.base_angular_velocity, joint=_ROOT),
                "height": observation(observations.base_height, joint=_ROOT),
                # All hinge and slide joints.
                "positions": observation(observations.JointPositions),
                "velocities": observation(observations.JointVelocities),
                "last_action": observation(observations.last_action),
            },
        },
        # Reward per control step: the sum of weight * term. The console prints the mean of each term.
        rewards={
            # 1 if the robot moves forward at 0.74 m/s; see terms.py. The speed is estimated from the robot's size.
            "forward": reward(1.0, terms.forward_speed, max_m_s=0.74, joint=_ROOT),
            # 1 in every step in which the episode is not terminated.
            "alive": reward(0.5, rewards.alive),
            # A cost for large actions.
            "effort": reward(-0.013, rewards.action_size),
        },
        # Conditions that end an episode before its time limit.
        terminations={
            # The base is tilted by more than this angle.
            "tilted": termination(terminations.tilted, max_rad=1.0, joint=_ROOT),
            # The base is lower than this height.
            "fallen": termination(terminations.too_low, min_m=0.077, joint=_ROOT),
        },
        # Events: at the start of an episode, or at intervals.
        events={
            # The robot starts with a random heading.
            "start": event(events.DrawRoot, yaw_rad=(-3.14, 3.14), joint=_ROOT),
            # The joints begin at random positions near the start state, within their limits.
            "joints": event(events.DrawJoints, position=(-0.1, 0.1)),
            # Pushes every 5 to 10 seconds make the policy robust; uncomment to enable them:
            # "push": event(events.Push, linear_m_s=(-0.5, 0.5), joint=_ROOT).every(5.0, 10.0),
        },
    )


def _sim() -> SimConfig:
    return SimConfig(
        # The MJCF, a file of this package.
        model="mjlab_dist_tasks.template:robot.xml",
        # The keyframe that episodes start from.
        keyframe="home",
        # Physics steps per control step; the result is 50 control steps per second.
        decimation=4,
        # Maximum numbers of constraints and of contacts per env. If a maximum is too small, training restarts with a
        # larger one. If it is too large, steps take longer. To find good values, run
        #     mjlab-dist size-buffers template
        njmax=24,
        nconmax=8,
        # To save time, do not recompute poses and sensors before observing. They are then one substep old, but
        # this task does not observe them.
        forward_before_observation=False,
    )
