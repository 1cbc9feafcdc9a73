"""The commands of a task, and the calls of their methods in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.binding import Binder, look_up
from mjlab_dist.env.term import Command

if TYPE_CHECKING:
    from mjlab_dist.config import TermConfig
    from mjlab_dist.env.env import Env


class CommandGroup:
    """All commands of a task.

    Attributes:
        by_name: The commands by name, in config order.
    """

    def __init__(self, env: Env, configs: dict[str, TermConfig], binder: Binder) -> None:
        self.by_name: dict[str, Command] = binder.make_classes("commands", configs, Command)
        commands = self.by_name.values()
        self._resets = [binder.outside_of_graphs(command.reset) for command in commands]
        self._resamples = [binder.outside_of_graphs(command.resample) for command in commands]
        self._follows = [binder.outside_of_graphs(command.follow) for command in commands]
        cleared = [tensor for command in commands for tensor in command.cleared()]
        self._clear = env.sim.record_clearing(cleared) if cleared else None

    def find(self, name: str) -> Command:
        """Return a command."""
        return look_up("command", name, self.by_name)

    def resample(self, env: Env, mask: torch.Tensor) -> None:
        """Advance the clocks by one step. Draw new commands in envs whose time is up or whose episode starts.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """
        for reset in self._resets:
            reset(mask)
        if self._clear is not None:
            self._clear()
        for resample in self._resamples:
            resample(env)

    def follow(self, env: Env) -> None:
        """Adjust the values to the current state."""
        for follow in self._follows:
            follow(env)
