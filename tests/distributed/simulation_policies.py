"""Policies that ranks import by name."""

from __future__ import annotations

import os
import signal

import torch

FEW = 17
"""Number of envs of rank 0, if two ranks share 35 envs. Rank 1 has one env more."""

Observations = dict[str, torch.Tensor]


def policy(observations: Observations) -> torch.Tensor:
    noise = torch.randn(len(observations["actor"]), 1)
    return 0.1 * noise - observations["actor"][:, :1]


def fails_on_few_envs(observations: Observations) -> torch.Tensor:
    """Fail on the rank with fewer envs."""
    if len(observations["actor"]) <= FEW:
        raise RuntimeError("few envs")
    return policy(observations)


def stops_its_rank(observations: Observations) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGSTOP)
    return policy(observations)


def kills_its_rank(observations: Observations) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return policy(observations)


def kills_rank_1(observations: Observations) -> torch.Tensor:
    """Kill the second rank."""
    return kills_its_rank(observations) if os.environ["RANK"] == "1" else policy(observations)


def kills_rank_2(observations: Observations) -> torch.Tensor:
    """Kill the last of three ranks."""
    return kills_its_rank(observations) if os.environ["RANK"] == "2" else policy(observations)


def stops_rank_2(observations: Observations) -> torch.Tensor:
    """Stop the last of three ranks."""
    return stops_its_rank(observations) if os.environ["RANK"] == "2" else policy(observations)
