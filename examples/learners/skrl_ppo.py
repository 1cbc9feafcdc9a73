"""Train with skrl's PPO (package skrl, 2.1 or later): python skrl_ppo.py [task] [steps]."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import torch
from rsl_rl.modules import MLP
from skrl.agents.torch.ppo import PPO, PPO_CFG  # pyright: ignore[reportMissingImports]
from skrl.envs.wrappers.torch import wrap_env  # pyright: ignore[reportMissingImports]
from skrl.memories.torch import RandomMemory  # pyright: ignore[reportMissingImports]
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model  # pyright: ignore[reportMissingImports]
from skrl.trainers.torch import SequentialTrainer  # pyright: ignore[reportMissingImports]

import mjlab_dist.gymnasium  # noqa: F401 (registers the tasks)

TASK = sys.argv[1] if len(sys.argv) > 1 else "gym-inverted-pendulum"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 200_000


class Policy(GaussianMixin, Model):
    """Policy whose actions are normally distributed."""

    def __init__(self, **options: Any) -> None:
        Model.__init__(self, **options)
        GaussianMixin.__init__(self)
        self.network = MLP(self.num_observations, self.num_actions, [64, 64], "tanh")
        self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.network(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    """The value function."""

    def __init__(self, **options: Any) -> None:
        Model.__init__(self, **options)
        DeterministicMixin.__init__(self)
        self.network = MLP(self.num_observations, 1, [64, 64], "tanh")

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.network(inputs["observations"]), {}


torch.set_num_threads(1)  # the networks are too small for more threads
torch.manual_seed(1)
envs = gymnasium.make_vec(f"mjlab_dist/{TASK}", num_envs=64)
envs = wrap_env(recorded := gymnasium.wrappers.vector.RecordEpisodeStatistics(envs, buffer_length=STEPS))
options = {"observation_space": envs.observation_space, "action_space": envs.action_space, "device": "cpu"}
config = PPO_CFG(rollouts=32, learning_epochs=5, mini_batches=4)
config.experiment.write_interval = config.experiment.checkpoint_interval = 0
models = {"policy": Policy(**options), "value": Value(**options)}
agent = PPO(models=models, memory=RandomMemory(memory_size=32, num_envs=envs.num_envs), cfg=config, **options)
SequentialTrainer(env=envs, agents=agent, cfg={"timesteps": STEPS // envs.num_envs, "headless": True}).train()
print(*(f"mean return {np.mean(part):.1f}" for part in np.array_split(recorded.return_queue, 10)), sep="\n")
