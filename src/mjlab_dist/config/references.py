"""References "package.module:name" to functions and classes that a config names without importing them."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from typing import Any

from mjlab_dist.errors import UserError


class Reference(str):
    """Name of a function or class that is not imported yet."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Import the function or class and call it."""
        return resolve(self)(*args, **kwargs)


class LazyModule:
    """Stand-in for a module that is not imported. Its attributes are references."""

    def __init__(self, name: str) -> None:
        """Store the name.

        Args:
            name: The module's full name.
        """
        self.__name__ = name

    def __getattr__(self, name: str) -> Reference:
        if name.startswith("__"):
            raise AttributeError(name)
        return Reference(f"{self.__name__}:{name}")


def lazy_modules(package: str, *names: str) -> Callable[[str], LazyModule]:
    """Make ``from package import module`` return a stand-in for the module, unless the module is already imported.

    Commands can then list and print configs without importing torch, while editors and type checkers still find the
    real functions. In the package's ``__init__.py``::

        __getattr__ = lazy_modules(__name__, "terms")

    Args:
        package: The package's ``__name__``.
        names: Names of the modules that get a stand-in.

    Returns:
        The package's ``__getattr__``.
    """

    def get(name: str) -> LazyModule:
        if name not in names:
            raise AttributeError(f"module {package} has no attribute {name}")
        return LazyModule(f"{package}.{name}")

    return get


def resolve(reference: str) -> Any:
    """Import and return the object that a reference names.

    Args:
        reference: The reference, as package.module:name.

    Raises:
        ImportError: If there is no such module.
        AttributeError: If the module has no such name.
        ValueError: If the reference is not of this form.
    """
    if ":" not in reference:
        raise ValueError("has no name after a colon")
    return pkgutil.resolve_name(reference)


def name_of(term: Callable[..., Any] | str) -> str:
    """Return the reference to a function or class.

    Args:
        term: The function or class itself, or a reference to it.
    """
    if isinstance(term, str):
        return str(term)
    module, name = getattr(term, "__module__", None), getattr(term, "__qualname__", None)
    if module is None or name is None:
        raise UserError(f"{term!r}: has no name; define a function or a class at the top level of a module")
    shown = f"{module}:{name}"
    if module == "__main__":
        raise UserError(f"{shown}: is defined in the script, which ranks cannot import; move it to a module")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not term:
        raise UserError(f"{shown}: cannot be found by this name; define it at the top level of its module")
    return shown
