"""Simulation in this process, on one device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mjlab_dist.errors import UserError
from mjlab_dist.sim import start_warp
from mjlab_dist.simulate.job import Job, Sizes, Tensors
from mjlab_dist.simulate.shard import Policy, Shard


class Here:
    """Envs in this process. Results are tensors on their device."""

    def __init__(self, job: Job, device: str) -> None:
        """Build the envs."""
        if device != "cpu":
            torch.cuda.set_device(device)  # for code that does not name a device; ranks do the same
        start_warp(device)
        self._shard = Shard(job, range(job.num_envs), device)
        self._result: Tensors = {}
        self.device = device
        self.sizes: Sizes = self._shard.sizes

    def reset(self, seed: int | None) -> Tensors:
        """See :meth:`Shard.reset`."""
        return self._shard.reset(seed)

    def begin_step(self, actions: torch.Tensor) -> None:
        """Start a step. On a GPU, the call does not wait for the step to end."""
        self._result = self._shard.step(actions)

    def end_step(self) -> Tensors:
        """Return the results of the step."""
        return self._result

    def rollout(self, policy: Policy, num_steps: int) -> Tensors:
        """See :meth:`Shard.rollout`. Return the results."""
        layout = self.sizes.rollout_layout(num_steps, len(self._shard.rows))
        results = {
            name: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype), device=self.device)
            for name, entry in layout.items()
        }
        self._shard.remember()
        try:
            self._shard.rollout(policy, results)
        except UserError:
            self._shard.undo()
            raise
        return results

    def state(self) -> Tensors:
        """See :meth:`Shard.state`."""
        return self._shard.state()

    def load_state(self, state: Mapping[str, torch.Tensor]) -> Tensors:
        """See :meth:`Shard.load_state`."""
        return self._shard.load_state(state)

    def poses(self, env: int) -> Tensors:
        """See :meth:`Shard.poses`."""
        return self._shard.poses(env)

    def close(self) -> None:
        """Free the envs."""
        del self._shard
