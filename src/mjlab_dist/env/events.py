"""Events: changes of the envs at startup, at the start of an episode, and at random intervals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from mjlab_dist.config import EventConfig
from mjlab_dist.env.binding import Binder
from mjlab_dist.env.columns import uniform, write_rows

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

# A function that changes some envs. Its arguments are the env and a mask, (num_envs,) of bool.
Change = Callable[[Any, torch.Tensor], Any]


class Events:
    """The events of a task.

    Attributes:
        left_s: Time in s until each interval event and each interval randomization happens next, (num_envs,
            num_intervals). The env's ``begin_step`` kernel decreases it.
    """

    def __init__(
        self,
        env: Env,
        configs: Mapping[str, EventConfig],
        binder: Binder,
        intervals: Sequence[tuple[tuple[float, float], Change]],
    ) -> None:
        """Make the events and allocate the clocks."""
        self._is_checked = False
        made: list[tuple[EventConfig, Change]] = []
        for name, config in configs.items():
            event = binder.make_call(f"events.{name}", config, num_args=2)
            made.append((config, functools.partial(self._change, name, event)))
        self._startup = [event for config, event in made if config.when == "startup"]
        self._reset = [event for config, event in made if config.when == "reset"]
        at_intervals = [(config.interval_s, event) for config, event in made if config.when == "interval"]
        self._intervals = [*at_intervals, *intervals]
        self.left_s = torch.zeros(env.num_envs, len(self._intervals), device=env.device)

    def start_up(self, env: Env, mask: torch.Tensor) -> None:
        """Run the startup events.

        Args:
            mask: All envs, (num_envs,) of bool.
        """
        for event in self._startup:
            event(env, mask)

    def reset(self, env: Env, mask: torch.Tensor) -> None:
        """Run the reset events.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """
        for event in self._reset:
            event(env, mask)

    def draw_times(self, mask: torch.Tensor) -> None:
        """Draw the time until each event or randomization at intervals first happens in an episode.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """
        for column in range(len(self._intervals)):
            self._draw(column, mask)

    def happen_at_intervals(self, env: Env) -> None:
        """Make the changes that are due, and draw the times until they are due again."""
        for column, (_, change) in enumerate(self._intervals):
            due = self.left_s[:, column] < 0.5 * env.step_dt_s  # round to the nearest step
            change(env, due)
            self._draw(column, due)
        self._is_checked = True  # later steps make the same writes, so one check is enough

    def _change(self, name: str, event: Change, env: Env, mask: torch.Tensor) -> None:
        event(env, mask)
        if not self._is_checked:
            env.sim.refuse_shared_writes(f"--env.events.{name}")

    def _draw(self, column: int, mask: torch.Tensor) -> None:
        left_s = self.left_s[:, column]
        write_rows(left_s, mask, uniform(left_s, *self._intervals[column][0]))
