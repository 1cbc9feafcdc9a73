"""Find operations that make the host wait for a device. Each is checked when torch dispatches or calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten: Any = torch.ops.aten


class HostSyncs(TorchDispatchMode):
    """Records operations that make the host wait for a device, and operations whose output size depends on data.

    Reading elements with a boolean index makes the host wait, and is always recorded. Reading with an integer index
    does not; it is recorded too, unless ``indices=False``.
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
    # Operations whose GPU versions read the value of a zero-dimensional tensor on the host
    READING_A_VALUE = (aten.masked_fill.Tensor, aten.masked_fill_.Tensor)

    def __init__(self, indices: bool = True, describe: Callable[[str], str] = str) -> None:
        """Start without records, which are the texts that ``describe`` returns for the names of operations."""
        super().__init__()
        self._indices, self._describe = indices, describe
        self.num_ops = 0
        self.found: list[str] = []
        self.paused = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. If this returned True, torch would import its compiler, which takes 3 s."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused or func.namespace == "prim":  # prim operations only return properties, such as a device
            return func(*args, **kwargs)
        # A composite operation can hide one that waits: for example, `aten.to` can copy to another device. Split
        # composite operations here, because torch does not split them in inference mode.
        if func.namespace == "aten" and func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs)
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Execute an operation that is not composed of other operations."""
        self.num_ops += 1
        if self._waits(func, args, kwargs):
            self.found.append(self._describe(str(func)))
        return func(*args, **kwargs)

    def _waits(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        if func is aten.index.Tensor:
            return self._indices or any(i is not None and i.dtype == torch.bool for i in args[1])
        if func.overloadpacket is aten._to_copy:
            moves = torch.device(kwargs.get("device") or args[0].device) != args[0].device
            return moves and not kwargs.get("non_blocking")
        if func.overloadpacket is aten.copy_:
            return args[0].device != args[1].device
        return func.overloadpacket in self.WAITING or func in self.READING_A_VALUE


class HostReads(TorchFunctionMode):
    """Records calls that read a tensor on the host, such as ``tolist``.

    For tensors on the CPU, these calls dispatch no operation. Therefore :class:`HostSyncs` does not record them.
    """

    READING = (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist)

    def __init__(self, describe: Callable[[str], str] = str) -> None:
        """Start without records, which are the texts that ``describe`` returns for the names of functions."""
        super().__init__()
        self._describe = describe
        self.num_calls = 0
        self.found: list[str] = []
        self.paused = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_calls += 1
        if func in self.READING and not self.paused:
            self.found.append(self._describe(f"Tensor.{func.__name__}"))
        return func(*args, **(kwargs or {}))


@contextmanager
def pausing(*modes: HostSyncs | HostReads) -> Iterator[None]:
    """Execute code without recording it."""
    for mode in modes:
        mode.paused = True
    try:
        yield
    finally:
        for mode in modes:
            mode.paused = False
