"""Seed every random generator of a process. The module itself imports only the standard library."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import torch

# Difference between the seeds of runs resumed at two consecutive iterations.
#
# It is larger than any number of ranks, so that no rank of one run has the seed of a rank of the other.
RESUME_STRIDE = 1_000_003


def seed_generators(seed: int, rank: int = 0, resumed_iteration: int = 0) -> None:
    """Seed the generators of Python, NumPy and torch, on every device.

    ``rank`` is the global rank: with the local rank, ranks of different machines would draw the same numbers. If a run
    resumes without its saved random state, ``resumed_iteration`` keeps it from repeating the numbers of its start.
    """
    import numpy as np
    import torch

    own = seed + rank + RESUME_STRIDE * resumed_iteration
    random.seed(own)
    np.random.seed(own % 2**32)
    torch.manual_seed(own)


def check_generator(name: str, state: torch.Tensor, device: str) -> None:
    """Raise if a tensor is not the state of a generator of torch."""
    import torch

    try:
        torch.Generator(device).set_state(state)
        if device == "cpu":
            # Torch does not compare the two, and would read beyond the 624 numbers of the Mersenne twister.
            num_left, position = state[8:12].view(torch.int32).item(), state[16:20].view(torch.int32).item()
            if num_left + position > 625:
                raise RuntimeError(f"{num_left} numbers are left at position {position} of 624")
    except (RuntimeError, TypeError) as error:
        raise UserError(f"{name} is not the state of a random generator ({error}); it is damaged") from error
