"""Per-rank state needed for an exact resume, as one flat tensor that rank 0 gathers in one collective."""

from __future__ import annotations

from collections.abc import Mapping

import torch

# Tensors by name; names, shapes and dtypes are equal on ranks with the same number of envs of the same task
RankState = dict[str, torch.Tensor]


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
    ranks = "1 rank" if num_saved == 1 else f"{num_saved} ranks"
    return f" with new episodes: the checkpoint has the envs of {ranks}, not of {world_size}"
