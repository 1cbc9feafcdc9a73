"""Make standard streams safe: training continues if its output cannot be written."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Descriptors of standard input, output and error
STANDARD = (0, 1, 2)


def keep_streams_usable() -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` of this process usable until it ends.

    A closed stream is opened as the null device; otherwise, the next file or socket would get its descriptor. A write
    cannot succeed if a terminal was closed, if the reader of a pipe has ended, or if a disk is full. After the first
    write that fails, all output is discarded without an error.
    """
    for descriptor in STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free descriptor, which is this one
    sys.stdout = unfailing(1, sys.stdout, by_line=os.isatty(1))
    sys.stderr = unfailing(2, sys.stderr, by_line=True)


def unfailing(descriptor: int, like: TextIO | None, *, by_line: bool) -> TextIO:
    """Return a text stream whose writes never fail."""
    raw = _Unfailing(descriptor, "w", closefd=False)
    return _Unclosing(
        io.BufferedWriter(raw),
        encoding=like.encoding if like else "utf-8",
        errors="backslashreplace",  # a character that the encoding lacks is no reason to end a run
        line_buffering=by_line,
    )


@contextlib.contextmanager
def child_errors() -> Iterator[IO[str]]:
    """Redirect the standard error of child processes to a file; this process still prints to the console or notebook.

    Such errors can be meaningless. For example, torchrunx runs ``kill`` for agents that may have ended already, and
    ``kill`` then prints an error.
    """
    console = os.dup(2)
    try:
        with (
            tempfile.TemporaryFile("w+", errors="replace") as file,
            unfailing(console, sys.stderr, by_line=True) as stderr,
            contextlib.redirect_stderr(stderr if _is_descriptor_2(sys.stderr) else sys.stderr),
        ):
            os.dup2(file.fileno(), 2)
            try:
                yield file
            finally:
                os.dup2(console, 2)
    finally:
        os.close(console)


class _Unclosing(io.TextIOWrapper):
    def close(self) -> None:
        self.flush()


class _Unfailing(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int | None:
        try:
            return super().write(data)
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return memoryview(data).nbytes


def _is_descriptor_2(stream: TextIO | None) -> bool:
    """Return whether a stream writes to the process's standard error; a notebook's stream does not."""
    try:
        return stream is not None and stream.fileno() == 2
    except (OSError, ValueError):
        return False
