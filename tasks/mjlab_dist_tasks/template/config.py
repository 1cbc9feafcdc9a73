"""The task template: what is simulated, what the policy sees and does, what it is rewarded for.

All of it is data, and every field is also a flag: train template --env.rewards.forward.weight 2
A term names its function as package.module:function. The terms that there are, and how to write more: docs/add-a-task.md of mjlab-dist.
"""

from mjlab_dist.config import (
    ActionConfig,
    AgentConfig,
    EnvConfig,
    EventConfig,
    ObservationConfig,
    RewardConfig,
    SimConfig,
    TermConfig,
    TrainConfig,
)

_TERMS = "mjlab_dist.mdp.observations"
_REWARDS = "mjlab_dist.mdp.rewards"
_EVENTS = "mjlab_dist.mdp.events"
_OWN = "mjlab_dist_tasks.template.terms"
_TERMINATIONS = "mjlab_dist.mdp.terminations"

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
        env=EnvConfig(
            sim=SimConfig(
                # The MJCF, a file of this package.
                model="mjlab_dist_tasks.template:robot.xml",
                # The keyframe that episodes start from.
                keyframe="home",
                # Physics steps per control step, which makes 50 control steps a second.
                decimation=4,
                # Room for constraints and for contacts, per copy. Where it is too small some are dropped, and training says so; where
                # it is too large, that costs time. Measure what it takes: mjlab-dist size-buffers template
                njmax=20,
                nconmax=8,
                # Poses and sensors are a substep late, which does not matter here: no term below reads any.
                forward_before_observation=False,
            ),
            # Simulated seconds until an episode ends by itself, and the next one starts.
            episode_length_s=10.0,
            # What the policy does: actuators by name, or regular expressions of their names.
            actions={
                # Motors that hold a position: an action of 0 holds that of the start state, 1 one further by scale.
                "position": ActionConfig(
                    actuators=(".*",),
                    scale=0.5,
                    offset="home",
                ),
            },
            # What the policy sees. A second group, critic, would be for the value function only.
            observations={
                "actor": {
                    # Which way is down, in the robot's frame, and how it moves.
                    "gravity": ObservationConfig(func=f"{_TERMS}:projected_gravity", params={"joint": _ROOT}),
                    "velocity": ObservationConfig(func=f"{_TERMS}:base_linear_velocity", params={"joint": _ROOT}),
                    "turning": ObservationConfig(func=f"{_TERMS}:base_angular_velocity", params={"joint": _ROOT}),
                    "height": ObservationConfig(func=f"{_TERMS}:base_height", params={"joint": _ROOT}),
                    # Hinge and slide joints, all of them.
                    "positions": ObservationConfig(func=f"{_TERMS}:JointPositions"),
                    "velocities": ObservationConfig(func=f"{_TERMS}:JointVelocities"),
                    "last_action": ObservationConfig(func=f"{_TERMS}:last_action"),
                },
            },
            # What it is rewarded for, per control step: the sum of weight * term. The console shows what each term earns.
            rewards={
                # 1 at 0.74 m/s forward: see terms.py.
                "forward": RewardConfig(
                    func=f"{_OWN}:forward_speed",
                    weight=1.0,
                    params={"most_m_s": 0.74, "joint": _ROOT},
                ),
                # 1 as long as it has not fallen.
                "alive": RewardConfig(func=f"{_REWARDS}:alive", weight=0.5),
                # Large actions cost something.
                "effort": RewardConfig(func=f"{_REWARDS}:action_size", weight=-0.013),
            },
            # What ends an episode early.
            terminations={
                # It leans by more than this.
                "tilted": TermConfig(func=f"{_TERMINATIONS}:tilted", params={"most_rad": 1.0, "joint": _ROOT}),
                # Its base is lower than this.
                "fallen": TermConfig(
                    func=f"{_TERMINATIONS}:too_low",
                    params={"least_m": 0.077, "joint": _ROOT},
                ),
            },
            # What happens when an episode starts.
            events={
                # The robot looks anywhere.
                "start": EventConfig(
                    func=f"{_EVENTS}:DrawRoot",
                    params={
                        "yaw_rad": (-3.14, 3.14),
                        "joint": _ROOT,
                    },
                ),
                # Its joints are a little off, and within their limits.
                "joints": EventConfig(func=f"{_EVENTS}:DrawJoints", params={"position": (-0.1, 0.1)}),
                # Pushes make it robust; take the # away:
                # "push": EventConfig(
                #     func=f"{_EVENTS}:Push",
                #     params={"linear_m_s": (-0.5, 0.5), "joint": _ROOT},
                #     when="interval",
                #     interval_s=(5.0, 10.0),
                # ),
            },
        ),
        # The learner, PPO. More flags: train template --help
        agent=AgentConfig(
            # Observations are scaled by what is seen, so that none needs a scale of its own.
            obs_normalization=True,
            # A larger bonus explores longer.
            entropy_coef=0.002,
            use_clipped_value_loss=False,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
        ),
    )
