"""Standard streams whose writes never fail, and what ranks print and log: the launcher writes it to files.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import logging
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

from mjlab_dist.launch.channel import connect

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Descriptors of standard input, output and error
STANDARD = (0, 1, 2)

# Maximum number of bytes to copy at a time
CHUNK_BYTES = 64 * 1024


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


def redirect_output(rank: int) -> None:
    """Send to the launcher what this process and its children print, as it is, and log records of level INFO or above.

    A print never raises an error.
    """
    with connect("output", rank) as connection:
        for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            os.dup2(connection.fileno(), descriptor)
    sys.stdout, sys.stderr = (unfailing(descriptor, None, by_line=True) for descriptor in (1, 2))
    line = "%(asctime)s:%(levelname)s: %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=line, datefmt="%Y-%m-%d %H:%M:%S", force=True)


class LogFiles:
    """The log files of ranks, named ``<host>[<local rank>].log``."""

    def __init__(self, directory: Path | None, hosts: Sequence[str]) -> None:
        """Create the files in a new directory, which is named by the time.

        Args:
            directory: Parent of the new directory; None for no files.
            hosts: Machine of each rank.
        """
        self.files: list[IO[bytes]] = []
        if directory is None:
            return
        made = directory / datetime.datetime.now().isoformat(timespec="seconds")
        made.mkdir(parents=True, exist_ok=True)
        for rank, host in enumerate(hosts):
            self.files.append((made / f"{host}[{rank - hosts.index(host)}].log").open("ab", buffering=0))

    def copy(self, rank: int, connection: Connection) -> None:
        """Write what a rank sends, until its connection ends."""
        while data := os.read(connection.fileno(), CHUNK_BYTES):
            if self.files:
                # A full disk must not end the connection. If the rank is on a lost machine, the files may be closed.
                with contextlib.suppress(OSError, ValueError):
                    self.files[rank].write(data)

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()
