"""Configs of every registered task, and of a task that has every kind of term."""

from __future__ import annotations

import dataclasses

from legged import EVERYTHING

from mjlab_dist.config import PpoConfig, TrainConfig, registry

NAMES = [*registry.task_names(), "everything"]


def config_of(name: str) -> TrainConfig:
    """Return a config by its name, one of :data:`NAMES`."""
    if name != "everything":
        return registry.task_config(name)
    sim = dataclasses.replace(EVERYTHING.sim, forward_before_observation=True)
    env = dataclasses.replace(EVERYTHING, sim=sim, episode_length_s=1.0, nan_policy="reset")
    agent = PpoConfig(num_steps_per_env=7, reward_normalization=True, obs_normalization=True, obs_clip=5.0)
    return TrainConfig(task=name, env=env, agent=agent)
