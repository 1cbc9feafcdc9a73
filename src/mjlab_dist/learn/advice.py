"""Warnings during training: ranks wait for others, or memory is nearly full. Each warning is printed once."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed.rank import Rank, in_words
from mjlab_dist.learn.metrics import memory_mb
from mjlab_dist.machine.memory import free_cpu_bytes
from mjlab_dist.messages import emit
from mjlab_dist.wording import byte_size

# Number of iterations over which the waiting times of ranks are averaged
WINDOW = 50

# Maximum share of a rank's time spent waiting for other ranks; above this share, a warning is printed
MAX_WAITING = 0.25

# Minimum share of free memory; below this share, a warning is printed
MIN_FREE = 0.05

# Iterations between checks of the memory
MEMORY_INTERVAL = 10


class Advice:
    """Checks each iteration of a run, and prints warnings with the flags that help."""

    def __init__(self, config: TrainConfig, rank: Rank, device: str, num_envs: int) -> None:
        """Start without measurements; ``num_envs`` is the number of envs of this rank."""
        self._config, self._rank, self._device, self._num_envs = config, rank, device, num_envs
        self._waiting: list[Sequence[float]] | None = [] if rank.is_main and rank.world_size > 1 else None
        # CPU ranks of one machine share its memory, so only the first of them checks it.
        self._watches_memory = device != "cpu" or rank.local_rank == 0

    def check(self, iteration: int, wait_shares: Sequence[float]) -> None:
        """Check an iteration, and print a warning if there is a reason for one."""
        if self._waiting is not None:
            self._waiting.append(wait_shares)
            if len(self._waiting) == WINDOW:
                means = [statistics.fmean(of_rank) for of_rank in zip(*self._waiting, strict=True)]
                text = waiting_advice(means, self._config)
                self._waiting = [] if text is None else None
                if text is not None:
                    emit("warning", text=text)
        if self._watches_memory and iteration % MEMORY_INTERVAL == 0:
            text = self._memory_advice()
            self._watches_memory = text is None
            if text is not None:
                emit("warning", text=text)

    def _memory_advice(self) -> str | None:
        """Return advice if the memory is nearly full; None otherwise."""
        # Free memory, memory that the run can use in total, and their place. Rank 0 prints the warnings of all ranks,
        # so "this machine" is the machine of rank 0.
        rank = self._rank
        if self._device != "cpu":
            free, total = torch.cuda.mem_get_info(self._device)
            place = "the GPU" if rank.world_size == 1 else f"the GPU of rank {rank.rank}"
        else:
            # A container may get only a part of the machine's memory, so the total is the sum of the free memory and
            # the memory that the ranks of this run use. All ranks use about as much as this rank.
            free = free_cpu_bytes()
            total = free + 1e6 * memory_mb(torch.device("cpu")) * rank.local_world_size
            place = "this machine" if rank.is_main else f"the machine of rank {rank.rank}"
        if free > MIN_FREE * total:
            return None
        left = f"only {byte_size(free)} of memory is left on {place}"
        return f"{left}; the run may fail; lower --num-envs (now {self._num_envs})"


def waiting_advice(shares: Sequence[float], config: TrainConfig) -> str | None:
    """Return advice if a rank waits for others too long; None otherwise."""
    waiting = [rank for rank, share in enumerate(shares) if share > MAX_WAITING]
    if not waiting:
        return None
    longest = max(shares)
    if len(waiting) == len(shares):
        problem = f"all ranks spend more than {MAX_WAITING:.0%} of their time in collectives (maximum: {longest:.0%})"
        fix = f"raise --sync.period (now {config.sync.period}) to have fewer collectives, or raise --num-envs"
    else:
        slowest = min(range(len(shares)), key=shares.__getitem__)
        verb = "waits" if len(waiting) == 1 else "wait"
        problem = f"{in_words(waiting)} {verb} for rank {slowest}, which is slowest, up to {longest:.0%} of the time"
        fix = f"end other programs on rank {slowest}'s device, choose equal GPUs with --gpu-ids, or raise --sync.period"
    return f"{problem}; {fix}; mjlab-dist verify {config.task} shows where the time is spent"
