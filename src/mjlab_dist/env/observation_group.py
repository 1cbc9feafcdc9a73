"""Observation groups: terms with noise, clip, scale, delay and history. Also observations of the last states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from mjlab_dist.config import ObservationConfig
from mjlab_dist.env.columns import is_convertible, write_rows
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Limits

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


class ObservationGroup:
    """One group of observations, concatenated for a network.

    Attributes:
        columns: Columns of each term, by name. If a term has a history, these are the columns of the whole history.
        measured: Values of all terms in the latest observation, before noise, clip, scale, delay and history,
            (num_envs, sum of widths).
        widths: Number of columns of each term in ``measured``, by name.
    """

    def __init__(
        self,
        group: str,
        configs: Mapping[str, ObservationConfig],
        terms: Sequence[Callable[[], torch.Tensor]],
        num_envs: int,
        device: str,
        *,
        changing: Mapping[str, torch.Tensor],
    ) -> None:
        """Evaluate every term once to measure its width.

        Args:
            terms: The terms, in the same order; each returns (num_envs, width).
        """
        # Widths
        self._terms = list(terms)
        self._widths = [
            _width(f"env.observations.{group}.{name}", term(), num_envs)
            for name, term in zip(configs, terms, strict=True)
        ]
        for (name, config), width in zip(configs.items(), self._widths, strict=True):
            for kind, noise in (("uniform", config.uniform_noise), ("gaussian", config.gaussian_noise)):
                if isinstance(noise, tuple) and len(noise) != width:
                    raise UserError(
                        f"--env.observations.{group}.{name}.{kind}-noise {' '.join(map(str, noise))}: has {len(noise)} "
                        f"numbers, and the term has {width} columns; give one number, or one per column"
                    )
        per_term = list(configs.values())
        changes = {
            field: [changing.get(f"{name}.{field}") for name in configs]
            for field in ("uniform_noise", "gaussian_noise", "scale")
        }
        self._changing: list[tuple[torch.Tensor, torch.Tensor]] = []
        # Noise, clip and scale of every column
        self._uniform = self._row(device, [c.uniform_noise for c in per_term], 0.0, changes["uniform_noise"])
        self._gaussian = self._row(device, [c.gaussian_noise for c in per_term], 0.0, changes["gaussian_noise"])
        self._low = self._row(device, [-math.inf if c.clip is None else c.clip[0] for c in per_term], -math.inf)
        self._high = self._row(device, [math.inf if c.clip is None else c.clip[1] for c in per_term], math.inf)
        self._scale = self._row(device, [c.scale for c in per_term], 1.0, changes["scale"])
        self.widths = dict(zip(configs, self._widths, strict=True))
        self.measured = torch.zeros(num_envs, sum(self._widths), device=device)
        # Delay and history
        self._memories = [
            _Memory(config, num_envs, width, device) if config.history > 1 or config.delay[1] > 0 else None
            for config, width in zip(per_term, self._widths, strict=True)
        ]
        ends = itertools.accumulate(
            (width * config.history for config, width in zip(per_term, self._widths, strict=True)), initial=0
        )
        self.columns = {name: slice(*pair) for name, pair in zip(configs, itertools.pairwise(ends), strict=True)}

    def observe(self) -> torch.Tensor:
        """Return the observation after a step, (num_envs, width). Call it once per step, as it advances the history."""
        # Noise, clip and scale
        for columns, number in self._changing:
            columns.copy_(number)
        row = self.measured = torch.cat([term() for term in self._terms], dim=-1)
        if self._uniform is not None:
            row = torch.addcmul(row, torch.rand_like(row).mul_(2.0).sub_(1.0), self._uniform)
        if self._gaussian is not None:
            row = torch.addcmul(row, torch.randn_like(row), self._gaussian)
        if self._low is not None or self._high is not None:
            row = row.clamp(self._low, self._high)
        if self._scale is not None:
            row = row * self._scale

        # Delay and history
        if not any(self._memories):
            return row
        parts = zip(row.split(self._widths, dim=1), self._memories, strict=True)
        return torch.cat([part if memory is None else memory.push(part) for part, memory in parts], dim=1)

    def reset(self, mask: torch.Tensor) -> None:
        """Discard values of the previous episode and draw new delays.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """
        for memory in filter(None, self._memories):
            memory.reset(mask)

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the state of delays and histories: names and tensors, (num_envs, ...)."""
        for name, memory in zip(self.columns, self._memories, strict=True):
            if memory is not None:
                yield f"{name}.values", memory.values
                yield f"{name}.lag", memory.lag
                if memory.next_lag is not None:
                    yield f"{name}.next_lag", memory.next_lag
                yield f"{name}.is_new", memory.is_new

    def limits(self) -> dict[str, Limits]:
        """Return the limits of the delays, which are indices of the stored values."""
        memories = zip(self.columns, self._memories, strict=True)
        return {
            f"{name}.{lag}": (0, memory.max_delay)
            for name, memory in memories
            if memory is not None
            for lag in ("lag", "next_lag")
        }

    def _row(
        self,
        device: str,
        values: Sequence[float | tuple[float, ...]],
        neutral: float,
        changes: Sequence[torch.Tensor | None] = (),
    ) -> torch.Tensor | None:
        """Return one value per column, or None if every value is ``neutral`` and no curriculum changes one."""
        pairs = zip(values, self._widths, strict=True)
        numbers = [one for value, width in pairs for one in (value if isinstance(value, tuple) else [value] * width)]
        if all(one == neutral for one in numbers) and not any(change is not None for change in changes):
            return None
        row = torch.tensor(numbers, device=device)
        parts = zip(row.split(self._widths), changes, strict=False)
        self._changing += [(columns, change) for columns, change in parts if change is not None]
        return row


def _width(name: str, value: object, num_envs: int) -> int:
    given = type(value).__name__
    if isinstance(value, torch.Tensor):
        if value.dim() == 2 and len(value) == num_envs and is_convertible(value.dtype):
            return value.shape[1]
        given = f"{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    raise UserError(f"{name}: returned {given}; it must return ({num_envs}, width) of float32")


class _Memory:
    """The latest values of one term, for delay and history."""

    def __init__(self, config: ObservationConfig, num_envs: int, width: int, device: str) -> None:
        self._min_delay, self.max_delay = config.delay
        depth = self.max_delay + config.history
        # Oldest first
        self.values = torch.zeros(num_envs, depth, width, device=device)
        self.lag = torch.zeros(num_envs, dtype=torch.long, device=device)
        # With jitter: the lag that was drawn last; self.lag grows toward it by at most 1 per step
        self._jitter = config.delay_jitter
        self.next_lag = torch.zeros_like(self.lag) if self._jitter > 0 else None
        self.is_new = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._newest_first = torch.arange(config.history - 1, -1, -1, device=device)
        self._last = depth - 1

    def push(self, value: torch.Tensor) -> torch.Tensor:
        """Store a new value, (num_envs, width), and return the delayed history, (num_envs, history * width)."""
        # The first value of an episode fills the whole history.
        shifted = torch.cat([self.values[:, 1:], value.unsqueeze(1)], dim=1)
        self.values.copy_(torch.where(self.is_new.view(-1, 1, 1), value.unsqueeze(1), shifted))
        self.is_new.zero_()
        if self.max_delay == 0:
            return self.values.flatten(1)
        if self.next_lag is not None:
            again = torch.rand(self.lag.shape, device=self.lag.device) < self._jitter
            write_rows(self.next_lag, again, self._drawn())
            # The lag grows by at most 1 per step, so no observed value is older than the one before it.
            torch.minimum(self.lag + 1, self.next_lag, out=self.lag)
        # With a delay, the newest observed value is ``lag`` rows before the last row.
        rows = self._last - self.lag.unsqueeze(1) - self._newest_first
        rows = rows.unsqueeze(2).expand(-1, -1, value.shape[1])
        return self.values.gather(1, rows).flatten(1)

    def reset(self, mask: torch.Tensor) -> None:
        self.is_new |= mask
        if self.max_delay > 0:
            drawn = self._drawn()
            write_rows(self.lag, mask, drawn)
            if self.next_lag is not None:
                write_rows(self.next_lag, mask, drawn)

    def _drawn(self) -> torch.Tensor:
        return torch.randint_like(self.lag, self._min_delay, self.max_delay + 1)


class FinalObservations:
    """Computes observations in every step, before envs are reset. This does not change the results of the steps.

    Attributes:
        observed: Observations of all envs in the latest step, before its resets. Keys are the names of the groups, and
            each value has the shape (num_envs, width).
    """

    def __init__(self, env: Env, *, only_time_outs: bool = False) -> None:
        """Register with the envs, so that every following step computes these observations.

        With ``only_time_outs``, steps on a CPU in which no episode is cut off leave ``observed`` empty.
        """
        self._env = env
        self._skips = only_time_outs and env.device == "cpu"
        self._devices = [] if env.device == "cpu" else [env.device]
        self.observed: dict[str, torch.Tensor] = {}
        env.before_resets = self._observe

    def _observe(self) -> None:
        env = self._env
        self.observed = {}
        if self._skips and not (env.timed_out & ~env.terminated).any():
            return
        before = env.state()  # restored below, because an observation advances histories and delays
        with torch.random.fork_rng(self._devices):
            if env.cfg.sim.forward_before_observation:
                env.sim.forward()
            self.observed = {name: group.observe() for name, group in env.observation_groups.items()}
        if env.cfg.nan_policy == "reset":
            self.observed = {name: value.nan_to_num(0.0, 0.0, 0.0) for name, value in self.observed.items()}
        env.load_state(before, checked=False)
