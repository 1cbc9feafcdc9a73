"""What a task is made of: functions of the env, and classes where there is something to look up or to remember."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mjlab_dist.config import ParamValue
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env
    from mjlab_dist.sim import Simulation


class Term:
    """A term that looks up names once, or remembers something from step to step.

    It is made once for a batch of envs, as ``Class(env, **params)``, and then called like a function.

    Attributes:
        capturable: Whether the term can be part of a CUDA graph (``--env.sim.capture step``). Set it to False if the term waits for
            the device or depends on Python values that change: replays then call it between two graphs. Functions are marked by
            :func:`not_capturable`.
    """

    capturable = True

    def reset(self, mask: torch.Tensor) -> None:
        """Forget what belongs to the episode before; positions and velocities are already those of the new one, poses not yet.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """

    def cleared(self) -> Sequence[torch.Tensor]:
        """Return tensors of the memory that the env sets to 0 where an episode starts, after :meth:`reset`.

        The env clears those of all terms in one operation. They are (num_envs, ...) each, with contiguous rows.
        """
        return ()

    def state(self) -> dict[str, torch.Tensor]:
        """What the term remembers, by name: the tensors themselves, (num_envs, ...) each, which are written to in place."""
        return {}


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def not_capturable(function: FunctionT) -> FunctionT:
    """Keep a term that is a function out of CUDA graphs, as ``capturable = False`` does for a class."""
    vars(function)["capturable"] = False
    return function


def is_capturable(term: object) -> bool:
    """Return whether a term, or the term that a method belongs to, can be part of a CUDA graph."""
    owner = term.func if isinstance(term, functools.partial) else getattr(term, "__self__", term)
    return getattr(owner, "capturable", True)


class OutsideOfGraphs:
    """A term that replays of a recorded control step call between two graphs. Its results are copied to the same memory each time."""

    def __init__(self, term: Callable[..., torch.Tensor | None], sim: Simulation) -> None:
        """Call nothing yet.

        Args:
            term: The term, or a method of it; its results all have one shape.
            sim: The physics, which knows whether a control step is being recorded.
        """
        self._term = term
        self._sim = sim
        self._result: torch.Tensor | None = None
        self._is_first = True

    def __call__(self, *args: Any) -> torch.Tensor | None:
        """Call the term now, or in each replay if a control step is being recorded."""
        if self._is_first:
            # Recordings need the memory of the result; the first rollout is never recorded.
            self._is_first = False
            result = self._term(*args)
            self._result = None if result is None else result.clone()
        else:
            self._sim.launch(functools.partial(self._run, *args))
        return self._result

    def _run(self, *args: Any) -> None:
        self._sim.mark_changed()  # replays execute no Python that would have done so
        result = self._term(*args)
        if self._result is not None:
            assert result is not None
            self._result.copy_(result)


class Columns:
    """Fixed columns of tensors (num_envs, width): a view where they lie side by side, else gathered."""

    def __init__(self, ids: Sequence[int], device: str) -> None:
        """Note the columns.

        Args:
            ids: Which, in the order wanted.
            device: Where the tensors are.
        """
        self.ids = tuple(ids)
        contiguous = self.ids == tuple(range(self.ids[0], self.ids[0] + len(self.ids))) if self.ids else False
        self._slice = slice(self.ids[0], self.ids[-1] + 1) if contiguous else None
        self._index = torch.tensor(self.ids, dtype=torch.long, device=device)

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """These columns, (num_envs, len(self), ...).

        Args:
            tensor: (num_envs, width, ...).
        """
        return tensor.index_select(1, self._index) if self._slice is None else tensor[:, self._slice]

    def write(self, tensor: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> None:
        """Put values into these columns, of some envs only.

        Args:
            tensor: (num_envs, width), changed in place.
            mask: Which envs, (num_envs,) of bool.
            values: (num_envs, len(self)).
        """
        if self._slice is None:
            tensor.index_copy_(1, self._index, torch.where(mask.unsqueeze(1), values, self.of(tensor)))
        else:
            write_rows(tensor[:, self._slice], mask, values)


def write_rows(tensor: torch.Tensor, mask: torch.Tensor, values: torch.Tensor | float) -> None:
    """Put values into the rows of some envs.

    Args:
        tensor: (num_envs, ...), changed in place.
        mask: Which envs, (num_envs,) of bool.
        values: Of a shape that broadcasts to the tensor's.
    """
    chosen = mask.view(-1, *[1] * (tensor.dim() - 1))
    if not isinstance(values, torch.Tensor):
        tensor.masked_fill_(chosen, values)
    elif values.dtype == tensor.dtype and values.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
        torch.where(chosen, values, tensor, out=tensor)
    else:  # torch can neither convert the type nor read what it overwrites.
        tensor.copy_(torch.where(chosen, values, tensor))


def uniform(like: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Draw numbers between two bounds, in one operation.

    Args:
        like: A tensor of the shape, type and device of the result.
        low: One bound.
        high: The other.
    """
    return torch.empty_like(like).uniform_(min(low, high), max(low, high))


def state_part(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """What of a saved state has names that start with a prefix, by the rest of the names.

    Args:
        state: Tensors by name.
        prefix: With its separator, as ``env/``.
    """
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def find_names(what: str, patterns: Iterable[str], names: Sequence[str]) -> list[int]:
    """Which names regular expressions fit as a whole, as positions in their order.

    Args:
        what: What has these names, for messages.
        patterns: Regular expressions.
        names: The names there are.

    Raises:
        UserError: If one is no regular expression, or fits none of them.
    """
    found: set[int] = set()
    for pattern in patterns:
        try:
            fits = {i for i, name in enumerate(names) if re.fullmatch(pattern, name)}
        except re.error as error:
            raise UserError(f"{what} {pattern}: is no regular expression: {error}") from error
        if not fits:
            known = ", ".join(dict.fromkeys(filter(None, names)))
            raise UserError(f"{what} {pattern}: fits none of the model's {known or '(it has none)'}")
        found |= fits
    if not found:
        raise UserError(f"{what}: none is named; leave the parameter out for all, or drop the term")
    return sorted(found)


def bind(flag: str, func: str, params: Mapping[str, ParamValue], env: Env, *, num_args: int = 1) -> Callable[..., Any]:
    """Import a term and give it its parameters; make it, if it is a class.

    Args:
        flag: The flag that names it, for messages.
        func: The function or class, as package.module:name.
        params: Keyword arguments.
        env: The envs.
        num_args: Arguments that a function is called with besides.

    Raises:
        UserError: If there is no such function, or it does not take these parameters.
    """
    module, _, name = func.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(f"{flag} {func}: {error}; write package.module:function") from error
    if not callable(found):
        raise UserError(f"{flag} {func}: is no function; write package.module:function")
    is_class = isinstance(found, type)
    args = [env] * (1 if is_class else num_args)
    try:
        inspect.signature(found).bind_partial(
            *args, **params
        )  # a misspelled name, before the one that is missing for it
        inspect.signature(found).bind(*args, **params)
    except TypeError as error:
        raise UserError(f"{flag} {func}: {error}; change the params of the term") from error
    _check_lengths(flag, found, params)
    return found(env, **params) if is_class else functools.partial(found, **params)


def _check_lengths(flag: str, func: Callable[..., Any], params: Mapping[str, ParamValue]) -> None:
    """Refuse a range of one number, which the command line has no reason to: it knows of tuples, not of what a term takes."""
    try:
        hints = typing.get_type_hints(func.__init__ if isinstance(func, type) else func, localns={"Env": object})
    except NameError:
        return  # a user's annotation that only a type checker can read
    for name, value in params.items():
        wanted = typing.get_args(hints.get(name))
        is_fixed = typing.get_origin(hints.get(name)) is tuple and Ellipsis not in wanted
        if is_fixed and isinstance(value, tuple) and len(value) != len(wanted):
            given = " ".join(map(str, value))
            raise UserError(
                f"{flag.removesuffix('.func')}.params.{name.replace('_', '-')} {given}: takes {len(wanted)} numbers"
            )
