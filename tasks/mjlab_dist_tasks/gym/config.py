"""Gymnasium's MuJoCo v5 tasks (Towers et al. 2024, arXiv:2407.17032; gymnasium/envs/mujoco/*_v5.py).

Observations, rewards, terminations, start states and time limits are those of v5. As in published runs, actions are
clipped to v5's action space, and control costs are computed from the clipped actions. The solver is always Newton,
because MuJoCo Warp has no PGS.
"""

from __future__ import annotations

import dataclasses
from typing import NotRequired, TypedDict

from mjlab_dist.config import (
    ActionConfig,
    Algorithm,
    EnvConfig,
    OptionsConfig,
    PpoConfig,
    SacConfig,
    SimConfig,
    TrainConfig,
    event,
    observation,
    reward,
    term,
    termination,
)
from mjlab_dist_tasks.gym import terms

_MODEL = "mjlab_dist_tasks.gym.model"
_INF = float("inf")


class _Bounds(TypedDict):
    """Parameters of terms.healthy and terms.unhealthy."""

    first: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    max_magnitude: NotRequired[float]


_AGENT = PpoConfig(
    num_steps_per_env=24,
    num_learning_epochs=5,
    num_mini_batches=16,
    learning_rate=5e-4,
    schedule="linear",
    entropy_coef=0.0,
    value_loss_coef=0.5,
    use_clipped_value_loss=False,
    max_grad_norm=0.5,
    actor_hidden_dims=(128, 128),
    critic_hidden_dims=(128, 128),
    obs_normalization=True,
    reward_normalization=True,
    init_std=0.4,
)
"""Small rollouts in many mini-batches, like the quadruped's, and normalized rewards (docs/lab.md)."""

_CLEANRL = PpoConfig(
    num_steps_per_env=64,
    num_learning_epochs=10,
    num_mini_batches=32,
    learning_rate=3e-4,
    schedule="linear",
    entropy_coef=0.0,
    value_loss_coef=0.5,
    max_grad_norm=0.5,
    activation="tanh",
    obs_normalization=True,
    reward_normalization=True,
    orthogonal_init=True,
    advantage_normalization="mini-batch",
)
"""CleanRL's PPO (ppo_continuous_action.py) with 32 envs: 320 gradient steps per 2,048 control steps. With fewer, the
hopper's return is lower (docs/lab.md)."""

_SAC = SacConfig(
    updates_per_step=12.5,
    batch_size=256,
    actor_hidden_dims=(128, 128),
    critic_hidden_dims=(128, 128),
    layer_norm=False,
    schedule="linear",
)
"""A gradient step per 5 control steps, for CPUs; layer normalization would learn more slowly, and a fixed learning
rate would leave the hopper less stable (docs/lab.md)."""


def hopper(*, algorithm: Algorithm = "ppo") -> TrainConfig:
    """Hop forward on one leg (Gymnasium's Hopper-v5)."""
    bounds: _Bounds = {"first": 1, "low": (0.7, -0.2), "high": (_INF, 0.2), "max_magnitude": 100.0}
    return _train(
        "gym-hopper",
        algorithm,
        num_envs=32,
        agent=_CLEANRL,
        env=EnvConfig(
            sim=_sim("hopper", decimation=4, njmax=16, nconmax=4),
            episode_length_s=8.0,
            actions=_actions(1.0),
            observations={
                "actor": {
                    "positions": observation(terms.positions, skip=1),
                    "velocities": observation(terms.velocities).processed(clip=(-10.0, 10.0)),
                }
            },
            rewards={
                "forward": reward(1.0, terms.Speed),
                "survive": reward(1.0, terms.healthy, **bounds),
                "control": reward(-1e-3, terms.control_cost),
            },
            terminations={"unhealthy": termination(terms.unhealthy, **bounds)},
            events={"start": event(terms.draw_state, position=5e-3, velocity=5e-3)},
        ),
    )


def half_cheetah(*, algorithm: Algorithm = "ppo") -> TrainConfig:
    """Run forward on a hind leg and a front leg (Gymnasium's HalfCheetah-v5)."""
    return _train(
        "gym-half-cheetah",
        algorithm,
        num_envs=256,
        agent=dataclasses.replace(_AGENT, num_learning_epochs=3, learning_rate=1e-3, gamma=0.98, lam=0.92),
        env=EnvConfig(
            sim=_sim("half_cheetah", decimation=5, njmax=36, nconmax=8),
            episode_length_s=50.0,
            actions=_actions(1.0),
            observations={
                "actor": {
                    "positions": observation(terms.positions, skip=1),
                    "velocities": observation(terms.velocities),
                }
            },
            rewards={"forward": reward(1.0, terms.Speed), "control": reward(-0.1, terms.control_cost)},
            events={"start": event(terms.draw_state, position=0.1, velocity_std=0.1)},
        ),
    )


def walker2d(*, algorithm: Algorithm = "ppo") -> TrainConfig:
    """Walk forward on two legs in a plane (Gymnasium's Walker2d-v5)."""
    bounds: _Bounds = {"first": 1, "low": (0.8, -1.0), "high": (2.0, 1.0)}
    return _train(
        "gym-walker2d",
        algorithm,
        num_envs=64,
        agent=dataclasses.replace(_AGENT, num_steps_per_env=32, learning_rate=1e-3),
        env=EnvConfig(
            sim=_sim("walker2d", decimation=4, njmax=28, nconmax=6),
            episode_length_s=8.0,
            actions=_actions(1.0),
            observations={
                "actor": {
                    "positions": observation(terms.positions, skip=1),
                    "velocities": observation(terms.velocities).processed(clip=(-10.0, 10.0)),
                }
            },
            rewards={
                "forward": reward(1.0, terms.Speed),
                "survive": reward(1.0, terms.healthy, **bounds),
                "control": reward(-1e-3, terms.control_cost),
            },
            terminations={"unhealthy": termination(terms.unhealthy, **bounds)},
            events={"start": event(terms.draw_state, position=5e-3, velocity=5e-3)},
        ),
    )


def ant(*, algorithm: Algorithm = "ppo") -> TrainConfig:
    """Run along x on four legs (Gymnasium's Ant-v5)."""
    bounds: _Bounds = {"first": 2, "low": (0.2,), "high": (1.0,)}
    return _train(
        "gym-ant",
        algorithm,
        env=EnvConfig(
            sim=_sim("ant", decimation=5, njmax=48, nconmax=10),
            episode_length_s=50.0,
            actions=_actions(1.0),
            sensors={"wrenches": term(terms.Wrenches)},
            observations={
                "actor": {
                    "positions": observation(terms.positions, skip=2),
                    "velocities": observation(terms.velocities),
                    "wrenches": observation(terms.wrenches, sensor="wrenches").processed(clip=(-1.0, 1.0)),
                }
            },
            rewards={
                "forward": reward(1.0, terms.BodySpeed),
                "survive": reward(1.0, terms.healthy, **bounds),
                "control": reward(-0.5, terms.control_cost),
                "contact": reward(-5e-4, terms.wrench_cost, sensor="wrenches", max_component=1.0),
            },
            terminations={"unhealthy": termination(terms.unhealthy, **bounds)},
            events={"start": event(terms.draw_state, position=0.1, velocity_std=0.1)},
        ),
    )


def humanoid(*, algorithm: Algorithm = "ppo") -> TrainConfig:
    """Walk along x on two legs, with two arms (Gymnasium's Humanoid-v5)."""
    bounds: _Bounds = {"first": 2, "low": (1.0,), "high": (2.0,)}
    contact_weight, max_contact_cost = 5e-7, 10.0
    return _train(
        "gym-humanoid",
        algorithm,
        # Contact forces are nearly always 0 but reach 60 standard deviations.
        agent=dataclasses.replace(_AGENT, obs_clip=10.0),
        env=EnvConfig(
            sim=_sim("humanoid", decimation=5, njmax=40, nconmax=16),
            episode_length_s=15.0,
            actions=_actions(0.4),
            sensors={"wrenches": term(terms.Wrenches), "bodies": term(terms.Bodies)},
            observations={
                "actor": {
                    "positions": observation(terms.positions, skip=2),
                    "velocities": observation(terms.velocities),
                    "inertias": observation(terms.inertias, sensor="bodies"),
                    "body_velocities": observation(terms.body_velocities, sensor="bodies"),
                    "actuator_torques": observation(terms.actuator_torques, sensor="bodies"),
                    "wrenches": observation(terms.wrenches, sensor="wrenches"),
                }
            },
            rewards={
                "forward": reward(1.25, terms.mass_speed, sensor="bodies"),
                "survive": reward(5.0, terms.healthy, **bounds),
                "control": reward(-0.1, terms.control_cost),
                "contact": reward(
                    -contact_weight, terms.wrench_cost, sensor="wrenches", max_sum=max_contact_cost / contact_weight
                ),
            },
            terminations={"unhealthy": termination(terms.unhealthy, **bounds)},
            events={"start": event(terms.draw_state, position=0.01, velocity=0.01)},
        ),
    )


def inverted_pendulum(*, algorithm: Algorithm = "ppo") -> TrainConfig:
    """Keep a pole upright on a cart (Gymnasium's InvertedPendulum-v5)."""
    bounds: _Bounds = {"first": 1, "low": (-0.2,), "high": (0.2,)}
    return _train(
        "gym-inverted-pendulum",
        algorithm,
        env=EnvConfig(
            sim=_sim("inverted_pendulum", decimation=2, njmax=2, nconmax=0),
            episode_length_s=40.0,
            actions=_actions(3.0),
            observations={
                "actor": {
                    "positions": observation(terms.positions, skip=0),
                    "velocities": observation(terms.velocities),
                }
            },
            rewards={"survive": reward(1.0, terms.healthy, **bounds)},
            terminations={"unhealthy": termination(terms.unhealthy, **bounds)},
            events={"start": event(terms.draw_state, position=0.01, velocity=0.01)},
        ),
    )


def reacher(*, algorithm: Algorithm = "ppo") -> TrainConfig:
    """Bring the tip of an arm with two links to a target (Gymnasium's Reacher-v5)."""
    return _train(
        "gym-reacher",
        algorithm,
        env=EnvConfig(
            sim=_sim("reacher", decimation=2, njmax=4, nconmax=0),
            episode_length_s=1.0,
            actions=_actions(1.0),
            sensors={"arm": term(terms.Arm)},
            observations={
                "actor": {
                    "arm_direction": observation(terms.arm_direction),
                    "target": observation(terms.positions, skip=2),
                    "arm_velocity": observation(terms.arm_velocity),
                    "to_target": observation(terms.to_target, sensor="arm"),
                }
            },
            rewards={
                "distance": reward(-1.0, terms.distance, sensor="arm"),
                "control": reward(-1.0, terms.control_cost),
            },
            events={
                "start": event(terms.draw_state, position=0.1, velocity=5e-3),
                "target": event(terms.draw_target, radius_m=0.2),
            },
        ),
    )


def _train(
    task: str, algorithm: Algorithm, *, env: EnvConfig, agent: PpoConfig = _AGENT, num_envs: int = 128
) -> TrainConfig:
    """Return a config with a million control steps, as in published runs.

    The numbers of steps and envs are totals over all ranks, so that the result does not depend on the number of ranks.

    Args:
        task: Name of the task.
        algorithm: Learns the task; SAC has the same settings and number of envs for all tasks.
        env: The task.
        agent: PPO's settings.
        num_envs: PPO's envs.
    """
    if algorithm == "sac":
        return TrainConfig(task=task, total_num_envs=64, total_timesteps=1_000_000, agent=_SAC, env=env)
    return TrainConfig(task=task, total_num_envs=num_envs, total_timesteps=1_000_000, agent=agent, env=env)


def _sim(model: str, *, decimation: int, njmax: int, nconmax: int) -> SimConfig:
    return SimConfig(
        model=f"{_MODEL}:{model}",
        options=OptionsConfig(solver="newton"),
        decimation=decimation,
        njmax=njmax,
        nconmax=nconmax,
        forward_before_observation=False,
    )


def _actions(max_input: float) -> dict[str, ActionConfig]:
    return {"joints": ActionConfig(actuators=(".*",), clip=(-max_input, max_input))}
