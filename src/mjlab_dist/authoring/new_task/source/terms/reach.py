"""Terms of new tasks with the goal reach."""

import torch

from mjlab_dist.env import Env
from mjlab_dist.env.term import Term


class ToTarget(Term):
    """Observation: vector from a site to the target, in m; (num_envs, 3)."""

    def __init__(self, env: Env, command: str, site: str) -> None:
        """Look up the site.

        Args:
            env: The envs.
            command: Name of the command.
            site: Name of the site.
        """
        self._command = command
        self._site = env.find_sites((site,))

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the vectors, (num_envs, 3)."""
        return env.command(self._command)[:, :3] - self._site.pos[:, 0]


class AtTarget(Term):
    """Reward: exp(-distance^2 / std_m^2) for the distance between a site and the target; (num_envs,)."""

    def __init__(self, env: Env, command: str, site: str, std_m: float) -> None:
        """Look up the site.

        Args:
            env: The envs.
            command: Name of the command.
            site: Name of the site.
            std_m: Distance in m at which the reward is 0.37.
        """
        self._to_target = ToTarget(env, command, site)
        self._std_m = std_m

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the rewards, (num_envs,)."""
        return torch.exp(-self._to_target(env).square().sum(dim=1) / self._std_m**2)


class DistanceCm(Term):
    """Metric: distance between a site and the target, in cm; (num_envs,)."""

    def __init__(self, env: Env, command: str, site: str) -> None:
        """Look up the site.

        Args:
            env: The envs.
            command: Name of the command.
            site: Name of the site.
        """
        self._to_target = ToTarget(env, command, site)

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the distances, (num_envs,)."""
        return 100.0 * self._to_target(env).norm(dim=1)
