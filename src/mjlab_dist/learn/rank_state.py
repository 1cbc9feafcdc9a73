"""What one rank has to itself and an exact resume needs, as one flat tensor that travels to rank 0 in one collective."""

from __future__ import annotations

from collections.abc import Mapping

import torch

RankState = dict[str, torch.Tensor]
"""Tensors by name; the same names, shapes and types on ranks with as many envs of the same task."""


def pack(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """All bytes of a state, in the order of names.

    Args:
        state: The rank's, on any device.

    Returns:
        (bytes,) of uint8, on the CPU.
    """
    names = sorted(state)
    on_device = [name for name in names if state[name].device.type != "cpu"]
    parts = {name: _bytes(state[name]) for name in names}
    if on_device:
        # One copy for all, and not to pinned memory, which torch would keep.
        packed = torch.cat([parts[name] for name in on_device]).cpu()
        sizes = [len(parts[name]) for name in on_device]
        parts |= dict(zip(on_device, packed.split(sizes), strict=True))
    return torch.cat([parts[name] for name in names])


def unpack(packed: torch.Tensor, like: Mapping[str, torch.Tensor]) -> RankState:
    """The state that :func:`pack` made one tensor of.

    Args:
        packed: (bytes,) of uint8, on the CPU.
        like: A state of the same names, shapes and types.

    Returns:
        Tensors on the CPU.
    """
    names = sorted(like)
    parts = packed.split([like[name].numel() * like[name].element_size() for name in names])
    # A copy each: views into one buffer need not start where their type wants them to.
    return {
        name: part.clone().view(like[name].dtype).view(like[name].shape)
        for name, part in zip(names, parts, strict=True)
    }


def fits(state: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor]) -> bool:
    """Whether a state can take another's place: it has whatever that one has, in the same shapes and types."""
    return all(
        name in state and state[name].shape == tensor.shape and state[name].dtype == tensor.dtype
        for name, tensor in like.items()
    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
