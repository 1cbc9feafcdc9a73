"""Terms with mistakes that the command ``check`` must find."""

from __future__ import annotations

import numpy as np
import torch

from mjlab_dist.env import Env
from mjlab_dist.env.term import Curriculum, Term, not_capturable


def waits(env: Env) -> torch.Tensor:
    """Reward that reads a number on the host, so the host waits for the GPU."""
    largest = env.sim.qpos.max().item()
    return env.sim.qpos[:, 0] / (1.0 + abs(largest))


@not_capturable
def waits_and_says_so(env: Env) -> torch.Tensor:
    """Reward that reads a number on the host and declares this, so it runs between two CUDA graphs."""
    return waits(env)


def reads_an_array(env: Env) -> torch.Tensor:
    """Reward that computes with NumPy."""
    return torch.from_numpy(env.sim.qpos[:, 0].numpy() * 2.0)


def column(env: Env) -> torch.Tensor:
    """Reward of the wrong shape."""
    return env.sim.qpos[:, :1]


def double(env: Env) -> torch.Tensor:
    """Observation of the wrong type."""
    return env.sim.qpos.double()


def number(env: Env) -> torch.Tensor:
    """Termination of the wrong type."""
    return env.sim.qpos[:, 0]


def ends_at_once(env: Env) -> torch.Tensor:
    """Termination in the second step of every episode."""
    return env.episode_length_buf >= 2


def ends_in_a_second(env: Env) -> torch.Tensor:
    """Termination after ten steps, as of a pendulum that starts upright."""
    return env.episode_length_buf >= 10


def flat(env: Env) -> torch.Tensor:
    """Observation of the wrong shape."""
    return env.sim.qpos[:, 0]


def root(env: Env) -> torch.Tensor:
    """Reward that is NaN for negative positions."""
    return env.sim.qpos[:, 0].sqrt()


def misspelled(env: Env) -> torch.Tensor:
    """Reward with a mistake in its code."""
    return env.sim.qposs[:, 0]  # pyright: ignore[reportAttributeAccessIssue]


def unseeded(env: Env, mask: torch.Tensor) -> None:
    """Event that samples from a generator without a seed."""
    drawn = torch.from_numpy(np.random.default_rng().normal(size=env.sim.qvel.shape)).float()
    env.sim.qvel.copy_(torch.where(mask.unsqueeze(1), drawn, env.sim.qvel))


def always_seed_0(env: Env, mask: torch.Tensor) -> None:
    """Event that samples the same numbers with every seed."""
    drawn = torch.rand(env.sim.qvel.shape, generator=torch.Generator().manual_seed(0))
    env.sim.qvel.copy_(torch.where(mask.unsqueeze(1), drawn, env.sim.qvel))
    torch.rand(1)


def explode(env: Env, mask: torch.Tensor) -> None:
    """Event that makes a velocity infinite."""
    env.sim.qvel.masked_fill_(mask.unsqueeze(1), torch.inf)


class Forgets(Term):
    """Reward that does not return its counter in its state."""

    def __init__(self, env: Env) -> None:
        self.steps = torch.zeros(env.num_envs)

    def __call__(self, env: Env) -> torch.Tensor:
        self.steps += 1.0
        return self.steps * env.sim.qpos[:, 0]


class CountsInPython(Term):
    """Reward with a Python number that changes in every step."""

    def __init__(self, env: Env) -> None:  # noqa: ARG002 (every term takes the env)
        self.steps = 0

    def __call__(self, env: Env) -> torch.Tensor:
        self.steps += 1
        return env.sim.qpos[:, 0] * self.steps


class ForgetsItsLevel(Curriculum):
    """Curriculum that sets a weight to a number that is not in its state."""

    def __init__(self, env: Env) -> None:  # noqa: ARG002 (as above)
        self.level = 0.0

    def iteration_ends(self, env: Env, totals: object) -> None:  # noqa: ARG002 (as above)
        self.level += 1.0
        env.weights.fill_(self.level)
