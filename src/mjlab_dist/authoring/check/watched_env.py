"""An env that records which of its terms is running, and the effects of each term in a rollout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from mjlab_dist.authoring.check.step_replay import line_of_code
from mjlab_dist.config import EnvConfig
from mjlab_dist.env import Env

# Value of Entry.place for effects of the physics
PHYSICS = "physics"

# Value of `Entry.place` for all changes before the first episodes
STARTUP = "startup events and randomizations"

# Value of Entry.place for the results of Env.step
RETURNED = "the step"


class Entry(NamedTuple):
    """Effects of a term, or of the physics, in a step."""

    # Number of the step; 0 for the start of the first episodes
    step: int
    # The term, such as rewards.forward; or PHYSICS or RETURNED
    place: str
    # Name and hash of each tensor that the term returned or may have changed
    digests: Mapping[str, int]
    # Names of the tensors that contain numbers that are not finite
    not_finite: tuple[str, ...]


class Watch:
    """Observer of the calls of terms."""

    def __init__(self) -> None:
        self.place = RETURNED
        self.trace: list[Entry] = []
        self._around_uncapturable: Callable[[], AbstractContextManager[None]] = nullcontext
        self._step: int | None = None

    def where(self) -> str:
        """Return the running term, and the line of code that it executes."""
        line = line_of_code()
        return line if self.place == RETURNED else f"{self.place} ({line})"

    @contextmanager
    def tracing(self, step: int) -> Iterator[None]:
        """Record the effects of terms in a step."""
        self._step = step
        try:
            yield
        finally:
            self._step = None

    @contextmanager
    def leaving_out(self, pause: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Exclude from a check all terms that cannot be part of a CUDA graph."""
        self._around_uncapturable = pause
        try:
            yield
        finally:
            self._around_uncapturable = nullcontext

    def wrap(
        self,
        place: str,
        call: Callable[..., Any],
        state: Callable[[], Mapping[str, torch.Tensor]],
        *,
        is_capturable: bool = True,
    ) -> Callable[..., Any]:
        """Return a function that calls a term and watches it."""

        def watched(*args: Any) -> Any:
            before, self.place = self.place, place
            with nullcontext() if is_capturable else self._around_uncapturable():
                result = call(*args)
            # If the call raises, the place is not restored. It then still names the term at fault.
            self.place = before
            self.note(place, {"result": result} if isinstance(result, torch.Tensor) else (result or state()))
            return result

        return watched

    def note(self, place: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Record tensors, if the current step is traced."""
        if self._step is None:
            return
        digests = {name: hash(tensor.contiguous().numpy().tobytes()) for name, tensor in tensors.items()}
        # In an env's state, only the physics must be finite: the time until an event, for example, may be infinite.
        finite = _PHYSICS & tensors.keys() or tensors.keys()
        not_finite = tuple(name for name in tensors if name in finite and not tensors[name].isfinite().all())
        self.trace.append(Entry(self._step, place, digests, not_finite))


# Tensors of an env's state that must be finite
_PHYSICS = {"sim.qpos", "sim.qvel"}


class WatchedEnv(Env):
    """An env on the CPU whose terms are watched."""

    def __init__(self, config: EnvConfig, num_envs: int) -> None:
        """Build the envs."""
        self.watch = Watch()
        with self.watch.tracing(0):
            super().__init__(config, num_envs, "cpu")

    def _bind_terms(self) -> None:
        super()._bind_terms()
        self.watch.note(STARTUP, self._held())
        config = self.cfg
        # Watch terms that return tensors
        self._rewards = self._all("rewards", config.rewards, self._rewards)
        self._terminations = self._all("terminations", config.terminations, self._terminations)
        self._metrics = self._all("metrics", config.metrics, self._metrics)
        for name, group in self.observation_groups.items():
            group._terms = self._all(f"observations.{name}", config.observations[name], group._terms)
        self._measurements = self._methods(self._measurements)
        # Watch terms that change the state
        self._sensor_updates = self._methods(self._sensor_updates)
        self._sensor_starts = self._methods(self._sensor_starts)
        self._episode_ends = self._methods(self._episode_ends)
        self._resets = self._methods(self._resets)
        self._actions._applies = self._methods(self._actions._applies)
        commands = self._commands
        commands._resets = self._methods(commands._resets)
        commands._resamples = self._methods(commands._resamples)
        commands._follows = self._methods(commands._follows)
        when = {kind: [n for n, event in config.events.items() if event.when == kind] for kind in ("reset", "interval")}
        events = self._events
        events._reset = self._all("events", when["reset"], events._reset)
        places = [f"events.{name}" for name in when["interval"]]
        places += ["randomizations"] * (len(events._intervals) - len(places))
        events._intervals = [
            (interval_s, self._one(place, change))
            for place, (interval_s, change) in zip(places, events._intervals, strict=True)
        ]
        # Watch randomizations and physics
        self._randomizations.reset = self._one("randomizations", self._randomizations.reset)
        self.sim.step = self._one(PHYSICS, self.sim.step)

    def _all(self, kind: str, names: Iterable[str], calls: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        return [self._one(f"{kind}.{name}", call) for name, call in zip(names, calls, strict=True)]

    def _methods(self, calls: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Watch methods of terms."""
        return [self._one(self._place_of(call), call) for call in calls]

    def _place_of(self, method: Callable[..., Any]) -> str:
        """Return the path of a method's term, even if the method has a wrapper for recorded steps."""
        inner = getattr(method, "_term", method)
        owner = getattr(inner, "__self__", inner)
        return next(where for where, term in self.terms.items() if term is owner)

    def _one(self, place: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return self.watch.wrap(place, call, self._held, is_capturable=place not in self.uncapturable_terms)

    def watched_step(self, index: int, actions: torch.Tensor) -> None:
        """Run a step and trace it."""
        with self.watch.tracing(index):
            # Record what curricula may have changed since the last step
            ranges = {f"ranges of {name}": command.ranges for name, command in self._commands.by_name.items()}
            self.watch.note(
                " or ".join(f"curricula.{name}" for name in self._curricula) or RETURNED,
                {"weights of rewards": self.weights, **ranges},
            )
            obs, reward, done, _ = self.step(actions)
            groups = {f"observations.{name}": obs[name] for name in self.cfg.observations}
            self.watch.note(RETURNED, {**groups, "reward": reward, "done": done})

    def watched_iteration_end(self, index: int) -> None:
        """Run the end of an iteration and trace it."""
        totals = self.pop_episode_totals()
        with self.watch.tracing(index):
            for name, curriculum in self._curricula.items():
                self._one(f"curricula.{name}", functools.partial(curriculum.iteration_ends, self, totals))()
