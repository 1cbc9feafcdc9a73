"""Count the operations of a control step. On a CPU, each takes time in Python; on a GPU, each launches a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.sim import recorder

aten: Any = torch.ops.aten

_FREE = (aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten._unsafe_view)
"""Operations that compute nothing, although torch does not classify them as views."""


class Operations(HostSyncs):
    """Counts Warp's recorded programs, and operations of torch except views and allocations.

    A recorded program counts as one operation, and so does an operation on a list of tensors. The physics of a control
    step counts as one too, although it launches several graphs on the CPU.

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
    """Count the operations within the context."""
    operations, replay = Operations(), recorder.replay

    def replayed(*args: Any) -> None:
        operations.num += 1
        replay(*args)

    with mock.patch.object(recorder, "replay", replayed), operations:
        yield operations
