"""Measure how long a PPO update takes with mjlab_dist and with unmodified rsl_rl, and print the ratio of the times.

Both update the same networks with the same data. The output calls unmodified rsl_rl "stock", and mjlab_dist "ours".

uv run scripts/bench_update.py --ranks 2
"""

from __future__ import annotations

import argparse
import functools
import inspect
import os
import statistics
import tempfile
import time
from types import SimpleNamespace
from typing import Any

import rsl_rl.algorithms
import torch
import torch.distributed as dist
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from mjlab_dist.config import PpoConfig, TrainConfig
from mjlab_dist.distributed.group import process_group
from mjlab_dist.distributed.rank import Rank
from mjlab_dist.distributed.synchronizer import AllReduce
from mjlab_dist.learn.networks import BoundedGaussian
from mjlab_dist.learn.ppo import make_ppo

NUM_OBS, NUM_ACTIONS = 48, 12
STEPS, NUM_ENVS = 24, 1024
POLICIES = {"64x64": (64, 64), "512x256x128": (512, 256, 128)}


def learner(hidden_dims: tuple[int, ...], stock: bool, rank: int, ranks: int, device: str) -> rsl_rl.algorithms.PPO:
    """Return the learner of a rank, for rollouts of 24 steps in 1024 envs per rank."""
    agent = PpoConfig(
        num_steps_per_env=STEPS, actor_hidden_dims=hidden_dims, critic_hidden_dims=hidden_dims, obs_normalization=True
    )
    obs = TensorDict({"actor": torch.zeros(NUM_ENVS, NUM_OBS, device=device)}, batch_size=[NUM_ENVS])
    torch.manual_seed(0)
    if stock:
        made = stock_learner(agent, obs, rank, ranks, device)
    else:
        env: Any = SimpleNamespace(num_actions=NUM_ACTIONS, device=device, get_observations=lambda: obs)
        made = make_ppo(TrainConfig(task="bench", env=env, agent=agent), env, AllReduce())
    made.train_mode()
    return made


def stock_learner(agent: PpoConfig, obs: TensorDict, rank: int, ranks: int, device: str) -> rsl_rl.algorithms.PPO:
    """Return rsl_rl's PPO. Its actions have mjlab_dist's class of distribution, so only the updates are compared."""
    names = inspect.signature(rsl_rl.algorithms.PPO).parameters.keys() & vars(agent).keys()
    arguments = {name: getattr(agent, name) for name in names}
    gaussian = functools.partial(
        BoundedGaussian, init_std=agent.init_std, min_std=agent.min_std, std_type=agent.std_type
    )
    groups = {"actor": ["actor"]}
    shared = (agent.actor_hidden_dims, agent.activation, agent.obs_normalization)
    actor = MLPModel(obs, groups, "actor", NUM_ACTIONS, *shared, {"class_name": gaussian}).to(device)
    critic = MLPModel(obs, groups, "actor", 1, *shared).to(device)
    storage = RolloutStorage("rl", NUM_ENVS, STEPS, obs, [NUM_ACTIONS], device)
    group = {"global_rank": rank, "local_rank": rank, "world_size": ranks} if ranks > 1 else None
    return rsl_rl.algorithms.PPO(actor, critic, storage, device=device, multi_gpu_cfg=group, **arguments)


def update_s(made: rsl_rl.algorithms.PPO, seed: int, device: str) -> float:
    """Fill a rollout with random numbers. Return the time to compute returns and advantages and to update, in s."""
    torch.manual_seed(seed)
    obs = TensorDict({"actor": torch.randn(NUM_ENVS, NUM_OBS, device=device)}, batch_size=[NUM_ENVS])
    with torch.inference_mode():
        for _ in range(STEPS):
            obs["actor"] = torch.randn(NUM_ENVS, NUM_OBS, device=device)
            made.act(obs)
            dones = torch.rand(NUM_ENVS, device=device) < 0.02
            made.process_env_step(obs, torch.randn(NUM_ENVS, device=device), dones, {"time_outs": dones})
    if dist.is_initialized():
        dist.barrier()
    _settle(device)
    start = time.perf_counter()
    with torch.inference_mode():
        made.compute_returns(obs)
    made.update()
    _settle(device)
    return time.perf_counter() - start


def _settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def bench(rank: int, ranks: int, repeats: int, device: str, store: str) -> None:
    """Run one rank of the benchmark."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    here = Rank(rank=rank, local_rank=rank, world_size=ranks, on_one_machine=True)
    with process_group(here, device, "gloo", FileStore(store, ranks) if ranks > 1 else None):
        for name in POLICIES:
            _compare(name, rank, ranks, repeats, device)


def _compare(name: str, rank: int, ranks: int, repeats: int, device: str) -> None:
    learners = {kind: learner(POLICIES[name], kind == "stock", rank, ranks, device) for kind in ("stock", "ours")}
    seconds: dict[str, list[float]] = {kind: [] for kind in learners}
    for repeat in range(repeats + 1):
        for kind, made in learners.items():
            seconds[kind].append(update_s(made, repeat, device))
    stock, ours = (statistics.median(seconds[kind][1:]) for kind in ("stock", "ours"))
    spread = {kind: f"{min(s[1:]):.3f} to {max(s[1:]):.3f}" for kind, s in seconds.items()}
    if rank == 0:
        print(
            f"{name:>12} on {ranks} rank(s), {device}: stock {stock:.3f} s ({spread['stock']}), "
            f"ours {ours:.3f} s ({spread['ours']}): ours is {stock / ours:.2f} times as fast",
            flush=True,
        )


def main() -> None:
    """Print one line per policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")  # noqa: PTH118 (FileStore takes a str)
        rest = (args.ranks, args.repeats, args.device, store)
        if args.ranks == 1:
            bench(0, *rest)
        else:
            spawn(bench, rest, nprocs=args.ranks)


if __name__ == "__main__":
    main()
