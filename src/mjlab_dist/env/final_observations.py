"""Observations of the last state of each episode, for learners that bootstrap from them."""

from __future__ import annotations

import torch

from mjlab_dist.env.env import Env


class FinalObservations:
    """Computes observations in every step, before envs are reset. This does not change the results of the steps.

    Attributes:
        observed: Observations of all envs in the latest step, before its resets. Keys are the names of the groups, and
            each value has the shape (num_envs, width).
    """

    def __init__(self, env: Env) -> None:
        """Register with the envs, so that every following step computes these observations."""
        self._env = env
        self._devices = [] if env.device == "cpu" else [env.device]
        self.observed: dict[str, torch.Tensor] = {}
        env.before_resets = self._observe

    def _observe(self) -> None:
        env = self._env
        before = env.state()  # restored below, because an observation advances histories and delays
        with torch.random.fork_rng(self._devices):
            if env.cfg.sim.forward_before_observation:
                env.sim.forward()
            self.observed = {name: group.observe() for name, group in env.observation_groups.items()}
        if env.cfg.nan_policy == "reset":
            self.observed = {name: value.nan_to_num(0.0, 0.0, 0.0) for name, value in self.observed.items()}
        env.load_state(before, checked=False)
