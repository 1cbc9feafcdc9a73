"""References "package.module:name" to functions and classes of modules that a config must not import."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from typing import Any

from mjlab_dist.errors import UserError


class Reference(str):
    """The name of a function or class that is not imported yet. Calling it imports and calls it."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Import the function or class and call it."""
        return resolve(self)(*args, **kwargs)


class LazyModule:
    """Stand-in for a module that is imported when something of it is used. Its attributes are references."""

    def __init__(self, name: str) -> None:
        """Import nothing yet.

        Args:
            name: The module's full name.
        """
        self.__name__ = name

    def __getattr__(self, name: str) -> Reference:
        if name.startswith("__"):
            raise AttributeError(name)
        return Reference(f"{self.__name__}:{name}")


def lazy_modules(package: str, *names: str) -> Callable[[str], LazyModule]:
    """Make ``from package import module`` return stand-ins for some modules, until something imports them.

    A config that names terms this way can be listed and shown without importing torch, and editors and type checkers follow the
    names to the real functions. In the package's ``__init__.py``::

        __getattr__ = lazy_modules(__name__, "terms")

    Args:
        package: The package's ``__name__``.
        names: Modules in it.

    Returns:
        The package's ``__getattr__``.
    """

    def get(name: str) -> LazyModule:
        if name not in names:
            raise AttributeError(f"module {package} has no attribute {name}")
        return LazyModule(f"{package}.{name}")

    return get


def resolve(reference: str) -> Any:
    """Import what a reference names.

    Args:
        reference: As package.module:name.

    Raises:
        ImportError: If there is no such module.
        AttributeError: If the module has no such name.
        ValueError: If it is not of this form.
    """
    if ":" not in reference:
        raise ValueError("names no function after a colon")
    return pkgutil.resolve_name(reference)


def name_of(term: Callable[..., Any] | str) -> str:
    """Return the reference to a function or class.

    Args:
        term: The function or class itself, or a reference to it.

    Raises:
        UserError: If it cannot be found again by a name, as a lambda, a function within another one, or one of a script.
    """
    if isinstance(term, str):
        return str(term)
    module, name = getattr(term, "__module__", None), getattr(term, "__qualname__", None)
    if module is None or name is None:
        raise UserError(f"{term!r}: has no name; define a function or a class at the top level of a module")
    shown = f"{module}:{name}"
    if module == "__main__":
        raise UserError(f"{shown}: is of the script itself, which ranks cannot import; move it to a module")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not term:
        raise UserError(f"{shown}: cannot be found by this name; define it at the top level of its module")
    return shown
