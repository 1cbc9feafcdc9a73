"""Random draws that depend on the seed and the ids of envs, but not on how the envs are split over ranks.

The generators of all ranks have the same state. Every rank draws for all envs, and keeps the rows of its own envs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_FACTORIES = frozenset({torch.rand, torch.randn, torch.randint})
"""Functions that take the size of the result."""

_LIKE = frozenset({torch.rand_like, torch.randn_like, torch.randint_like, torch.normal, torch.bernoulli})
"""Functions whose result has the shape of their first tensor."""

_IN_PLACE = frozenset(
    getattr(torch.Tensor, f"{name}_")
    for name in ("uniform", "normal", "random", "bernoulli", "exponential", "log_normal", "geometric", "cauchy")
)
"""Methods that overwrite their tensor."""


class Draws:
    """The random state of one rank's envs, which torch's default generators have inside a ``with`` block.

    After the block, the generators have the state that they had before it.
    """

    def __init__(self, device: str, num_envs: int, first_env: int, total_num_envs: int) -> None:
        """Start with the current state of the generators.

        Args:
            device: ``cpu`` or ``cuda:<index>``, whose generator is included.
            num_envs: Number of envs of this rank.
            first_env: Position of the first of them among all envs.
            total_num_envs: Number of envs of all ranks.
        """
        self._cuda = None if device == "cpu" else device
        self._rows = None if num_envs == total_num_envs else _OwnRows(num_envs, first_env, total_num_envs)
        self._own = self._others = self._read()

    def seed(self, seed: int) -> None:
        """Start again with a seed, outside of a ``with`` block.

        Args:
            seed: Random seed.
        """
        before = self._read()
        torch.manual_seed(seed)
        self._own = self._read()
        self._write(before)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state of the generators, on the CPU."""
        return {name: state.clone() for name, state in self._own.items()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load the result of :meth:`state`, outside of a ``with`` block.

        Args:
            state: The state. The state of a GPU's generator is ignored on the CPU.
        """
        self._own = {name: state.get(name, own).clone() for name, own in self._own.items()}

    def __enter__(self) -> None:
        self._others = self._read()
        self._write(self._own)
        if self._rows is not None:
            self._rows.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._rows is not None:
            self._rows.__exit__(*error)
        self._own = self._read()
        self._write(self._others)

    def _read(self) -> dict[str, torch.Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if self._cuda is not None:
            state["cuda"] = torch.cuda.get_rng_state(self._cuda)
        return state

    def _write(self, state: Mapping[str, torch.Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        if self._cuda is not None:
            torch.cuda.set_rng_state(state["cuda"], self._cuda)


class _OwnRows(TorchFunctionMode):
    """Replaces each draw by a draw for all envs, and returns the rows of this rank's envs.

    The dimension of the envs is the first one whose size is this rank's number of envs. A draw without such a dimension
    is the same on all ranks.
    """

    def __init__(self, num_envs: int, first_env: int, total_num_envs: int) -> None:
        super().__init__()
        self._num_envs, self._first_env, self._total = num_envs, first_env, total_num_envs

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES or func in _LIKE or func in _IN_PLACE:
            own = next((one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)), None)
            if own is None:
                return self._create(func, args, kwargs)
            whole = func(*map(self._whole, args), **{name: self._whole(value) for name, value in kwargs.items()})
            rows = self._own(whole, own.shape)
            return own.copy_(rows) if func in _IN_PLACE else rows
        return func(*args, **kwargs)

    def _create(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """Call a factory. The size is its last argument if that is a sequence, and all arguments otherwise."""
        if "size" in kwargs:
            return self._own(func(*args, **{**kwargs, "size": self._whole_size(kwargs["size"])}), kwargs["size"])
        *numbers, last = args
        if isinstance(last, Sequence):
            return self._own(func(*numbers, self._whole_size(last), **kwargs), last)
        return self._own(func(self._whole_size(args), **kwargs), args)

    def _whole(self, value: Any) -> Any:
        """Return a tensor with zeros added for the envs of other ranks; return any other value unchanged."""
        if not isinstance(value, torch.Tensor) or (dim := self._dim(value.shape)) is None:
            return value
        whole = value.new_zeros(self._whole_size(value.shape))
        whole.narrow(dim, self._first_env, self._num_envs).copy_(value)
        return whole

    def _whole_size(self, size: Sequence[int]) -> list[int]:
        dim = self._dim(size)
        return [self._total if i == dim else length for i, length in enumerate(size)]

    def _own(self, whole: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
        dim = self._dim(size)
        return whole if dim is None else whole.narrow(dim, self._first_env, self._num_envs)

    def _dim(self, size: Sequence[int]) -> int | None:
        return next((dim for dim, length in enumerate(size) if length == self._num_envs), None)
