"""Learners fed with made-up rollouts: what the tests of the update share, on one rank and on several."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import rsl_rl.algorithms
import torch
from tensordict import TensorDict

from mjlab_dist.config import AgentConfig, TrainConfig
from mjlab_dist.distributed.synchronizer import AllReduce, Synchronizer
from mjlab_dist.learn.ppo import PPO
from mjlab_dist.learn.rsl_rl_config import rsl_rl_config

STEPS = 12
NUM_OBS = {"actor": 6, "critic": 9}
NUM_ACTIONS = 3
MINI_BATCHES = 4

AGENT = AgentConfig(
    num_steps_per_env=STEPS,
    num_mini_batches=MINI_BATCHES,
    num_learning_epochs=3,
    actor_hidden_dims=(32, 16),
    critic_hidden_dims=(32, 16),
    obs_normalization=True,
    rnn_hidden_dim=16,
)


@dataclass
class Data:
    """What envs would have given: (STEPS, num_envs, ...), observations one step more."""

    obs: dict[str, torch.Tensor]
    noise: torch.Tensor
    rewards: torch.Tensor
    dones: torch.Tensor
    time_outs: torch.Tensor

    def part(self, envs: Sequence[int]) -> Data:
        """The same of some envs only, in the order given."""
        rest = {f.name: getattr(self, f.name)[:, envs] for f in dataclasses.fields(self) if f.name != "obs"}
        return Data(obs={name: o[:, envs] for name, o in self.obs.items()}, **rest)

    def to(self, device: str) -> Data:
        """The same on a device."""
        rest = {f.name: getattr(self, f.name).to(device) for f in dataclasses.fields(self) if f.name != "obs"}
        return Data(obs={name: o.to(device) for name, o in self.obs.items()}, **rest)


def make_data(num_envs: int, seed: int) -> Data:
    """Random data whose later envs end their episodes far more often than the first, and observe larger numbers."""
    g = torch.Generator().manual_seed(seed)
    scale = torch.linspace(1.0, 4.0, num_envs).view(1, -1, 1)
    dones = torch.rand(STEPS, num_envs, generator=g) < torch.linspace(0.02, 0.4, num_envs)
    return Data(
        obs={name: 3 + scale * torch.randn(STEPS + 1, num_envs, n, generator=g) for name, n in NUM_OBS.items()},
        noise=torch.randn(STEPS, num_envs, NUM_ACTIONS, generator=g),
        rewards=torch.randn(STEPS, num_envs, generator=g) * scale[..., 0],
        dones=dones,
        time_outs=dones & (torch.rand(STEPS, num_envs, generator=g) < 0.5),
    )


def train_config(agent: AgentConfig, **fields: Any) -> TrainConfig:
    """A config whose env is never built."""
    env: Any = SimpleNamespace(observations=NUM_OBS)
    return TrainConfig(task="made-up", env=env, agent=agent, **fields)


def make_learner(
    config: TrainConfig,
    num_envs: int,
    synchronizer: Synchronizer | None = None,
    world_size: int = 1,
    device: str = "cpu",
) -> PPO:
    """Our learner."""
    plain = rsl_rl_config(config, synchronizer or AllReduce())
    plain["multi_gpu"] = {"global_rank": 0, "local_rank": 0, "world_size": world_size} if world_size > 1 else None
    learner = _construct(plain, num_envs, device)
    assert isinstance(learner, PPO)
    return learner


def make_stock_learner(config: TrainConfig, num_envs: int) -> rsl_rl.algorithms.PPO:
    """rsl_rl's own."""
    plain = rsl_rl_config(config, AllReduce())
    plain["multi_gpu"] = None
    known = inspect.signature(rsl_rl.algorithms.PPO).parameters
    stock = {key: value for key, value in plain["algorithm"].items() if key in known}
    stock["class_name"] = "rsl_rl.algorithms:PPO"
    stock["normalize_advantage_per_mini_batch"] = config.agent.advantage_normalization == "mini-batch"
    distribution = {
        "class_name": "rsl_rl.modules.distribution:GaussianDistribution",
        "init_std": config.agent.init_std,
        "std_type": config.agent.std_type,
    }
    actor = {**plain["actor"], "distribution_cfg": distribution}
    return _construct({**plain, "algorithm": stock, "actor": actor}, num_envs)


def _construct(plain: dict[str, Any], num_envs: int, device: str = "cpu") -> rsl_rl.algorithms.PPO:
    zeros = {name: torch.zeros(num_envs, n, device=device) for name, n in NUM_OBS.items()}
    obs = TensorDict(zeros, batch_size=[num_envs], device=device)
    env: Any = SimpleNamespace(num_envs=num_envs, num_actions=NUM_ACTIONS)
    with contextlib.redirect_stdout(io.StringIO()):
        learner = rsl_rl.algorithms.PPO.construct_algorithm(obs, env, plain, device)
    learner.train_mode()
    return learner


def collect(learner: rsl_rl.algorithms.PPO, data: Data) -> None:
    """Fill the learner's storage as a rollout would, with actions that do not depend on how many envs there are."""
    num_envs = data.rewards.shape[1]

    def obs(t: int) -> TensorDict:
        return TensorDict({name: o[t] for name, o in data.obs.items()}, batch_size=[num_envs])

    with torch.no_grad():
        for t in range(STEPS):
            learner.act(obs(t))
            mean, std = learner.actor.output_distribution_params
            actions = mean + std * data.noise[t]
            learner.transition.actions = actions
            learner.transition.actions_log_prob = learner.actor.get_output_log_prob(actions)
            learner.process_env_step(obs(t + 1), data.rewards[t], data.dones[t], {"time_outs": data.time_outs[t]})
        learner.compute_returns(obs(STEPS))


def fix_order(learner: PPO, order: torch.Tensor) -> None:
    """Have the learner's next mini-batches take samples in this order, not in one it draws."""
    learner._permutation = lambda num_samples: order[:num_samples].to(learner.device)


def state_of(learner: rsl_rl.algorithms.PPO) -> dict[str, torch.Tensor]:
    """Parameters, normalizers, Adam's moments and the learning rate, whole, by name."""
    saved = learner.save()
    optimizer = saved["optimizer_state_dict"]
    state = {f"{m}.{k}": t.clone() for m in ("actor", "critic") for k, t in saved[f"{m}_state_dict"].items()}
    state |= {f"adam.{i}.{k}": t.clone() for i, s in optimizer["state"].items() for k, t in s.items()}
    return state | {"learning_rate": torch.tensor(float(optimizer["param_groups"][0]["lr"]), dtype=torch.float64)}


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> tuple[float, str]:
    """The largest difference between two states, relative to the tensor's largest value, and where it is."""
    assert a.keys() == b.keys()
    found = [(((a[k].double() - b[k].double()).abs().max() / (b[k].double().abs().max() + 1e-12)).item(), k) for k in a]
    return max(found)
