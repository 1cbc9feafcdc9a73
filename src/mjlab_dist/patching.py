"""Replace parts of a library that offers no other way to change them. Imports the standard library only."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def with_names(function: Callable[P, R], **values: object) -> Callable[P, R]:
    """Return a copy of a function for which some globals of its module have other values. The original does not change.

    A copy is needed instead of :func:`patched` if a thread may still run the function after a launch has ended, because
    ``patched`` would already have restored the original values.
    """
    assert isinstance(function, FunctionType)
    names = function.__globals__
    if missing := values.keys() - names:
        raise AttributeError(f"{function.__module__} has no {', '.join(sorted(missing))}")
    copy = FunctionType(
        function.__code__, {**names, **values}, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return cast("Callable[P, R]", functools.update_wrapper(copy, function))


@contextlib.contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of a module, a class or an object, and restore it on exit."""
    getattr(owner, name)
    # Read the original from vars: getattr unwraps static methods, binds other methods, and finds inherited attributes.
    own = vars(owner)
    is_own, original = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
