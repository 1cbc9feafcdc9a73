"""From the name of a term in a config to a callable."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import ParamValue
from mjlab_dist.config.references import resolve
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


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
    try:
        found = resolve(func)
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
