"""Formulas of scale_model.py: the time of an all-reduce, the expected maximum, and the size of a network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """Connection between neighbors in a ring or a tree of GPUs."""

    name: str
    """Name in the tables."""
    latency_s: float
    """Time to send a message of almost no bytes."""
    bytes_per_s: float
    """Rate of large messages."""


def parameters(observations: int, hidden: Sequence[int], actions: int) -> int:
    """Return the number of parameters of policy and value function, two networks with the same hidden layers."""
    total = 0
    for outputs in (actions, 1):
        widths = [observations, *hidden, outputs]
        total += sum((before + 1) * after for before, after in itertools.pairwise(widths))
    return total + actions  # one standard deviation per action


def expected_maximum(number: int) -> float:
    """Return the expected maximum of independent standard normal numbers, integrated by the trapezoidal rule."""
    if number == 1:
        return 0.0
    step, end = 1e-3, 8.0
    points = [-end + i * step for i in range(int(2 * end / step) + 1)]

    def density(x: float) -> float:
        below = 0.5 * math.erfc(-x / math.sqrt(2))
        return number * below ** (number - 1) * math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)

    return step * sum(x * density(x) for x in points)


def ring_s(num_bytes: float, ranks: int, network: Network) -> float:
    """Return the time of an all-reduce in a ring of W ranks, in s.

    Each rank sends 2 (W - 1) messages one after another, and each message has 1/W of the bytes.
    """
    return 2 * (ranks - 1) * (network.latency_s + num_bytes / ranks / network.bytes_per_s)


def tree_s(num_bytes: float, ranks: int, network: Network) -> float:
    """Return the time of an all-reduce in a tree of ranks, in s.

    The bytes are sent in small parts from the leaves to the root, which has the sum, and back to the leaves. The parts
    follow each other, so only one part waits for the latency of every level.
    """
    return 2 * math.ceil(math.log2(ranks)) * network.latency_s + 2 * num_bytes / network.bytes_per_s
