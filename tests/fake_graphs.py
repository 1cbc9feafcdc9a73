"""CUDA graphs on a CPU: a capture records torch operations, and a replay executes them again.

As on a GPU, recorded operations have no effect until they are replayed, results have the same address in every replay,
and random numbers continue from the generator's state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GARBAGE = 77
"""Value of the memory that a capture has allocated. The first replay overwrites it."""


class FakeGraph:
    """Replaces ``torch.cuda.CUDAGraph``."""

    num_captures = 0

    def __init__(self) -> None:
        self._mode: _Capture | None = None
        self._operations: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def capture_begin(self, **_: Any) -> None:
        assert self._mode is None, "a graph can be captured only once"
        FakeGraph.num_captures += 1
        self._mode = _Capture()
        self._mode.__enter__()

    def capture_end(self) -> None:
        assert self._mode is not None
        self._mode.__exit__(None, None, None)
        self._operations = self._mode.finish()

    def replay(self) -> None:
        for func, args, kwargs, results in self._operations:
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            # Torch does not notice that a CUDA graph changes memory, so versions of tensors stay the same.
            with _unsafe_preserve_version_counter(tuple(t for t in given if not t.is_inference())):
                self._execute(func, args, kwargs, results)

    @staticmethod
    def _execute(func: Any, args: Any, kwargs: Any, results: list[torch.Tensor]) -> None:
        made = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
        for result, new in zip(results, made, strict=True):
            if result.data_ptr() != new.data_ptr():
                result.copy_(new)


class _Capture(TorchDispatchMode):
    """Records operations. At the end, it undoes their effects."""

    def __init__(self) -> None:
        super().__init__()
        self._random = torch.get_rng_state()
        self._operations: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._made: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if func.namespace == "aten" and func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs)
        given = {_address(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if func._schema.is_mutable:
            for address, tensor in given.items():
                if address not in self._made and address not in self._before:
                    storage = tensor.untyped_storage()
                    self._before[address] = (storage, storage.clone())
        returned = func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
        for result in results:
            if _address(result) not in given:
                self._made[_address(result)] = result.untyped_storage()
        self._operations.append((func, args, kwargs, results))
        return returned

    def finish(self) -> list[tuple[Any, Any, Any, list[torch.Tensor]]]:
        """Restore the memory and the random state from before the capture."""
        for storage, before in self._before.values():
            storage.copy_(before)
        for storage in self._made.values():
            torch.tensor([], dtype=torch.uint8).set_(storage).fill_(GARBAGE)
        torch.set_rng_state(self._random)
        return self._operations


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextlib.contextmanager
def fake_graphs() -> Iterator[None]:
    """Let torch create fake graphs, and ignore streams."""

    def in_order(*_: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    stand_ins: dict[str, Callable[..., Any]] = {
        "CUDAGraph": FakeGraph,
        "Stream": mock.Mock,
        "current_stream": mock.Mock,
        "stream": in_order,
        "synchronize": mock.Mock(),
        "graph_pool_handle": mock.Mock(),
    }
    with contextlib.ExitStack() as stack:
        for name, stand_in in stand_ins.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, stand_in))
        yield
