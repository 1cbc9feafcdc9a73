"""Count the operations of a control step. Each takes Python's time on a CPU, and a launch on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from mjlab_dist.check.host_syncs import HostSyncs
from mjlab_dist.sim import recording

aten: Any = torch.ops.aten

_FREE = (aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten._unsafe_view)
"""Operations that compute nothing, though torch does not call them views."""


class Operations(HostSyncs):
    """Counts operations of torch, without views and allocations, and Warp's recorded programs.

    A program counts as one, and so does an operation on a list of tensors. The physics of a control step counts as
    one too, although several graphs are launched for it on the CPU.

    Attributes:
        num: Number of operations so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self.num += not (func.is_view or func.overloadpacket in _FREE)
        return super()._run(func, args, kwargs)


@contextmanager
def counted() -> Iterator[Operations]:
    """Count the operations of a block."""
    operations, replay = Operations(), recording.replay

    def replayed(*args: Any) -> None:
        operations.num += 1
        replay(*args)

    with mock.patch.object(recording, "replay", replayed), operations:
        yield operations
