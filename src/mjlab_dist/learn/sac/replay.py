"""The replay of one rank: its envs' newest transitions, on its device, and batches that do not depend on the ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from mjlab_dist.learn.sac.keyed_random import random_integers

# Observation groups that hold the states after the steps
NEXT = "next "


class Batch(NamedTuple):
    """Samples, each with the state after n steps, or after the end of its episode if that is earlier."""

    # Observations by group, (..., width)
    observations: dict[str, torch.Tensor]
    # Squashed actions, (..., num_actions)
    actions: torch.Tensor
    # Discounted sums of rewards, (...)
    rewards: torch.Tensor
    # Observations after these rewards, by group, (..., width)
    next_observations: dict[str, torch.Tensor]
    # Weights of the values of these observations, (...); 0 after a termination
    discounts: torch.Tensor

    def split(self) -> list[Batch]:
        """Return the batches along the first dimension."""
        parts = [
            [dict(zip(field, rows, strict=True)) for rows in zip(*field.values(), strict=True)]
            if isinstance(field, dict)
            else field.unbind()
            for field in self
        ]
        return [Batch(*fields) for fields in zip(*parts, strict=True)]


class Replay:
    """A ring of steps, each with the transitions of all envs of this rank.

    Attributes:
        num_rows: Number of steps in the ring.
    """

    def __init__(self, num_rows: int, num_envs: int, widths: Mapping[str, int], num_actions: int, device: str) -> None:
        """Allocate the ring.

        Args:
            num_rows: Maximum number of steps.
            num_envs: Envs of this rank.
            widths: Widths of the observation groups that the networks read.
            num_actions: Width of the actions.
            device: The rank's device.
        """
        self._num_envs = num_envs
        self._device = device
        self._groups = tuple(widths)
        self._end = 0
        self.num_rows = 0
        sizes = {**widths, **{NEXT + name: width for name, width in widths.items()}, "actions": num_actions}
        self._rows = {name: torch.zeros(num_rows, num_envs, size, device=device) for name, size in sizes.items()}
        self._rows["rewards"] = torch.zeros(num_rows, num_envs, device=device)
        self._rows |= {
            name: torch.zeros(num_rows, num_envs, dtype=torch.bool, device=device) for name in ("dones", "terminated")
        }

    @property
    def _capacity(self) -> int:
        return len(self._rows["rewards"])

    def add(self, rows: Mapping[str, torch.Tensor]) -> None:
        """Append steps, which replace the oldest ones.

        Args:
            rows: ``actions``, ``rewards``, ``dones``, ``terminated``, the observation groups, and those after the steps
                under :data:`NEXT`, each of shape (steps, num_envs, ...).
        """
        count = len(rows["rewards"])
        where = (torch.arange(count, device=rows["rewards"].device) + self._end) % self._capacity
        for name, ring in self._rows.items():
            ring.index_copy_(0, where, rows[name])
        self._end = (self._end + count) % self._capacity
        self.num_rows = min(self.num_rows + count, self._capacity)

    def sample(self, key: int, positions: torch.Tensor, *, block: int, num_steps: int, gamma: float) -> Batch:
        """Draw samples.

        Args:
            key: Key of the random numbers.
            positions: Position of each sample in the random numbers, (updates, samples).
            block: Number of envs from which a sample is drawn: the first samples come from the first ``block`` envs.
            num_steps: Steps of a sample.
            gamma: Discount factor.
        """
        # Step and env in which each sample starts
        age = random_integers(key, 2 * positions) % (self.num_rows - num_steps + 1) + num_steps
        first = torch.arange(positions.shape[1], device=positions.device) * (self._num_envs // block)
        first = first // positions.shape[1] * block
        env = first + random_integers(key, 2 * positions + 1) % block
        steps = torch.arange(num_steps, device=age.device)
        row = (self._end - age).unsqueeze(-1) + steps
        where = row % self._capacity * self._num_envs + env.unsqueeze(-1)
        # Rewards until the episode ends, and the last of these steps
        ended = self._of("dones", where)
        before = torch.cat([torch.zeros_like(ended[..., :1]), ended[..., :-1]], dim=-1).cumsum(dim=-1) == 0
        rewards = (self._of("rewards", where) * before * gamma**steps).sum(dim=-1)
        count = before.sum(dim=-1)
        start, last = where[..., 0], where.gather(-1, count.unsqueeze(-1) - 1).squeeze(-1)
        going_on = ~self._of("terminated", last)
        return Batch(
            observations={name: self._of(name, start) for name in self._groups},
            actions=self._of("actions", start),
            rewards=rewards,
            next_observations={name: self._of(NEXT + name, last) for name in self._groups},
            discounts=going_on * torch.pow(torch.full_like(rewards, gamma), count),
        )

    def _of(self, name: str, where: torch.Tensor) -> torch.Tensor:
        rows = self._rows[name].flatten(0, 1)
        return rows.index_select(0, where.flatten()).view(*where.shape, *rows.shape[1:])

    def state(self) -> dict[str, torch.Tensor]:
        """Return the steps in the ring, oldest first, by name; without steps, return nothing."""
        if not self.num_rows:
            return {}
        where = (torch.arange(self.num_rows) + self._end - self.num_rows) % self._capacity
        return {name: ring[where.to(ring.device)] for name, ring in self._rows.items()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> bool:
        """Replace all steps by those of :meth:`state`, or by the newest of them; by none if they do not fit.

        Returns:
            Whether they fit.
        """
        self.num_rows = self._end = 0
        fits = state.keys() == self._rows.keys() and all(
            state[name].shape[1:] == ring.shape[1:] and state[name].dtype == ring.dtype
            for name, ring in self._rows.items()
        )
        if fits:
            self.add({name: rows[-self._capacity :].to(self._device) for name, rows in state.items()})
        return fits

    def end_episodes(self) -> None:
        """Let the episodes of the newest steps end, because the next steps belong to other episodes."""
        self._rows["dones"][self._end - 1] = True


def block_size(num_envs: int, num_samples: int) -> int:
    """Return the number of envs from which a sample is drawn. It is the same for any number of ranks.

    Args:
        num_envs: Envs of all ranks.
        num_samples: Samples of all ranks in a batch.
    """
    return num_envs // math.gcd(num_envs, num_samples)
