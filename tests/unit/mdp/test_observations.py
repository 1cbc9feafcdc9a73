"""Observation terms that keep a state."""

from __future__ import annotations

import torch
from legged import assert_independent, assert_uniform, end_episodes, float64, make

from mjlab_dist.config import ObservationConfig


def test_the_bias_of_an_encoder_is_drawn_for_every_episode_and_resumed() -> None:
    num_envs = 2000
    params = {"joints": (".*_hip",), "bias": (-0.1, 0.3)}
    positions = ObservationConfig(func="mjlab_dist.mdp.observations:JointPositions", params=params)
    env = make(num_envs, observations={"actor": {"joints": positions}}, terminations={})

    def bias() -> torch.Tensor:
        return env.get_observations()["actor"] - (env.sim.qpos - env.reference.qpos)[:, 7:11]

    first = bias()
    for joint in float64(first).T:
        assert_uniform(joint, -0.1, 0.3)
    assert_independent(*float64(first).T)
    env.step(torch.zeros(num_envs, 4))
    torch.testing.assert_close(bias(), first, atol=1e-6, rtol=0)
    ends = torch.arange(num_envs) % 2 == 0
    end_episodes(env, ends)
    env.step(torch.zeros(num_envs, 4))
    assert ((bias() - first).abs() > 1e-6)[ends].any(dim=1).all()
    torch.testing.assert_close(bias()[~ends], first[~ends], atol=1e-6, rtol=0)
    torch.testing.assert_close(env.state()["observations.actor.joints.bias"], bias(), atol=1e-6, rtol=0)
