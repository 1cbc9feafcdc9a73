"""What a task is made of: functions of the env, and classes where there is something to look up or to remember."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mjlab_dist.env.columns import uniform, write_rows
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env
    from mjlab_dist.env.episodes import EpisodeTotals
    from mjlab_dist.sim import Simulation


Range = tuple[float, float]
"""Lowest and highest value."""


class Term:
    """A term that looks up names once, or remembers something from step to step.

    It is made once for a batch of envs, as ``Class(env, **params)``, and then called like a function.

    Attributes:
        capturable: Whether the term can be part of a CUDA graph (``--env.sim.capture step``). Set it to False if the term waits for
            the device or depends on Python values that change: replays then call it between two graphs. Functions are marked by
            :func:`not_capturable`.
    """

    capturable = True

    def reset(self, mask: torch.Tensor) -> None:
        """Forget what belongs to the episode before; positions and velocities are already those of the new one, poses not yet.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """

    def cleared(self) -> Sequence[torch.Tensor]:
        """Return tensors of the memory that the env sets to 0 where an episode starts, after :meth:`reset`.

        The env clears those of all terms in one operation. They are (num_envs, ...) each, with contiguous rows.
        """
        return ()

    def state(self) -> dict[str, torch.Tensor]:
        """What the term remembers, by name: the tensors themselves, (num_envs, ...) each, which are written to in place."""
        return {}


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def not_capturable(function: FunctionT) -> FunctionT:
    """Keep a term that is a function out of CUDA graphs, as ``capturable = False`` does for a class."""
    vars(function)["capturable"] = False
    return function


def is_capturable(term: object) -> bool:
    """Return whether a term, or the term that a method belongs to, can be part of a CUDA graph."""
    owner = term.func if isinstance(term, functools.partial) else getattr(term, "__self__", term)
    return getattr(owner, "capturable", True)


class OutsideOfGraphs:
    """A term that replays of a recorded control step call between two graphs. Its results are copied to the same memory each time."""

    def __init__(self, term: Callable[..., torch.Tensor | None], sim: Simulation) -> None:
        """Call nothing yet.

        Args:
            term: The term, or a method of it; its results all have one shape.
            sim: The physics, which knows whether a control step is being recorded.
        """
        self._term = term
        self._sim = sim
        self._result: torch.Tensor | None = None
        self._is_first = True

    def __call__(self, *args: Any) -> torch.Tensor | None:
        """Call the term now, or in each replay if a control step is being recorded."""
        if self._is_first:
            # Recordings need the memory of the result; the first rollout is never recorded.
            self._is_first = False
            result = self._term(*args)
            self._result = None if result is None else result.clone()
        else:
            self._sim.launch(functools.partial(self._run, *args))
        return self._result

    def _run(self, *args: Any) -> None:
        self._sim.mark_changed()  # replays execute no Python that would have done so
        result = self._term(*args)
        if self._result is not None:
            assert result is not None
            self._result.copy_(result)


def state_part(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """What of a saved state has names that start with a prefix, by the rest of the names.

    Args:
        state: Tensors by name.
        prefix: With its separator, as ``env/``.
    """
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


class Sensor(Term):
    """A term that measures once after the physics of every step; terms read what it found from its attributes."""

    def update(self, env: Env) -> None:
        """Measure.

        Args:
            env: The envs, after the physics of a step.
        """
        raise NotImplementedError


class Command(Term):
    """A value per env that is drawn anew when its time is up, and when an episode starts.

    Attributes:
        value: What terms read, (num_envs, k).
        ranges: Lowest and highest of each number drawn, (d, 2); a curriculum may change them.
        left_s: Time until the next draw, (num_envs,).
    """

    value: torch.Tensor
    ranges: torch.Tensor

    def __init__(self, env: Env, ranges: list[Range], width: int, resample_s: Range) -> None:
        """Allocate.

        Args:
            env: The envs.
            ranges: Lowest and highest of each number drawn.
            width: Numbers in the value.
            resample_s: Range of the time between two draws, in s.

        Raises:
            UserError: If a range is the wrong way round.
        """
        for low, high in (*ranges, resample_s):
            if low > high:
                raise UserError(f"command: the range {low} to {high} is the wrong way round; swap its ends")
        self.value = torch.zeros(env.num_envs, width, device=env.device)
        self.ranges = torch.tensor(ranges, device=env.device)
        self.left_s = torch.zeros(env.num_envs, device=env.device)
        self._resample_s = resample_s

    def draw(self, env: Env, mask: torch.Tensor) -> None:
        """Draw anew.

        Args:
            env: The envs.
            mask: Which, (num_envs,) of bool.
        """
        raise NotImplementedError

    def follow(self, env: Env) -> None:
        """Adjust the value to where the robots are now.

        Args:
            env: The envs, after resets.
        """

    def update(self, env: Env) -> None:
        """Let a step's time pass.

        Args:
            env: The envs, after resets.
        """
        self.left_s -= env.step_dt_s
        due = self.left_s < 0.5 * env.step_dt_s  # the nearest step
        low, high = self._resample_s
        write_rows(self.left_s, due, uniform(self.left_s, low, high))
        self.draw(env, due)
        self.follow(env)

    def cleared(self) -> list[torch.Tensor]:
        """No time left, so that the next update draws."""
        return [self.left_s]

    def state(self) -> dict[str, torch.Tensor]:
        """Values and times. Ranges are of all envs: those who change them remember them."""
        return {"value": self.value, "left_s": self.left_s}

    def uniform(self) -> torch.Tensor:
        """A draw of every number in every env, (num_envs, d)."""
        low, high = self.ranges.unbind(dim=1)
        return torch.lerp(low, high, torch.rand(len(self.left_s), len(low), device=low.device))


class Curriculum(Term):
    """A term that makes the task harder, env by env where episodes end, or for all at the end of an iteration."""

    def episode_ends(self, env: Env, mask: torch.Tensor) -> None:
        """Look at episodes that have ended, before the next ones start.

        Args:
            env: The envs, whose states are still those of the ended episodes.
            mask: Which have ended, (num_envs,) of bool.
        """

    def iteration_ends(self, env: Env, totals: EpisodeTotals) -> None:
        """Look at an iteration.

        Args:
            env: The envs.
            totals: Of the episodes that ended in it, over all ranks, so that every rank decides the same.
        """

    def metrics(self) -> dict[str, torch.Tensor]:
        """How far it is, by name, as scalars: means over this rank's envs."""
        return {}

    def go_on(self, saved: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Take up where the curriculum of a run was that had other ranks or envs; episodes start after that.

        What the term keeps for all envs is copied. A term that keeps something per env says which env goes on as which.

        Args:
            saved: What :meth:`state` was on each rank, on this device.
        """
        for name, tensor in self.state().items():
            if saved[0][name].shape == tensor.shape:
                tensor.copy_(saved[0][name])
