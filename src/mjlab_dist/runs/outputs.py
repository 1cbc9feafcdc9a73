"""Files that a command writes to a path that the user chooses. Imports the standard library only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mjlab_dist.errors import UserError
from mjlab_dist.runs.atomic import write_atomically
from mjlab_dist.wording import listed


def check_output(flag: str, file: str, suffixes: Sequence[str] = ()) -> None:
    """Raise if a file cannot be written. Commands call this function before work that takes time."""
    path = Path(file)
    if suffixes and path.suffix not in suffixes:
        raise UserError(f"{flag} {file}: give a file that ends in {listed(suffixes, 'or')}")
    directory = path.resolve().parent
    if not directory.is_dir():
        raise UserError(f"{flag} {file}: there is no directory {path.parent}; create it first")
    if path.is_dir():
        raise UserError(f"{flag} {file}: is a directory; name a file")
    if not os.access(directory, os.W_OK):
        raise UserError(f"{flag} {file}: the directory {path.parent} cannot be written to; name another file")


def write_output(flag: str, file: str, contents: str | bytes) -> None:
    """Write a file atomically."""
    try:
        write_atomically(Path(file), contents)
    except OSError as error:
        raise UserError(f"{flag} {file}: cannot be written ({error.strerror}); name another file") from error
