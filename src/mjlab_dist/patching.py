"""Replace an attribute for a while, where a library offers no other way. Imports the standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of a module, a class or an object, and restore it on exit.

    Args:
        owner: What the attribute is read from.
        name: Name of the attribute.
        value: What reads return inside the ``with`` block.

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
