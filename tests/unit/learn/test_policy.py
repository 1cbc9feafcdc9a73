"""A policy that is loaded without its task computes the same actions as in the task's env."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mjlab_dist
from mjlab_dist.errors import UserError
from mjlab_dist.policies import load_env_and_policy
from mjlab_dist.runs.run_dir import find_checkpoint, read_config_file

SMALL: dict[str, Any] = {
    "num_envs": 8,
    "max_iterations": 1,
    "agent.num_steps_per_env": 8,
    "env.episode_length_s": 0.1,
    "gpu_ids": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("agent", [
    {"agent.obs_normalization": True, "agent.obs_clip": 2.0},
    {"agent.rnn": "lstm", "agent.rnn_hidden_dim": 8, "agent.obs_normalization": True},
])  # fmt: skip
def test_a_loaded_policy_computes_the_same_actions_as_in_its_env(tmp_path: Path, agent: dict[str, Any]) -> None:
    run = mjlab_dist.train("cartpole-balance", quiet=True, log_root=str(tmp_path), **SMALL, **agent).run_dir
    policy = mjlab_dist.load_policy(run)
    env, expected = load_env_and_policy(read_config_file(run), find_checkpoint(run), 5, 1)
    assert (policy.num_observations, policy.num_actions) == (5, 1)
    obs = env.get_observations()
    for _ in range(25):
        actions = policy(obs["actor"])
        with torch.inference_mode():
            assert torch.equal(actions, expected(obs))
            obs, _, dones, _ = env.step(actions)
            expected.reset(dones)
        policy.reset(dones)
    # Select a checkpoint by its name. Refuse checkpoints and runs that do not exist
    assert mjlab_dist.load_policy(str(run), checkpoint="model_1.pt").checkpoint.resolve() == policy.checkpoint.resolve()
    for wrong in ({"checkpoint": "model_7.pt"}, {"run": tmp_path}):
        with pytest.raises(UserError, match="|".join(map(str, wrong.values()))):
            mjlab_dist.load_policy(**{"run": run, **wrong})


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    from mjlab_dist.learn.networks import load_policy_without_env

    file = tmp_path / "model_1.pt"
    for content in ({}, {"actor_state_dict": {}}, {"actor_state_dict": {"mlp.0.weight": torch.zeros(3, 2)}}):
        torch.save(content, file)
        with pytest.raises(UserError, match=r"model_1\.pt"):
            load_policy_without_env(mjlab_dist.task_config("cartpole-balance"), file, "cpu")
