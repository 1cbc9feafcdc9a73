"""Train with TorchRL's PPO (package torchrl, 0.14 or later): python torchrl_ppo.py [task] [steps]."""

from __future__ import annotations

import sys

import gymnasium
import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector  # pyright: ignore[reportMissingImports]
from torchrl.envs import GymWrapper, RewardSum, TransformedEnv  # pyright: ignore[reportMissingImports]
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator  # pyright: ignore[reportMissingImports]
from torchrl.objectives import ClipPPOLoss  # pyright: ignore[reportMissingImports]
from torchrl.objectives.value import GAE  # pyright: ignore[reportMissingImports]

import mjlab_dist.gymnasium  # noqa: F401 (registers the tasks)

TASK = sys.argv[1] if len(sys.argv) > 1 else "gym-inverted-pendulum"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 200_000

torch.set_num_threads(1)  # the networks are too small for more threads
torch.manual_seed(1)
envs = GymWrapper(gymnasium.make_vec(f"mjlab_dist/{TASK}", num_envs=64))
envs = TransformedEnv(envs, RewardSum())
width, num_actions = envs.observation_spec["observation"].shape[-1], envs.action_spec.shape[-1]

# Policy and value function
network = nn.Sequential(
    MLP(width, 2 * num_actions, num_cells=[64, 64], activation_class=nn.Tanh), NormalParamExtractor()
)
actor = ProbabilisticActor(
    TensorDictModule(network, ["observation"], ["loc", "scale"]),
    in_keys=["loc", "scale"],
    distribution_class=torch.distributions.Normal,
    return_log_prob=True,
)
critic = ValueOperator(MLP(width, 1, num_cells=[64, 64], activation_class=nn.Tanh), ["observation"])
loss = ClipPPOLoss(actor, critic, entropy_coeff=0.0, normalize_advantage=True)
gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)

for batch in Collector(envs, actor, frames_per_batch=64 * 32, total_frames=STEPS):
    ended = batch["next", "episode_reward"][batch["next", "done"]]
    if len(ended):
        print(f"mean return {ended.mean():.1f}")
    for _ in range(5):
        with torch.no_grad():
            gae(batch)
        samples = batch.reshape(-1)
        for rows in torch.randperm(len(samples)).chunk(4):
            losses = loss(samples[rows])
            optimizer.zero_grad()
            (losses["loss_objective"] + losses["loss_critic"]).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            optimizer.step()
envs.close()
