"""Learners with artificial rollouts, for tests of the update on one rank and on several."""

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
from rsl_rl.extensions import RandomNetworkDistillation
from tensordict import TensorDict

from mjlab_dist.config import PpoConfig, RndConfig, SacConfig, SymmetryConfig, TrainConfig
from mjlab_dist.distributed import Rank
from mjlab_dist.distributed.synchronizer import AllReduce, Synchronizer
from mjlab_dist.learn.ppo import PPO, make_ppo
from mjlab_dist.learn.sac.sac import SAC

STEPS = 12
NUM_OBS = {"actor": 6, "critic": 9}
NUM_ACTIONS = 3
MINI_BATCHES = 4

AGENT = PpoConfig(
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
    """Data of a rollout, with shape (STEPS, num_envs, ...). Observations have STEPS + 1 rows."""

    obs: dict[str, torch.Tensor]
    noise: torch.Tensor
    rewards: torch.Tensor
    dones: torch.Tensor
    time_outs: torch.Tensor

    def part(self, envs: Sequence[int]) -> Data:
        """Return the data of some envs, in the given order."""
        rest = {f.name: getattr(self, f.name)[:, envs] for f in dataclasses.fields(self) if f.name != "obs"}
        return Data(obs={name: o[:, envs] for name, o in self.obs.items()}, **rest)

    def to(self, device: str) -> Data:
        """Return the data on a device."""
        rest = {f.name: getattr(self, f.name).to(device) for f in dataclasses.fields(self) if f.name != "obs"}
        return Data(obs={name: o.to(device) for name, o in self.obs.items()}, **rest)


def make_data(num_envs: int, seed: int) -> Data:
    """Draw random data. From the first to the last env, episodes become shorter and observations larger."""
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


def train_config(agent: PpoConfig, **fields: Any) -> TrainConfig:
    """Return a training config. Its env is never built."""
    env: Any = SimpleNamespace(observations=NUM_OBS, reward_scale="none")
    return TrainConfig(task="made-up", env=env, agent=agent, **fields)


def make_learner(
    config: TrainConfig, num_envs: int, synchronizer: Synchronizer | None = None, device: str = "cpu"
) -> PPO:
    """Build a learner of this package."""
    learner = make_ppo(config, made_up_env(num_envs, device), synchronizer or AllReduce())
    learner.train_mode()
    return learner


def sac_config(**fields: Any) -> SacConfig:
    """Return the config of a small soft actor-critic, which learns after each rollout of STEPS steps."""
    defaults: dict[str, Any] = {
        "num_steps_per_env": STEPS,
        "updates_per_step": 0.5,
        "batch_size": 48,
        "replay_size": 4096,
        "warmup_steps": STEPS,
        "n_step": 3,
        "actor_hidden_dims": (32, 16),
        "critic_hidden_dims": (32, 16),
        "obs_normalization": True,
    }
    return SacConfig(**{**defaults, **fields})


def make_sac(
    agent: SacConfig,
    num_envs: int,
    synchronizer: Synchronizer | None = None,
    rank: Rank | None = None,
    groups: Sequence[str] = tuple(NUM_OBS),
    device: str = "cpu",
) -> SAC:
    """Build a soft actor-critic that reads some groups of observations. Its actions are between -2 and 2."""
    env = made_up_env(num_envs, device)
    block = SimpleNamespace(ids=(), config=SimpleNamespace(clip=(-2.0, 2.0)))
    ones, names = torch.ones(NUM_ACTIONS), tuple("abc")
    term = SimpleNamespace(
        block=block, names=names, scale=ones, offset=ones, has_joint_positions=False, is_direct=False
    )
    env.action_terms, env.sim = (term,), SimpleNamespace(model=None)
    env.get_observations = lambda: zeros(num_envs, device).select(*groups)
    config: Any = SimpleNamespace(agent=agent, seed=1)
    learner = SAC(config, env, synchronizer or AllReduce(), rank or Rank())
    learner.train_mode()
    return learner


def collect_for_sac(learner: SAC, data: Data) -> None:
    """Add a rollout to the replay. An env's actions do not depend on the number of envs."""
    num_envs = data.rewards.shape[1]

    def obs(t: int) -> TensorDict:
        return TensorDict({name: o[t] for name, o in data.obs.items()}, batch_size=[num_envs])

    for t in range(STEPS):
        with learner.no_grad():
            learner.act(obs(t))
        learner.storage.actions[t] = 2.0 * data.noise[t].tanh()
        learner._final.observed = {name: o[t + 1] + 1.0 for name, o in data.obs.items()}
        learner.process_env_step(obs(t + 1), data.rewards[t], data.dones[t], {"time_outs": data.time_outs[t]})
    learner.compute_returns(obs(STEPS))


def make_stock_learner(config: TrainConfig, num_envs: int) -> rsl_rl.algorithms.PPO:
    """Build rsl_rl's own PPO from a config, with rsl_rl's code."""
    agent = config.agent
    assert isinstance(agent, PpoConfig)
    network = {
        "class_name": "MLPModel",
        "activation": agent.activation,
        "obs_normalization": agent.obs_normalization,
    }
    if agent.rnn != "none":
        network |= {
            "class_name": "RNNModel",
            "rnn_type": agent.rnn,
            "rnn_hidden_dim": agent.rnn_hidden_dim,
            "rnn_num_layers": agent.rnn_num_layers,
        }
    names = inspect.signature(rsl_rl.algorithms.PPO).parameters.keys() & vars(agent).keys()
    plain = {
        "num_steps_per_env": agent.num_steps_per_env,
        "obs_groups": {"actor": ["actor"], "critic": ["critic"], "rnd_state": ["actor"]},
        "multi_gpu": None,
        "algorithm": {
            "class_name": "PPO",
            **{name: getattr(agent, name) for name in names},
            "normalize_advantage_per_mini_batch": agent.advantage_normalization == "mini-batch",
            "use_mixed_precision": agent.precision == "bf16",
            "symmetry_cfg": stock_symmetry(agent.symmetry),
            "rnd_cfg": stock_rnd(agent.rnd),
        },
        "actor": {
            **network,
            "hidden_dims": agent.actor_hidden_dims,
            "distribution_cfg": {
                "class_name": "GaussianDistribution",
                "init_std": agent.init_std,
                "std_type": agent.std_type,
            },
        },
        "critic": {**network, "hidden_dims": agent.critic_hidden_dims},
    }
    env = made_up_env(num_envs)
    with contextlib.redirect_stdout(io.StringIO()):
        learner = rsl_rl.algorithms.PPO.construct_algorithm(zeros(num_envs), env, plain, "cpu")
    learner.train_mode()
    return learner


def mirrored(
    env: Any, obs: TensorDict | None, actions: torch.Tensor | None
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """Append samples of reversed observations, of negated ones, and of both: four times as many in all."""
    if obs is not None:
        assert env.num_actions == NUM_ACTIONS
        groups: dict[str, Any] = dict(obs.items())
        groups = {name: torch.cat([o, o.flip(-1), -o, -o.flip(-1)]) for name, o in groups.items()}
        obs = TensorDict(groups, batch_size=[4 * len(obs)])
    return obs, None if actions is None else torch.cat([actions, actions.flip(-1), -actions, -actions.flip(-1)])


def stock_symmetry(config: SymmetryConfig) -> dict[str, Any] | None:
    """Return the config of rsl_rl's symmetry extension."""
    if not config.is_used:
        return None
    return {
        "data_augmentation_func": mirrored,
        "use_data_augmentation": config.use_data_augmentation,
        "use_mirror_loss": config.mirror_loss_coef > 0,
        "mirror_loss_coeff": config.mirror_loss_coef,
    }


def stock_rnd(config: RndConfig) -> dict[str, Any] | None:
    """Return the config of rsl_rl's random network distillation."""
    names = inspect.signature(RandomNetworkDistillation).parameters.keys() & vars(config).keys()
    return {name: getattr(config, name) for name in names} if config.is_used else None


def made_up_env(num_envs: int, device: str = "cpu") -> Any:
    """Return the parts of an env that building a learner needs."""
    return SimpleNamespace(
        num_envs=num_envs,
        num_actions=NUM_ACTIONS,
        device=device,
        get_observations=lambda: zeros(num_envs, device),
        unwrapped=SimpleNamespace(step_dt=1.0),
    )


def zeros(num_envs: int, device: str = "cpu") -> TensorDict:
    """Return observations that are zero."""
    groups = {name: torch.zeros(num_envs, width, device=device) for name, width in NUM_OBS.items()}
    return TensorDict(groups, batch_size=[num_envs], device=device)


def collect(learner: rsl_rl.algorithms.PPO, data: Data) -> None:
    """Fill the learner's storage as a rollout does. An env's actions do not depend on the number of envs."""
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
    """Let the learner's next mini-batches take samples in this order, not in a random order."""
    learner._permutation = lambda num_samples: order[:num_samples].to(learner.device)


def state_of(learner: rsl_rl.algorithms.PPO) -> dict[str, torch.Tensor]:
    """Return parameters, normalizers, Adam's moments and the learning rate by name, with sharded tensors gathered."""
    saved = learner.save()
    optimizer = saved["optimizer_state_dict"]
    models = [name for name in ("actor", "critic", "rnd") if f"{name}_state_dict" in saved]
    state = {f"{m}.{k}": t.clone() for m in models for k, t in saved[f"{m}_state_dict"].items()}
    for name in ("optimizer", "rnd_optimizer"):
        moments = saved.get(f"{name}_state_dict", {"state": {}})["state"]
        state |= {f"{name}.{i}.{k}": t.clone() for i, s in moments.items() for k, t in s.items()}
    return state | {"learning_rate": torch.tensor(float(optimizer["param_groups"][0]["lr"]), dtype=torch.float64)}


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> tuple[float, str]:
    """Return the largest relative difference between tensors of two states, and the name of the tensor that has it.

    The difference of a tensor is its largest absolute difference, divided by the largest absolute value in `b`.
    """
    assert a.keys() == b.keys()
    found = [(((a[k].double() - b[k].double()).abs().max() / (b[k].double().abs().max() + 1e-12)).item(), k) for k in a]
    return max(found)
