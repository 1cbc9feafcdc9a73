"""Seed every random generator of a process. The module itself imports only the standard library."""

from __future__ import annotations

import random

RESUME_STRIDE = 1_000_003
"""Difference between the seeds of runs resumed at two consecutive iterations.

It is larger than any number of ranks, so that no rank of one run has the seed of a rank of the other.
"""


def seed_generators(seed: int, rank: int = 0, resumed_iteration: int = 0) -> None:
    """Seed the generators of Python, NumPy and torch, on every device.

    Args:
        seed: The run's seed.
        rank: The global rank. If this were the local rank, ranks of different machines would draw the same numbers.
        resumed_iteration: Number of completed iterations for a run that resumes without its saved random state, so
            that the run does not repeat the random numbers of its start; otherwise 0.
    """
    import numpy as np  # noqa: PLC0415
    import torch

    own = seed + rank + RESUME_STRIDE * resumed_iteration
    random.seed(own)
    np.random.seed(own % 2**32)
    torch.manual_seed(own)
