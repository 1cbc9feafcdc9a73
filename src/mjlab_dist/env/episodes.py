"""Determine which episodes end, and sum rewards and metrics: per running episode, and in total over ended episodes.

Also play whole episodes: the first episode of every env, from its start to its end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
import warp as wp
from tensordict import TensorDict

from mjlab_dist.config import Reduction
from mjlab_dist.env import kernels
from mjlab_dist.env.columns import is_convertible
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

# Number of control steps between two checks of whether all episodes have ended; each check waits for the GPU
CHECK_INTERVAL = 32


class EpisodeTotals(NamedTuple):
    """Sums over the episodes that ended since the totals were last read; tensors on the env's device."""

    episodes: torch.Tensor
    """Number of episodes, a scalar."""
    steps: torch.Tensor
    """Number of control steps of these episodes, a scalar."""
    terms: torch.Tensor
    """For each reward term, the sum of its weighted rewards in all steps of these episodes, (num_terms,). The sum over
    the terms is the sum of the episodes' returns."""
    unweighted: torch.Tensor
    """The same sums, of rewards without weights, (num_terms,)."""
    terminations: torch.Tensor
    """Number of episodes ended by each reason, (1 + num_terminations,): the time limit, then each termination term.
    Several reasons may end the same episode."""
    metrics: torch.Tensor
    """For each metric, the sum of its values, (num_metrics,). Each of these episodes has one value."""


class Episodes:
    """Ends of episodes; steps, rewards and metrics of running episodes; and totals of ended episodes.

    The totals exclude an episode if :meth:`Env.stagger` shortened it, or if one of its values is not finite.

    Attributes:
        done: Envs whose episode ends in this step, (num_envs,) of bool.
        time_outs: Envs whose episode is cut off in this step and does not terminate, (num_envs,) of bool.
        broken: Envs with a non-finite number, (num_envs,) of bool; the next :meth:`end_step` ends their episodes.
        earned: Rewards of this step by term, without weights, (num_terms, num_envs).
        reward: Weighted sum of ``earned`` over the terms, (num_envs,).
        limit_row: 1 for envs whose episode has reached its maximum length, else 0, (num_envs,), written by the env's
            ``begin_step`` kernel.
    """

    def __init__(
        self,
        sim: Simulation,
        *,
        timed_out: torch.Tensor,
        terminated: torch.Tensor,
        rewards: Sequence[str],
        terminations: Sequence[tuple[str, bool]],
        metrics: Sequence[tuple[str, Reduction]],
        weights: torch.Tensor,
    ) -> None:
        """Allocate the sums and record the kernels.

        Args:
            sim: The physics.
            timed_out: Envs whose episode is cut off in a step, (num_envs,) of bool.
            terminated: Envs whose episode is terminated in a step, (num_envs,) of bool.
            rewards: Names of the reward terms.
            terminations: Name of each termination term, and whether it cuts episodes off, as the time limit does.
            metrics: Name and reduction of each metric.
            weights: Weights of the reward terms per control step, (num_terms,); read in every step.
        """
        self._weights = weights
        self._rewards, self._terminations, self._metrics = rewards, terminations, metrics
        self._num_envs, self._is_checked = sim.num_envs, False
        num_terms, num_terminations, num_metrics = len(rewards), len(terminations), len(metrics)

        # State of this step
        self.done, self.time_outs, self.broken = torch.zeros(3, sim.num_envs, dtype=torch.bool, device=sim.device)
        self._ended_by = torch.zeros(num_terminations, sim.num_envs, dtype=torch.bool, device=sim.device)
        self.earned = torch.zeros(num_terms, sim.num_envs, device=sim.device)
        self.reward = torch.zeros(sim.num_envs, device=sim.device)
        self._values = torch.zeros(num_metrics, sim.num_envs, device=sim.device)
        self._finished = torch.zeros(sim.num_envs, device=sim.device)

        # Rows that are summed over ended episodes: ones, steps, reward terms, reasons for ending, metrics
        self._sizes = [1, 1, num_terms, 1 + num_terminations, num_metrics]
        self._ledger = torch.zeros(sum(self._sizes), sim.num_envs, device=sim.device)
        self._ledger[0] = 1.0
        _, (self.steps,), self.rewards, reasons, self.metrics = self._ledger.split(self._sizes)
        self.limit_row = reasons[0]
        # 1 if the totals include the running episode when it ends, else 0
        self._counts = torch.ones(sim.num_envs, device=sim.device)
        self._memory = torch.zeros(num_metrics, sim.num_envs, device=sim.device)
        self._totals = torch.zeros(len(self._ledger), device=sim.device)

        # Kernels of a step
        with wp.ScopedDevice(sim.device):
            is_time_out = wp.array([is_time_out for _, is_time_out in terminations], dtype=wp.bool)
            reductions = wp.array([getattr(kernels, reduction.upper()) for _, reduction in metrics], dtype=int)
        ends = [self._ended_by, is_time_out, timed_out, terminated, reasons[1:]]
        inputs = [timed_out, self.broken, self._values, reductions, self.steps]
        changed = [terminated, self.earned, self._counts, self.done, self.time_outs, self._finished, self.rewards]
        sums = [self._memory, self.metrics, weights, self.reward]
        record = functools.partial(sim.record_launch, size=sim.num_envs, changes_state=False)
        self._end_by_terms = record(kernels.end_by_terms, arguments=ends) if terminations else None
        self._end_step = record(kernels.end_step, arguments=[*inputs, *changed, *sums])

    def count_all(self, counts: bool) -> None:
        """Set whether the running episodes count.

        Args:
            counts: True to include them in the totals when they end.
        """
        self._counts.fill_(float(counts))

    def end_by_terms(self, results: Sequence[torch.Tensor]) -> None:
        """Update which episodes are cut off or terminated.

        Args:
            results: Result of each termination term, (num_envs,) of bool.

        Raises:
            UserError: In the first step, if a term returned the wrong shape or type.
        """
        if self._end_by_terms is None:
            return
        if not self._is_checked:
            names = [f"env.terminations.{name}" for name, _ in self._terminations]
            self._check(names, results, lambda dtype: dtype == torch.bool, "bool")
        torch.stack(list(results), out=self._ended_by)
        self._end_by_terms()

    def store(self, rewards: Sequence[torch.Tensor], metrics: Sequence[torch.Tensor]) -> None:
        """Store rewards and metrics of a step.

        Args:
            rewards: Result of each reward term, (num_envs,).
            metrics: Value of each metric, (num_envs,) of any real type except float64.

        Raises:
            UserError: In the first step, if a term returned the wrong shape or type.
        """
        if not self._is_checked:
            self._check([f"env.rewards.{name}" for name in self._rewards], rewards, is_convertible, "float32")
            names = [name.replace("metric/", "env.metrics.") for name, _ in self._metrics]
            self._check(names, metrics, is_convertible, "float32")
            self._is_checked = True
        torch.stack(list(rewards), out=self.earned)
        if metrics:
            torch.stack(list(metrics), out=self._values)

    def end_step(self) -> None:
        """Determine which episodes end. Add this step to the sums over episodes, and ended episodes to the totals.

        Afterwards, the caller must set :attr:`rewards` to 0 in the envs whose episode has ended.
        """
        self._end_step()
        self._totals.addmv_(self._ledger, self._finished)

    def outcomes(self) -> torch.Tensor:
        """Return termination reasons and metrics of the episodes, (1 + num_terminations + num_metrics, num_envs)."""
        return self._ledger[sum(self._sizes[:3]) :].clone()

    def pop_totals(self) -> EpisodeTotals:
        """Return the totals since the previous call."""
        episodes, steps, rewards, terminations, metrics = self._totals.clone().split(self._sizes)
        self._totals.zero_()
        return EpisodeTotals(episodes[0], steps[0], self._weights * rewards, rewards, terminations, metrics)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the next totals depend on, by name."""
        sums, reasons_and_metrics = self._totals.split([sum(self._sizes[:3]), sum(self._sizes[3:])])
        return {
            "episode_sums": self.rewards.T,
            "from_start": self._counts,
            "broken": self.broken,
            "totals": sums,
            "episode_metrics": self._memory.T,
            "outcome_totals": reasons_and_metrics,
        }

    def num_bytes(self) -> int:
        """Return the memory of the sums in bytes."""
        held = (self._ledger, self._counts, self._totals, self.earned, self.reward, self._values, self._memory)
        return sum(tensor.nbytes for tensor in held) + self._ended_by.nbytes

    def _check(
        self, names: Sequence[str], results: Sequence[object], accepts: Callable[[torch.dtype], bool], wanted: str
    ) -> None:
        for name, result in zip(names, results, strict=True):
            given = type(result).__name__
            if isinstance(result, torch.Tensor):
                if result.shape == (self._num_envs,) and accepts(result.dtype):
                    continue
                given = f"{tuple(result.shape)} of {str(result.dtype).removeprefix('torch.')}"
            raise UserError(f"{name}: returned {given}; it must return ({self._num_envs},) of {wanted}")


class NotFinite:
    """Search for numbers that are not finite, if ``nan_policy`` is reset.

    Attributes:
        num_resets: Number of episodes that ended because of such numbers, a scalar of int64.
    """

    def __init__(self, sim: Simulation, episodes: Episodes) -> None:
        self.num_resets = torch.zeros((), dtype=torch.long, device=sim.device)
        self._state = (sim.qpos, sim.qvel, sim.view("act"))
        self._episodes = episodes

    def find(self) -> None:
        """Mark and count the envs with a non-finite number in the physics, a reward or the latest observation."""
        broken = self._episodes.broken
        numbers = torch.cat([*self._state, self._episodes.earned.T], dim=1)
        broken.logical_or_(numbers.isfinite().all(dim=1).logical_not_())
        self.num_resets += broken.sum()

    def replace(self, observed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return observations with 0 in place of non-finite numbers, and mark the envs that have any.

        Args:
            observed: Observations by group, (num_envs, width) each.
        """
        finite = {name: torch.nan_to_num(row, 0.0, 0.0, 0.0) for name, row in observed.items()}
        replaced = torch.cat([finite[name] != row for name, row in observed.items()], dim=1)
        torch.any(replaced, dim=1, out=self._episodes.broken)
        return finite


class Policy(Protocol):
    """A policy, such as rsl_rl's models."""

    def __call__(self, obs: TensorDict, /) -> torch.Tensor:
        """Return actions, (num_envs, num_actions)."""
        ...


def episode_columns(env: Env) -> list[str]:
    """Return the names of the values that :func:`play_episodes` returns."""
    return ["return", "length", *(f"reward/{name}" for name in env.reward_names), *env.episode_outcomes()]


def play_episodes(
    env: Env, policy: Policy, ended: Callable[[torch.Tensor], None], alive: Callable[[], None]
) -> torch.Tensor:
    """Reset all envs, and play one episode in each.

    Args:
        ended: Called after every step with the envs whose episode ended in this step, (num_envs,) of bool. This
            includes the ends of second and later episodes.

    Returns:
        Values of :func:`episode_columns`, (num_columns, num_envs) of float64 on the CPU: return and length in control
        steps; for each reward term, its part of the return; for each reason, whether it ended the episode; metrics.
    """
    names = episode_columns(env)
    num_sums = 2 + len(env.reward_names)
    values = torch.zeros(len(names), env.num_envs, device=env.device)
    playing = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    one = torch.ones(1, env.num_envs, device=env.device)
    step = 0
    with torch.inference_mode():
        obs = env.reset()
        while step % CHECK_INTERVAL or playing.any():
            if step % CHECK_INTERVAL == 0:
                alive()
            obs, rewards, dones, _ = env.step(policy(obs))
            ended(dones)
            # Sums of return, length and reward terms; then outcomes, which cover all steps so far
            values[:num_sums] += playing * torch.cat([rewards.unsqueeze(0), one, env.reward_terms()])
            outcomes = torch.stack(list(env.episode_outcomes().values()))
            values[num_sums:] = torch.where(playing, outcomes, values[num_sums:])
            playing &= ~dones
            step += 1
    return values.double().cpu()
