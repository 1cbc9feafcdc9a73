"""Train with rsl_rl's own runner: python rsl_rl_ppo.py [task] [iterations]."""

from __future__ import annotations

import sys

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

import mjlab_dist

TASK = sys.argv[1] if len(sys.argv) > 1 else "gym-inverted-pendulum"
ITERATIONS = int(sys.argv[2]) if len(sys.argv) > 2 else 100


class Envs(VecEnv):
    """The envs, with the interface of rsl_rl."""

    def __init__(self, num_envs: int) -> None:
        self.envs = mjlab_dist.make(TASK, total_num_envs=num_envs)
        self.cfg = self.envs.configs[0].env
        self.num_envs, self.num_actions, self.device = self.envs.num_envs, self.envs.num_actions, self.envs.device
        self.max_episode_length = round(self.cfg.episode_length_s / self.envs.step_dt_s)
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        self.observed = self.envs.reset()

    def get_observations(self) -> TensorDict:
        return TensorDict(self.observed, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        self.observed, rewards, terminated, truncated, _ = self.envs.step(actions)
        done = terminated | truncated
        self.episode_length_buf = torch.where(done, 0, self.episode_length_buf + 1)
        return self.get_observations(), rewards, done, {"time_outs": truncated}


torch.set_num_threads(1)  # the networks are too small for more threads
NETWORK = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True}
envs = Envs(64)
config = {
    "num_steps_per_env": 32,
    "save_interval": ITERATIONS,
    "obs_groups": {"actor": ["actor"], "critic": ["actor"]},
    "algorithm": {"class_name": "PPO", "learning_rate": 1e-3, "entropy_coef": 0.0},
    "actor": {**NETWORK, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
    "critic": NETWORK,
}
OnPolicyRunner(envs, config, log_dir="logs/rsl_rl", device=str(envs.device)).learn(ITERATIONS)
envs.envs.close()
