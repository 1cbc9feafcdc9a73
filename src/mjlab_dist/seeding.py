"""The seeds of every random generator of a process. Imports the standard library only until it seeds."""

from __future__ import annotations

import random

RESUME_STRIDE = 1_000_003
"""Distance of the seeds of two iterations that a run is resumed from; larger than any number of ranks."""


def seed_generators(seed: int, rank: int = 0, resumed_iteration: int = 0) -> None:
    """Seed the generators of Python, NumPy and torch, on every device.

    Args:
        seed: The run's seed.
        rank: The global rank, not the local one: local ranks repeat across machines, and so would the envs.
        resumed_iteration: Iterations done before, where a run continues without its saved random state: it must not repeat the draws
            that it began with. 0 for a new run.
    """
    import numpy as np  # noqa: PLC0415
    import torch

    own = seed + rank + RESUME_STRIDE * resumed_iteration
    random.seed(own)
    np.random.seed(own % 2**32)
    torch.manual_seed(own)
