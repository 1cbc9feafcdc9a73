"""Policies that ranks import by name."""

from __future__ import annotations

import os
import signal

import torch

FEW = 16
"""Number of envs of the first of two ranks with 33 envs; the second has one more."""

PRESSED: list[int] = []
"""Processes in which this rank has pressed Ctrl-C."""

Observations = dict[str, torch.Tensor]


def policy(observations: Observations) -> torch.Tensor:
    noise = torch.randn(len(observations["actor"]), 1)
    return 0.1 * noise - observations["actor"][:, :1]


def fails_on_few_envs(observations: Observations) -> torch.Tensor:
    """Fail on the rank with fewer envs."""
    if len(observations["actor"]) <= FEW:
        raise RuntimeError("few envs")
    return policy(observations)


def interrupts(pid: int, observations: Observations) -> torch.Tensor:
    """Press Ctrl-C once in the process that waits for the rollout."""
    if len(observations["actor"]) <= FEW and not PRESSED:
        PRESSED.append(pid)
        os.kill(pid, signal.SIGINT)
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
