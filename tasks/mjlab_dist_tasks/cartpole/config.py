"""The cartpole tasks, after the DeepMind Control Suite's cartpole (Tassa et al. 2018, arXiv:1801.00690).

Physics, observations, start states and the smooth reward are those of the suite. An episode has 1,000 control steps of
10 ms. The reward of a step is at most 1, so a perfect episode returns 1,000. The integrator is MuJoCo's default, Euler,
which takes a quarter of the time of the suite's Runge-Kutta.
"""

from __future__ import annotations

from mjlab_dist.config import (
    ActionConfig,
    EnvConfig,
    EventConfig,
    PpoConfig,
    SimConfig,
    SymmetryConfig,
    TrainConfig,
    event,
    observation,
    reward,
)
from mjlab_dist.mdp import events, observations
from mjlab_dist_tasks.cartpole import terms

_AGENT = PpoConfig(
    desired_kl=0.005,
    entropy_coef=0.002,
    use_clipped_value_loss=False,
    symmetry=SymmetryConfig(func="mjlab_dist_tasks.cartpole.terms:with_mirrored"),
)
"""The values of states reach 100 in these tasks (1 per step, discount 0.99). With a clipped value loss, a value changes
by about 0.2 per update at most, so the value function learns too slowly. The policy then does not learn to swing up, or
forgets it. Half the default KL divergence and a smaller entropy bonus prevent the return from falling once it is high.
"""


def balance() -> TrainConfig:
    """Keep a pole upright on a cart that moves along a rail."""
    return TrainConfig(
        task="cartpole-balance",
        total_num_envs=1024,
        gpu_num_envs=4096,
        max_iterations=150,
        agent=_AGENT,
        env=_env(
            start={
                "cart": event(events.draw_joint_position, joint="slider", low=-0.1, high=0.1),
                "pole": event(events.draw_joint_position, joint="hinge", low=-0.034, high=0.034),
            }
        ),
    )


def swingup() -> TrainConfig:
    """Swing a hanging pole up and keep it upright on a cart that moves along a rail."""
    return TrainConfig(
        task="cartpole-swingup",
        total_num_envs=1024,
        gpu_num_envs=4096,
        max_iterations=300,
        agent=_AGENT,
        env=_env(
            start={
                "cart": event(terms.draw_around, joint="slider", mean=0.0, std=0.01),
                "pole": event(terms.draw_around, joint="hinge", mean=3.141592653589793, std=0.01),
            }
        ),
    )


def _env(start: dict[str, EventConfig]) -> EnvConfig:
    return EnvConfig(
        sim=SimConfig(
            model="mjlab_dist_tasks.cartpole:cartpole.xml",
            njmax=2,  # one constraint row for each end of the rail
            nconmax=0,
            forward_before_observation=False,
        ),
        episode_length_s=10.0,
        actions={"force": ActionConfig(actuators=("force",))},
        observations={
            "actor": {
                "cart_position": observation(observations.joint_position, joint="slider"),
                "pole_direction": observation(terms.pole_direction),
                "cart_velocity": observation(observations.joint_velocity, joint="slider"),
                "pole_velocity": observation(observations.joint_velocity, joint="hinge"),
            }
        },
        rewards={"smooth": reward(1.0, terms.smooth)},
        events={**start, "velocities": event(events.draw_velocities, std=0.01)},
    )
