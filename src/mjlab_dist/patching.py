"""Replace parts of a library that offers no other way to change them. Imports the standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


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
