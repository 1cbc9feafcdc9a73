"""What ranks print and log, and the files that the launcher writes it to. Imports no torch."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from mjlab_dist.launch.channel import connect
from mjlab_dist.launch.streams import unfailing

# Maximum number of bytes to copy at a time
CHUNK_BYTES = 64 * 1024


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
