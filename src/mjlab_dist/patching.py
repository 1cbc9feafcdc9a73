"""Replace parts of a library that offers no other way. Imports the standard library only."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def with_names(function: Callable[P, R], **values: object) -> Callable[P, R]:
    """Return a copy of a function that reads other objects from its module. The module and the function do not change.

    Unlike :func:`patched`, this has no end: the copy may still run in a thread when a launch is over.

    Args:
        function: Function written in Python.
        values: What the copy finds under names of its module.

    Raises:
        AttributeError: If the module has no such name, as after a library has renamed it.
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
    """Replace an attribute of a module, a class or an object, and restore it on exit.

    Args:
        owner: Module, class or object that has the attribute.
        name: Name of the attribute.
        value: Value of the attribute inside the ``with`` block.

    Raises:
        AttributeError: If the owner has no such attribute, as after a library has renamed it.
    """
    getattr(owner, name)
    # Not what getattr returns: it unwraps static methods and binds others, and also finds inherited attributes.
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
