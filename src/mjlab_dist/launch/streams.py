"""Make standard streams safe: training continues if its output cannot be written."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

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
