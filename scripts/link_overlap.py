"""Compare two ways to sum gradients over ranks: all gradients after the backward pass, or in two buckets.

The first bucket has the gradients of all layers except the first one. Its sum starts as soon as they are computed, so
it overlaps with the rest of the backward pass. The second bucket has the gradients of the first layer, and is summed
after the backward pass. This is a prototype: training does not use buckets. `bench_links.py --overlap` starts two ranks
with this script.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from mjlab_dist.distributed.rank import rank_from_environment
from mjlab_dist.worker import set_interfaces

NETWORKS = {"cartpole": (5, 64, 64, 1), "humanoid": (310, 512, 256, 128, 37)}
"""Widths of the layers of a policy, without a value function."""

BATCH = 2048

REPETITIONS = 25


class Overlap:
    """A network whose gradients are summed in one or in two buckets."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        """Build the network and its inputs."""
        self._layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
        self._net = torch.nn.Sequential(*(part for layer in self._layers for part in (layer, torch.nn.ELU())))
        self._inputs = torch.randn(BATCH, widths[0])
        self._early = [p for layer in self._layers[1:] for p in layer.parameters()]
        self._missing = 0
        self._work: dist.Work | None = None
        for parameter in self._early:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def backward(self) -> None:
        """Compute all gradients."""
        self._net(self._inputs).square().mean().backward()

    def one(self) -> None:
        """Compute all gradients, then sum them."""
        self.backward()
        dist.all_reduce(_flat(list(self._net.parameters())))

    def two(self) -> None:
        """Sum the gradients of all layers but the first while the first layer's are computed. Then sum those too."""
        self._missing = len(self._early)
        self.backward()
        dist.all_reduce(_flat(list(self._layers[0].parameters())))
        assert self._work is not None
        self._work.wait()

    def _arrived(self, parameter: torch.Tensor) -> None:  # noqa: ARG002 (every hook takes it)
        self._missing -= 1
        if self._missing == 0:
            self._work = dist.all_reduce(_flat(self._early), async_op=True)


def _flat(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([p.grad.view(-1) for p in parameters if p.grad is not None])


def _seconds(function: Callable[[], None]) -> float:
    dist.barrier()
    start_s = time.perf_counter()
    function()
    return time.perf_counter() - start_s


def main() -> None:
    """Measure how long two buckets take relative to one. For each network, rank 0 prints the median ratio, as JSON."""
    torch.set_num_threads(1)
    rank = rank_from_environment(os.environ)
    set_interfaces(rank, os.environ)
    dist.init_process_group("gloo")
    found: dict[str, float] = {}
    for name, widths in NETWORKS.items():
        overlap = Overlap(widths)
        ratios = [1 / _seconds(overlap.one) * _seconds(overlap.two) for _ in range(REPETITIONS)]
        found[name] = statistics.median(ratios)
    if rank.is_main:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
