"""Base classes of terms: a term is a function of the env, or a class if it looks up names or has a state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mjlab_dist.env import kernels
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Limits, copy_state

if TYPE_CHECKING:
    from mjlab_dist.config import ParamValue
    from mjlab_dist.env.env import Env
    from mjlab_dist.env.episodes import EpisodeTotals
    from mjlab_dist.sim import Simulation

Range = tuple[float, float]
"""Minimum and maximum."""


class Term:
    """A term that looks up names when it is created, or keeps a state between steps.

    It is created once per batch of envs, as ``Class(env, **params)``, and then called like a function.

    Attributes:
        capturable: Whether the term can be part of a CUDA graph (``--env.sim.capture step``). Set it to False if the
            term waits for the device or depends on Python values that change. The term is then called between two
            graphs. For functions, use :func:`not_capturable`.
        schedulable: Names of the parameters that curricula may change. Such a parameter is a 0-dim float32 tensor, or a
            tuple of such tensors. Its value changes in place, so the term must read it in every call.
    """

    capturable = True
    schedulable: tuple[str, ...] = ()

    def reset(self, mask: torch.Tensor) -> None:
        """Reset the state of the term in envs in which an episode starts.

        Joint positions and velocities already belong to the new episode; poses and sensor readings do not. When the env
        resets a command, reset events have not run yet, because they may read the new command.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """

    def cleared(self) -> Sequence[torch.Tensor]:
        """Return the tensors whose rows the env sets to 0 when an episode starts, after :meth:`reset`.

        The env clears the tensors of all terms with one kernel. Each is (num_envs, ...) with contiguous rows.
        """
        return ()

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return measurements of this step by name, (num_envs,) each, such as the tracking error of a command.

        The env calls this in every step, before resets. Each value is averaged over the steps of an episode, and logged
        as ``<kind>/<term>/<name>``, such as ``command/velocity/error_m_s``.
        """
        return {}

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state of the term by name: the tensors themselves, which are updated in place.

        State per env has the shape (num_envs, ...). State that all envs share, as in a curriculum, may have any shape.
        """
        return {}

    def limits(self) -> dict[str, Limits]:
        """Return minimum and maximum of each integer tensor of :meth:`state`, by name; infinite for no limit.

        A saved state with a number outside is refused. Give limits to every integer that is used as an index: a damaged
        file could otherwise make a kernel read or write memory of something else. Other integers may be omitted.
        """
        return {}


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def not_capturable(function: FunctionT) -> FunctionT:
    """Decorator for a term that cannot be part of a CUDA graph. For a class, set ``capturable = False`` instead."""
    vars(function)["capturable"] = False
    return function


def is_capturable(term: object) -> bool:
    """Return whether a term, or the term that a method belongs to, can be part of a CUDA graph."""
    owner = term.func if isinstance(term, functools.partial) else getattr(term, "__self__", term)
    return getattr(owner, "capturable", True)


class OutsideOfGraphs:
    """Wrapper of a term that cannot be part of a CUDA graph and is therefore called between two graphs.

    Each call copies the result of the term to the same memory, because the next graph reads the result from there.
    """

    def __init__(self, term: Callable[..., torch.Tensor | None], sim: Simulation) -> None:
        """Wrap a term.

        Args:
            term: The term, or a method of it; all its results must have the same shape.
            sim: The physics, whose ``launch`` is replaced while a control step is recorded.
        """
        self._term = term
        self._sim = sim
        self._result: torch.Tensor | None = None
        self._is_first = True

    def __call__(self, *args: Any) -> torch.Tensor | None:
        """Call the term. While a control step is recorded, do not call it: each replay of the step will call it."""
        if self._is_first:
            # Graphs read the result from fixed memory: allocate it in the first call, which is never recorded.
            self._is_first = False
            result = self._term(*args)
            self._result = None if result is None else result.clone()
        else:
            self._sim.recorder.launch(functools.partial(self._run, *args))
        return self._result

    def _run(self, *args: Any) -> None:
        # The graph before this call changed the state, but its replay does not run the Python code that marks changes.
        self._sim.mark_changed()
        result = self._term(*args)
        if self._result is not None:
            assert result is not None
            self._result.copy_(result)


def state_part(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a saved state whose names start with a prefix; the prefix is removed from the names.

    Args:
        state: Tensors by name.
        prefix: The prefix, including its separator, such as ``env/``.
    """
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


class Sensor(Term):
    """A term that measures once per step, after the physics; other terms read its attributes.

    Use it for quantities that add up over time, such as air times. For quantities of the current state, use
    :class:`LazySensor`.
    """

    def update(self, env: Env) -> None:
        """Measure and store the results in attributes, before terminations and rewards read them.

        Args:
            env: The envs, after the physics of a step.
        """
        raise NotImplementedError

    def start(self, env: Env, mask: torch.Tensor) -> None:
        """Measure the start state of new episodes, before observations read it.

        If ``forward_before_observation`` is set, the env calls this in every step, after the resets and ``forward``.
        Without this setting, the env does not call this method, because poses and MuJoCo's sensors do not belong to the
        new episode. The default does nothing, so the values set by :meth:`reset` and :meth:`cleared` remain.

        Args:
            env: The envs.
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """


class LazySensor(Sensor):
    """A sensor that measures when it is read, at most once per state of the envs.

    ``env.sensor(name, kind)`` returns it with the values of the current state: after the physics for terminations and
    rewards, after the resets for observations. A step in which no term reads the sensor costs nothing. The class can
    also be an observation: implement ``__call__(env)``, and call :meth:`refresh` in it.

    The state has changed if ``env.sim.version`` has changed. Poses are current only after ``env.sim.forward()``, which
    runs before observations if ``forward_before_observation`` is set.
    """

    _version: tuple[int, ...] | None = None

    def measure(self, env: Env) -> None:
        """Measure and store the results in attributes.

        Args:
            env: The envs, in any state.
        """
        raise NotImplementedError

    def refresh(self, env: Env) -> None:
        """Measure if the state has changed since the latest measurement.

        Args:
            env: The envs.
        """
        if self._version is None or self._version != env.sim.version:
            if self.capturable:
                self.measure(env)
            else:
                env.sim.recorder.launch(functools.partial(self._measure_between_graphs, env))
            self._version = env.sim.version

    def update(self, env: Env) -> None:
        pass

    def _measure_between_graphs(self, env: Env) -> None:
        # The graph before this call changed the state, but its replay does not run the Python code that marks changes.
        env.sim.mark_changed()
        self.measure(env)


class Command(Term):
    """A value per env that is resampled after a random time, and when an episode starts.

    Attributes:
        value: The command that terms read, (num_envs, k).
        ranges: Minimum and maximum of each number drawn, (d, 2); a curriculum may change them.
        left_s: Time until the next draw in s, (num_envs,).
        drawn_names: Name of each number drawn, with its unit, for viewers; if empty, viewers show indices instead.
    """

    value: torch.Tensor
    ranges: torch.Tensor
    drawn_names: tuple[str, ...] = ()

    def __init__(self, env: Env, ranges: list[Range], width: int, resample_s: Range) -> None:
        """Allocate the values.

        Args:
            env: The envs.
            ranges: Minimum and maximum of each number drawn.
            width: Width k of the value.
            resample_s: Range of the time between two draws, in s.

        Raises:
            UserError: If a minimum exceeds its maximum.
        """
        for low, high in (*ranges, resample_s):
            if low > high:
                raise UserError(f"command: the range {low} to {high} is in the wrong order; swap the two")
        self.value = torch.zeros(env.num_envs, width, device=env.device)
        self.ranges = torch.tensor(ranges, device=env.device)
        self.left_s, self._drawn_s = torch.zeros(2, env.num_envs, device=env.device)
        self._resample_s = resample_s
        self._held: torch.Tensor | None = None
        self._is_held_anew = False
        self._due = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        inputs = [env.step_dt_s, env.sim.reset_mask, self._drawn_s, self.left_s, self._due]
        self._advance = env.sim.record_launch(kernels.advance_command, env.num_envs, inputs, changes_state=False)

    def draw(self, env: Env, mask: torch.Tensor) -> None:
        """Draw new values.

        Args:
            env: The envs. If an episode of an env begins in this step, the env is in its start state, and reset events
                have not run yet.
            mask: Envs to draw for, (num_envs,) of bool.
        """
        raise NotImplementedError

    def follow(self, env: Env) -> None:
        """Adjust the value to the current state of the robots, in every step.

        Args:
            env: The envs, after reset events.
        """

    def resample(self, env: Env) -> None:
        """Advance the clock by one step. Draw new values in envs whose time is up or whose episode starts.

        The env calls this in every step, before reset events.

        Args:
            env: The envs. ``env.sim.reset_mask`` marks the envs in which an episode starts.
        """
        self._drawn_s.uniform_(*self._resample_s)
        self._advance()
        if self._is_held_anew:
            self._due.fill_(True)
            self._is_held_anew = False
        self.draw(env, self._due)

    def hold(self, numbers: Sequence[float] | None) -> None:
        """Use these numbers instead of random ones: in the next step in every env, and whenever a draw is due.

        Args:
            numbers: One number per row of ``ranges``, possibly outside of the range; None to draw at random again.
        """
        self._held = None if numbers is None else torch.tensor(numbers, device=self.value.device)
        assert self._held is None or len(self._held) == len(self.ranges)
        self._is_held_anew = True

    def state(self) -> dict[str, torch.Tensor]:
        # Without the ranges, because all envs share them: a curriculum that changes them stores them in its own state.
        return {"value": self.value, "left_s": self.left_s}

    def uniform(self) -> torch.Tensor:
        """Draw every number uniformly from its range, (num_envs, d), or return the numbers given to :meth:`hold`."""
        if self._held is not None:
            return self._held.repeat(len(self.left_s), 1)
        low, high = self.ranges.unbind(dim=1)
        return torch.lerp(low, high, torch.rand(len(self.left_s), len(low), device=low.device))


class Curriculum(Term):
    """A term that adapts the difficulty: per env when its episode ends, or for all envs at the end of an iteration."""

    @classmethod
    def changes(cls, params: Mapping[str, ParamValue]) -> Sequence[str]:  # noqa: ARG003 (for subclasses)
        """Return the paths of the parameters of terms that the curriculum changes.

        The env replaces these parameters by tensors before it makes the terms. ``env.find_parameter(path)`` returns
        such a tensor. Weights of rewards and ranges of commands are always tensors and need no path.

        Args:
            params: Parameters of the curriculum in the config.

        Example:
            ``["rewards.track.params.std_m_s", "events.push.params.linear_m_s"]``
        """
        return ()

    def episode_ends(self, env: Env, mask: torch.Tensor) -> None:
        """Process ended episodes before the next ones start. The env calls this in every step.

        Args:
            env: The envs, which are still in the last state of the ended episodes.
            mask: Envs whose episode has ended, (num_envs,) of bool.
        """

    def iteration_ends(self, env: Env, totals: EpisodeTotals) -> None:
        """Process the end of an iteration.

        Args:
            env: The envs.
            totals: Totals of the episodes that ended in the iteration, over all ranks, so that all ranks make the same
                decision.
        """

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return the progress of the curriculum by name, as scalars: means over the envs of this rank.

        Unlike the metrics of other terms, these are read once per iteration.
        """
        return {}

    def resume(self, saved: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Restore the term from a run with a different number of ranks or envs. New episodes start afterwards.

        The default copies tensors of unchanged shape from rank 0, which is correct for state that all envs share. A
        term with state per env must override this method to assign the saved envs to the new ones.

        Args:
            saved: :meth:`state` of each rank of the saved run, on this device. In a method that overrides this one,
                numbers may be outside of :meth:`limits`, because the file may be damaged, or from another terrain.
        """
        kept = {name: tensor for name, tensor in self.state().items() if saved[0][name].shape == tensor.shape}
        copy_state({name: saved[0][name] for name in kept}, kept, self.limits())
