"""Device memory of MuJoCo Warp's model and data."""

from __future__ import annotations

import dataclasses
from typing import Any

import warp as wp


def array_bytes(*holders: Any) -> dict[int, int]:
    """Return the size in bytes of every Warp array in dataclasses, tuples and lists.

    Keys are addresses, so that memory that several arrays share counts once.
    """
    found: dict[int, int] = {}
    for holder in holders:
        if isinstance(holder, wp.array):
            inner = {holder.ptr: holder.capacity} if holder.ptr else {}
        elif dataclasses.is_dataclass(holder):
            inner = array_bytes(*(getattr(holder, field.name) for field in dataclasses.fields(holder)))
        elif isinstance(holder, tuple | list):
            inner = array_bytes(*holder)
        else:
            continue
        for pointer, size in inner.items():
            found[pointer] = max(size, found.get(pointer, 0))
    return found
