"""Files that are replaced atomically, and files that a command writes to a path that the user chooses.

Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.errors import UserError, listed
from mjlab_dist.imports import require_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Pixels per inch of a figure
DPI = 150


def write_atomically(path: Path, contents: str | bytes) -> None:
    """Write a file. At any time, even after a power failure, the file has either the old contents or the new ones."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # "x" follows no link that somebody else may have put there
            file.write(contents.encode() if isinstance(contents, str) else contents)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # also Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


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
    with writing(flag, file):
        write_atomically(Path(file), contents)


@contextlib.contextmanager
def writing(flag: str, file: str) -> Iterator[None]:
    """Report in one line that a file cannot be written, without ffmpeg's command and its output if this is a video."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0]
        raise UserError(f"{flag} {file}: cannot be written ({reason}); name another file") from error


def check_figure_file(flag: str, file: str, suffixes: Sequence[str]) -> None:
    """Raise if a figure cannot be drawn, or cannot be written to a file."""
    check_output(flag, file, suffixes)
    require_extra("plots", f"{flag} {file}")


def save_png(figure: Figure, flag: str, file: str) -> None:
    """Write a figure as a PNG file, atomically."""
    data = io.BytesIO()
    figure.savefig(data, format="png")
    write_output(flag, file, data.getvalue())
