"""Random draws that depend on the seed and the ids of envs, but not on how the envs are split over ranks.

The generators of all ranks start in the same state and stay equal, because every rank draws for all envs. Each rank
keeps only the rows of its own envs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mjlab_dist.distributed.rank import check_generator
from mjlab_dist.errors import UserError

# Functions that have the size of the result as an argument
_FACTORIES = frozenset({torch.rand, torch.randn, torch.randint})

# Functions whose result has the shape of their first tensor
_LIKE = frozenset(
    {torch.rand_like, torch.randn_like, torch.randint_like, torch.normal, torch.bernoulli, torch.Tensor.bernoulli}
    | {torch.dropout, functional.dropout, functional.gumbel_softmax}
)

# Methods that write the draws to the tensor that they are called on
_IN_PLACE = frozenset(
    getattr(torch.Tensor, f"{name}_")
    for name in ("uniform", "normal", "random", "bernoulli", "exponential", "log_normal", "geometric", "cauchy")
)

# Functions that choose indices by weights
_MULTINOMIAL = frozenset({torch.multinomial, torch.Tensor.multinomial})

# Functions that use rejection sampling.
#
# How many random numbers an env takes depends on the parameters of its distribution. A rank does not have the
# parameters of the envs of other ranks, so it cannot skip the random numbers of these envs.
_REJECTING = frozenset(getattr(torch, name) for name in ("poisson", "binomial", "_standard_gamma", "_sample_dirichlet"))

# Functions whose draws can be split over ranks
_DRAWS = _FACTORIES | _LIKE | _IN_PLACE | _MULTINOMIAL


class Draws:
    """The random state of one rank's envs. Inside a ``with`` block, torch's default generators use this state.

    At the end of the block, the generators get back the state that they had before the block.
    """

    def __init__(self, device: str, num_envs: int, first_env: int, total_num_envs: int) -> None:
        """Start with the current state of the generators."""
        self._cuda = None if device == "cpu" else device
        self._rows = None if num_envs == total_num_envs else _OwnRows(num_envs, first_env, total_num_envs)
        self._own = self._others = self._read()

    def seed(self, seed: int) -> None:
        """Start again with a seed. Call this outside of a ``with`` block."""
        before = self._read()
        torch.manual_seed(seed)
        self._own = self._read()
        self._write(before)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state of the generators, on the CPU."""
        return {name: state.clone() for name, state in self._own.items()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load the result of :meth:`state`. Call this outside of a ``with`` block."""
        for name in self._own.keys() & state.keys():
            check_generator(f"state: {name}", state[name], self._cuda if name == "cuda" and self._cuda else "cpu")
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

    In a result, the first dimension whose size equals this rank's number of envs counts as the env dimension. A result
    without such a dimension is the same on all ranks.
    """

    def __init__(self, num_envs: int, first_env: int, total_num_envs: int) -> None:
        super().__init__()
        self._num_envs, self._first_env, self._total = num_envs, first_env, total_num_envs

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _DRAWS:
            if func is torch.randperm or func in _REJECTING:
                self._refuse(func, (*args, *kwargs.values()))
            return func(*args, **kwargs)
        # The caller gives a tensor for the result
        if isinstance(out := kwargs.get("out"), torch.Tensor):
            others = {name: value for name, value in kwargs.items() if name != "out"}
            like = {"dtype": out.dtype, "device": out.device} if func in _FACTORIES else {}
            return out.copy_(self.__torch_function__(func, types, args, {**like, **others}))
        # A new result
        if func in _MULTINOMIAL:
            return self._choose(func, *args, **kwargs)
        own = next((one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)), None)
        if own is None:
            return self._create(func, args, kwargs)
        whole = func(*map(self._whole, args), **{name: self._whole(value) for name, value in kwargs.items()})
        rows = self._own(whole, own.shape)
        return own.copy_(rows) if func in _IN_PLACE else rows

    def _refuse(self, func: Callable[..., Any], values: Sequence[Any]) -> None:
        """Raise if a function draws for the envs of this rank, and its draws cannot be split over ranks."""
        if func is torch.randperm and any(type(one) is int and one == self._num_envs for one in values):
            raise UserError(
                f"torch.randperm: {self._num_envs} is the number of envs of this rank, and a permutation of the envs "
                "cannot be split over ranks; use one device, or draw a number for each env"
            )
        if func in _REJECTING and any(
            isinstance(one, torch.Tensor) and self._dim(one.shape) is not None for one in values
        ):
            raise UserError(
                f"torch.{func.__name__.lstrip('_')}: a rank cannot compute the draws of its envs, because they depend "
                "on the parameters of the envs of other ranks; use one device, or another distribution"
            )

    def _create(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """Call a factory. The size is the last argument if that is a sequence, otherwise the tuple of all arguments."""
        if "size" in kwargs:
            return self._own(func(*args, **{**kwargs, "size": self._whole_size(kwargs["size"])}), kwargs["size"])
        *numbers, last = args
        if isinstance(last, Sequence):
            return self._own(func(*numbers, self._whole_size(last), **kwargs), last)
        return self._own(func(self._whole_size(args), **kwargs), args)

    def _choose(
        self,
        func: Callable[..., Any],
        input: torch.Tensor,  # noqa: A002 (torch's name)
        num_samples: int,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Choose indices for each env from its own row of weights, or from weights that all envs share."""
        *rows, num_choices = input.shape
        if self._dim(rows) == 0:
            return self._own(func(self._whole(input, 1.0), num_samples, *args, **kwargs), rows)
        if num_choices == self._num_envs:
            raise UserError(
                f"torch.multinomial: {num_choices} is the number of envs of this rank, and a rank cannot choose envs "
                "of other ranks; use one device, or give each env a row of weights"
            )
        if num_samples == self._num_envs:
            return func(input, self._total, *args, **kwargs).narrow(-1, self._first_env, self._num_envs)
        return func(input, num_samples, *args, **kwargs)

    def _whole(self, value: Any, others: float = 0.0) -> Any:
        """Extend a tensor to all envs, with ``others`` for envs of other ranks. Return any other value unchanged."""
        if not isinstance(value, torch.Tensor) or (dim := self._dim(value.shape)) is None:
            return value
        whole = value.new_full(self._whole_size(value.shape), others)
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
