"""The state of all random generators of a process, as tensors: torch's, NumPy's and Python's."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import numpy as np
import torch

from mjlab_dist.distributed.seeding import check_generator
from mjlab_dist.errors import UserError
from mjlab_dist.sim import check_limits


def random_state(device: str) -> dict[str, torch.Tensor]:
    """Return the state of all generators; tensors on the CPU, with the same shapes in every process."""
    version, words, gauss = random.getstate()
    assert version == 3
    # Include NumPy's global generator, because a task's own functions may use it.
    name, keys, position, has_gauss, cached = np.random.get_state()
    assert name == "MT19937"
    state = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor([float("nan") if gauss is None else gauss], dtype=torch.float64),
        "numpy": torch.tensor([*np.asarray(keys).tolist(), position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
    }
    if device != "cpu":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: Mapping[str, torch.Tensor], device: str) -> None:
    """Restore the state of all generators."""
    check_generator("random/torch", state["torch"], "cpu")
    check_limits("random/python", state["python"], torch.int64, (0, 2**32 - 1))
    check_limits("random/numpy", state["numpy"], torch.int64, (0, 2**32 - 1))
    *keys, position, has_gauss = state["numpy"].tolist()
    words, gauss = tuple(state["python"].tolist()), state["python_gauss"].item()
    for name, index in (("python", words[-1]), ("numpy", position)):
        if index > len(keys):
            raise UserError(f"random/{name} is at position {index} of {len(keys)}; it is damaged")
    torch.set_rng_state(state["torch"])
    random.setstate((3, words, None if math.isnan(gauss) else gauss))
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, state["numpy_gauss"].item()))
    if device != "cpu" and "cuda" in state:
        check_generator("random/cuda", state["cuda"], device)
        torch.cuda.set_rng_state(state["cuda"], device)
