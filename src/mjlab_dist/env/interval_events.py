"""Events that occur during an episode, each at random intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from mjlab_dist.config import EventConfig
from mjlab_dist.env.columns import uniform, write_rows

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


class IntervalEvents:
    """The interval events of a task.

    Attributes:
        left_s: Time until each event in s, (num_envs, num_events), decreased by the env's ``begin_step`` kernel.
    """

    def __init__(self, events: Sequence[tuple[EventConfig, Callable[..., Any]]], num_envs: int, device: str) -> None:
        """Allocate the clocks.

        Args:
            events: Config and function of each event; the function takes the env and a mask.
            num_envs: Number of envs.
            device: Device of the clocks.
        """
        self._events = events
        self.left_s = torch.zeros(num_envs, len(events), device=device)

    def reset(self, mask: torch.Tensor) -> None:
        """Draw the times of the first events of an episode.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """
        for column, (config, _) in enumerate(self._events):
            self._draw(column, config, mask)

    def happen(self, env: Env) -> None:
        """Call the events that are due and draw the times of their next occurrence.

        Args:
            env: The envs.
        """
        for column, (config, event) in enumerate(self._events):
            due = self.left_s[:, column] < 0.5 * env.step_dt_s  # round to the nearest step
            event(env, due)
            self._draw(column, config, due)

    def _draw(self, column: int, config: EventConfig, mask: torch.Tensor) -> None:
        left_s = self.left_s[:, column]
        write_rows(left_s, mask, uniform(left_s, *config.interval_s))
