"""What runs on every rank of test_synchronised.py: a few iterations, watched from inside."""

from __future__ import annotations

import dataclasses
import os
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from mjlab_dist import registry, worker
from mjlab_dist.distributed import DevicePlan, rank_from_environment
from mjlab_dist.distributed.group import process_group

NUM_ENVS = 16
STEPS = 8
ITERATIONS = 3
SEED = 7


def config() -> Any:
    base = registry.task_config("cartpole-balance")
    agent = dataclasses.replace(base.agent, num_steps_per_env=STEPS, obs_normalization=True)
    env = dataclasses.replace(base.env, episode_length_s=0.1)  # ten steps: episodes end within the run
    return dataclasses.replace(base, agent=agent, env=env, num_envs=NUM_ENVS, max_iterations=ITERATIONS, seed=SEED)


def probe(plan: DevicePlan) -> dict[str, Any]:
    rank = rank_from_environment(os.environ)
    device = plan.devices[rank.local_rank]
    worker.prepare_process(plan, rank, device, SEED)

    from mjlab_dist.env import Env
    from mjlab_dist.learn import Runner

    class Watched(Runner):
        """Keeps the state after every update, and what one reduction of gradients did."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.states: list[torch.Tensor] = []
            self.rows: list[Any] = []
            self.reduction: tuple[torch.Tensor, torch.Tensor] | None = None
            reduce = self.alg.reduce_parameters

            def watch() -> None:
                before = self._gradients()
                reduce()
                self.reduction = self.reduction or (before, self._gradients())

            self.alg.reduce_parameters = watch

        def _gradients(self) -> torch.Tensor:
            parameters = chain(self.alg.actor.parameters(), self.alg.critic.parameters())
            return torch.cat([p.grad.flatten().clone() for p in parameters if p.grad is not None])

        def _iteration(self, obs: Any) -> Any:
            result = super()._iteration(obs)
            tensors = chain(self.alg.actor.state_dict().values(), self.alg.critic.state_dict().values())
            self.states.append(torch.cat([t.flatten().double() for t in tensors]))
            return result

    env = Env(config().env, NUM_ENVS, device)
    captured_before_group = env.sim.captured and not dist.is_initialized()
    with process_group(rank, device, plan.backend):
        runner = Watched(env, config(), rank)
        before = torch.cat([p.detach().flatten().double() for p in runner.alg.actor.parameters()])
        first_obs = env.get_observations()["actor"].clone()
        row = runner.train()
        assert runner.reduction is not None
        local, averaged = runner.reduction
        return {
            "rank": rank.rank,
            "before": before.tolist(),
            "states": [s.tolist() for s in runner.states],
            "first_obs": first_obs.tolist(),
            "local_gradient": local.tolist(),
            "averaged_gradient": averaged.tolist(),
            "row": row,
            "learning_rate": runner.alg.learning_rate,
            "seed": torch.initial_seed(),
            "threads": torch.get_num_threads(),
            "backend": dist.get_backend(),
            "captured_before_group": captured_before_group,
            "wandb_variable": os.environ.get("WANDB_NOTES"),
            "egl_device": os.environ.get("MUJOCO_EGL_DEVICE_ID"),
        }
