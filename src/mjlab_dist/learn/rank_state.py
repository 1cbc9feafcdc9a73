"""Per-rank state needed for an exact resume, as one flat tensor that rank 0 gathers in one collective.

It includes the state of all random generators of the process: torch's, NumPy's and Python's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import numpy as np
import torch

from mjlab_dist.distributed.rank import check_generator
from mjlab_dist.errors import UserError, counted
from mjlab_dist.sim import check_limits

# Tensors by name; names, shapes and dtypes are equal on ranks with the same number of envs of the same task
RankState = dict[str, torch.Tensor]


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


def pack(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Concatenate the bytes of all tensors, in the order of their names."""
    names = sorted(state)
    on_device = [name for name in names if state[name].device.type != "cpu"]
    parts = {name: _bytes(state[name]) for name in names}
    if on_device:
        # Copy all tensors at once, to memory that is not pinned, because torch would keep pinned memory allocated.
        packed = torch.cat([parts[name] for name in on_device]).cpu()
        sizes = [len(parts[name]) for name in on_device]
        parts |= dict(zip(on_device, packed.split(sizes), strict=True))
    return torch.cat([parts[name] for name in names])


def unpack(packed: torch.Tensor, like: Mapping[str, torch.Tensor]) -> RankState:
    """Reverse :func:`pack`."""
    names = sorted(like)
    parts = packed.split([like[name].numel() * like[name].element_size() for name in names])
    # Copy each part, because views into one buffer may not be aligned for their dtype.
    return {
        name: part.clone().view(like[name].dtype).view(like[name].shape)
        for name, part in zip(names, parts, strict=True)
    }


def fits(state: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor]) -> bool:
    """Return whether a state has all tensors of ``like``, with the same shapes and dtypes, so that it can be loaded."""
    return all(
        name in state and state[name].shape == tensor.shape and state[name].dtype == tensor.dtype
        for name, tensor in like.items()
    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def difference(num_saved: int, world_size: int) -> str:
    """Return the end of the message "Resuming from iteration 5": why the envs cannot continue their episodes."""
    if num_saved == world_size:
        return " with new episodes: the envs or the --agent flags differ from those of the checkpoint"
    return f" with new episodes: the checkpoint has the envs of {counted(num_saved, 'rank')}, not of {world_size}"
