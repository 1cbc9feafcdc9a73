"""Terms of new tasks with the goal balance or swing-up."""

import torch

from mjlab_dist.env import Env
from mjlab_dist.env.term import Term


class Height(Term):
    """Reward: height of a body's center of mass, 0 at low_m and 1 at high_m; (num_envs,)."""

    def __init__(self, env: Env, body: str, low_m: float, high_m: float) -> None:
        """Look up the body.

        Args:
            env: The envs.
            body: Name of the body.
            low_m: Height in m at which the reward is 0.
            high_m: Height in m at which the reward is 1.
        """
        self._height_m = env.sim.view("xipos")[:, env.sim.model.body(body).id, 2]
        self._low_m, self._range_m = low_m, high_m - low_m

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every reward takes the env)
        """Return the rewards, (num_envs,)."""
        return (self._height_m - self._low_m) / self._range_m


class Below(Term):
    """Termination: whether a body's center of mass is below min_m; (num_envs,) of bool."""

    def __init__(self, env: Env, body: str, min_m: float) -> None:
        """Look up the body.

        Args:
            env: The envs.
            body: Name of the body.
            min_m: Minimum height in m.
        """
        self._height_m = env.sim.view("xipos")[:, env.sim.model.body(body).id, 2]
        self._min_m = min_m

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every termination takes the env)
        """Return whether the body is too low, (num_envs,)."""
        return self._height_m < self._min_m
