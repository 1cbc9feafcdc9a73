"""Function for the ranks of test_two_ranks.py: train for a few iterations, and record internal values."""

from __future__ import annotations

import dataclasses
import os
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from own_ranks import Saved

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.distributed import Rank, RankDevice, RankPlan, rank_from_environment
from mjlab_dist.distributed.group import meet, process_group
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.launch import worker

NUM_ENVS = 16
STEPS = 8
ITERATIONS = 3
SEED = 7


def own_config() -> Any:
    base = registry.task_config("cartpole-balance")
    agent = dataclasses.replace(base.agent, num_steps_per_env=STEPS, obs_normalization=True)
    env = dataclasses.replace(base.env, episode_length_s=0.1)  # ten steps, so that episodes end in the run
    return dataclasses.replace(
        base, agent=agent, env=env, num_envs=NUM_ENVS, total_num_envs=None, max_iterations=ITERATIONS, seed=SEED
    )


class Watch(HostSyncs):
    """Records collective operations in addition to the waits of the host."""

    def __init__(self) -> None:
        super().__init__(indices=False)
        self.collectives: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.collectives.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs)


def probe(config: TrainConfig, plan: RankPlan, control: Control) -> Saved:  # noqa: ARG001
    rank = rank_from_environment(os.environ)
    return Saved.of(plan, rank.rank, _results(rank, plan.device))


def _results(rank: Rank, own: RankDevice) -> dict[str, Any]:
    device = own.device
    worker.prepare_process(own, rank, SEED)

    from mjlab_dist.distributed.local_sum import LocalSum
    from mjlab_dist.env import Env
    from mjlab_dist.learn.runner import Runner

    sum_ = LocalSum.sum_

    def counted(self: LocalSum, values: torch.Tensor) -> None:
        runner.watches[-1].collectives.append("local sum")
        sum_(self, values)

    LocalSum.sum_ = counted

    class Watched(Runner):
        """Stores the state after each update and the gradients before and after the first reduction.

        It also counts collectives and waits.
        """

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.states: list[torch.Tensor] = []
            self.watches: list[Watch] = []
            self.reduction: tuple[torch.Tensor, torch.Tensor] | None = None
            reduce = self.alg.synchronizer.reduce

            def watch(buffer: torch.Tensor) -> None:
                before = buffer.clone()
                reduce(buffer)
                self.reduction = self.reduction or (before, buffer.clone())

            self.alg.synchronizer.reduce = watch

        def _iteration(self, obs: Any, iteration: int) -> Any:
            self.settle()
            # Count in the whole iteration (rollout, update and metrics), until the next iteration begins
            self.watches.append(Watch())
            self.watches[-1].__enter__()
            return super()._iteration(obs, iteration)

        def settle(self) -> None:
            """Record the results of the previous iteration."""
            if self.watches:
                self.watches[-1].__exit__(None, None, None)
            tensors = chain(*(self.alg.network_state(name).values() for name in ("actor", "critic")))
            self.states.append(torch.cat([t.flatten().double() for t in tensors]))

    env = Env(own_config().env, NUM_ENVS, device)
    captured_before_group = env.sim.captured and not dist.is_initialized()
    with process_group(rank, device, own.backend, meet(rank)):
        drawn = torch.rand(3)
        runner = Watched(env, own_config(), rank)
        first_obs = env.get_observations()["actor"].clone()
        row = runner.train()
        runner.settle()
        assert runner.reduction is not None
        local, averaged = runner.reduction
        return {
            "rank": rank.rank,
            "drawn": drawn.tolist(),
            "states": [s.tolist() for s in runner.states],
            "first_obs": first_obs.tolist(),
            "local_gradient": local.tolist(),
            "averaged_gradient": averaged.tolist(),
            "collectives": [len(w.collectives) for w in runner.watches],
            "waits": [len(w.found) for w in runner.watches],
            "row": row,
            "learning_rate": runner.alg.rate.item(),
            "seed": torch.initial_seed(),
            "threads": torch.get_num_threads(),
            "backend": dist.get_backend(),
            "captured_before_group": captured_before_group,
            "wandb_variable": os.environ.get("WANDB_NOTES"),
        }
