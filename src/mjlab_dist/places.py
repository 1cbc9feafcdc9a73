"""Describe an error of a user's code in one line of text, with the place in the code that raised the error."""

from __future__ import annotations

import traceback
from pathlib import Path


def describe(error: BaseException, reference: str) -> str:
    """Return the type, message and place of an error in one line."""
    place = place_of(error, reference)
    return named(type(error).__name__, _message(error)) + (f" ({place})" if place else "")


def named(kind: str, message: str) -> str:
    """Return the type and the message of an error; errors such as AssertionError may have no message."""
    return ": ".join(filter(None, (kind, message)))


def with_notes(error: BaseException) -> str:
    """Return the message of an error with its notes, such as the term that raised it, in one line."""
    return ", ".join(filter(None, [_message(error), *getattr(error, "__notes__", [])]))


def place_of(error: BaseException, reference: str) -> str:
    """Return the innermost place of an error in the user's package, such as ``my_ant/terms.py:12``.

    Returns:
        The place; empty if the package's code did not raise the error, for example because the package does not exist.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_short(error.filename)}:{error.lineno}"
    package = reference.partition(":")[0].partition(".")[0]
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] == package:
            place = f"{_short(frame.f_code.co_filename)}:{line}"
    return place


def _message(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return " ".join(text.split())


def _short(file: str) -> str:
    """Return the name of a file and its folder."""
    return "/".join(Path(file).parts[-2:])
