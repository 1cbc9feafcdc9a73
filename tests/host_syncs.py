"""What makes the host wait for a device, counted where torch dispatches operations."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten: Any = torch.ops.aten


class HostSyncs(TorchDispatchMode):
    """Counts operations that make the host wait for a device, or that a device's data decides the size of.

    Indices count too, since a mask as an index makes the host wait; where whole numbers are meant, they can be let pass.
    """

    WAITING = (
        aten._local_scalar_dense,
        aten.item,
        aten.is_nonzero,
        aten.nonzero,
        aten.nonzero_static,
        aten.masked_select,
        aten.equal,
        aten._unique2,
        aten.index_put,
        aten.index_put_,
        aten._index_put_impl_,
        aten.index_fill_,
    )

    def __init__(self, indices: bool = True) -> None:
        super().__init__()
        self._indices = indices
        self.num_ops = 0
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.num_ops += 1
        if self._waits(func, args, kwargs):
            self.found.append(str(func))
        return func(*args, **kwargs)

    def _waits(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        masks = func is aten.index.Tensor and (
            self._indices or any(i is not None and i.dtype == torch.bool for i in args[1])
        )
        return masks or func.overloadpacket in self.WAITING or self._moves(func, args, kwargs)

    @staticmethod
    def _moves(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        if func.overloadpacket is aten._to_copy:
            return torch.device(kwargs.get("device") or args[0].device) != args[0].device
        return func.overloadpacket is aten.copy_ and args[0].device != args[1].device
