"""Log records and output that agents and ranks send to torchrunx's log server, and the log files. Imports no torch.

torchrunx's own server unpickles any data that is sent to its port. The server here expects a proof that the sender
belongs to the launch (this start of ranks), and then either a line of JSON per record, or a line of JSON that names a
rank, and after it what the rank prints.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Sequence
from logging.handlers import SocketHandler
from pathlib import Path
from typing import IO, Any

from mjlab_dist.launch.channel import LOGS, connect
from mjlab_dist.launch.handshake import MAX_UNPROVEN, authenticate, secret_of
from mjlab_dist.launch.hosts import HERE
from mjlab_dist.streams import unfailing

# Maximum length of a record. A longer record ends its connection.
MAX_RECORD_BYTES = 64 * 1024**2

# Maximum length of a printed line; a longer one is written in parts
MAX_LINE_BYTES = 64 * 1024

# Key of the line that names a rank whose output follows
PRINTS = "prints"

# Fields that every record has
REQUIRED = frozenset({"hostname", "local_rank", "name", "msg", "levelno"})


class RecordSender(SocketHandler):
    """Sends log records to the log server of the launch. Takes the place of logging's SocketHandler in torchrunx."""

    def makeSocket(self, timeout: float = 10.0) -> socket.socket:  # noqa: N802 (logging's name)
        """Connect to the server."""
        connection = super().makeSocket(timeout)
        try:
            authenticate(connection, secret_of(os.environ), listens=False)
        except OSError:
            connection.close()
            raise
        return connection

    def makePickle(self, record: logging.LogRecord) -> bytes:  # noqa: N802 (logging's name)
        """Encode a record as a line of JSON."""
        exc_info = record.exc_info
        if exc_info:
            self.format(record)  # sets exc_text
        fields = {**vars(record), "msg": record.getMessage(), "args": None, "exc_info": None}
        return json.dumps(fields, default=str).encode() + b"\n"


class LogServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Passes the log records of agents and ranks to handlers. Takes the place of torchrunx's server."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, secret: bytes, handlers: Sequence[logging.Handler]) -> None:
        """Serve a socket."""
        super().__init__(listener.getsockname(), _RecordReader, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.secret = secret
        self.handlers = handlers
        self.unproven = threading.Semaphore(MAX_UNPROVEN)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Wait until fewer than :data:`MAX_UNPROVEN` connections lack a proof, and handle this one in a new thread."""
        self.unproven.acquire()
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a connection that fails: its sender has ended, or does not belong to this launch."""


class _RecordReader(socketserver.BaseRequestHandler):
    """One connection."""

    server: LogServer
    request: socket.socket

    def handle(self) -> None:
        """Pass records to the handlers until the connection ends."""
        try:
            authenticate(self.request, self.server.secret, listens=True)
        finally:
            self.server.unproven.release()
        with self.request.makefile("rb") as lines:
            while (line := lines.readline(MAX_RECORD_BYTES)).endswith(b"\n"):
                if (rank := _printing_rank(line)) is not None:
                    self._copy_output(rank, lines)
                    return
                record = read_record(line)
                for handler in self.server.handlers:
                    handler.handle(record)

    def _copy_output(self, rank: int, lines: IO[bytes]) -> None:
        files = [handler for handler in self.server.handlers if isinstance(handler, LogFiles)]
        while line := lines.readline(MAX_LINE_BYTES):
            for each in files:
                each.write_output(rank, line)


def _printing_rank(line: bytes) -> int | None:
    """Return the rank whose output follows; None if the line is a record."""
    try:
        return json.loads(line)[PRINTS]
    except (ValueError, TypeError, KeyError):
        return None


def redirect_output(rank: int) -> None:
    """Send what this process and its children print to the log file of a rank, as it is, and make prints unfailing."""
    peer = connect(LOGS)
    peer.sendall(json.dumps({PRINTS: rank}).encode() + b"\n")
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(peer.fileno(), descriptor)
    peer.close()
    sys.stdout, sys.stderr = (unfailing(descriptor, None, by_line=True) for descriptor in (1, 2))


class LogFiles(logging.Handler):
    """Writes the log files of agents and ranks, named ``<host>.log`` and ``<host>[<local rank>].log``."""

    def __init__(self, directory: Path, hosts: Sequence[str], ranks_per_host: Sequence[int]) -> None:
        """Create the files in a new directory, which is named by the time."""
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s:%(levelname)s: %(message)s", "%Y-%m-%d %H:%M:%S"))
        made = directory / datetime.datetime.now().isoformat(timespec="seconds")
        made.mkdir(parents=True, exist_ok=True)
        self._files: dict[tuple[str, int | None], IO[bytes]] = {}
        for host, num_ranks in zip(hosts, ranks_per_host, strict=True):
            for rank in (None, *range(num_ranks)):
                name = f"{host}.log" if rank is None else f"{host}[{rank}].log"
                self._files[host, rank] = (made / name).open("ab", buffering=0)
        self._ranks = [key for key in self._files if key[1] is not None]

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless it is only for debugging."""
        if record.levelno < self.level:
            return  # logging checks the level only if a logger calls this handler
        text = self.format(record) + "\n"
        self._write((vars(record)["hostname"], vars(record)["local_rank"]), text.encode(errors="backslashreplace"))

    def write_output(self, rank: int, line: bytes) -> None:
        """Write a line that a rank printed."""
        self.acquire()
        try:
            self._write(self._ranks[rank], line)
        finally:
            self.release()

    def _write(self, source: tuple[str, int | None], line: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the connection
            if source in self._files:
                self._files[source].write(line)


def read_record(line: bytes) -> logging.LogRecord:
    """Return a log record for torchrunx's handlers.

    Its logger is ``torchrunx.<host>`` for the agent of a machine, and ``torchrunx.<host>.<local rank>`` for a rank.

    Returns:
        The record. If the line is not a complete record: a warning for the log of the launcher's machine.
    """
    try:
        fields = json.loads(line)
        reason = "" if isinstance(fields, dict) and fields.keys() >= REQUIRED else "required fields are missing"
    except ValueError as error:
        fields, reason = {}, str(error)
    if reason:
        fields = {"name": "root", "hostname": HERE, "local_rank": None, "levelno": logging.WARNING}
        fields |= {"levelname": "WARNING", "msg": f"a log record was rejected: {reason}"}
    if fields["name"] != "root":
        fields["msg"] = f"{fields['name']}:{fields['msg']}"
    ranks = [] if fields["local_rank"] is None else [str(fields["local_rank"])]
    fields["name"] = ".".join(["torchrunx", fields["hostname"], *ranks])
    return logging.makeLogRecord(fields)
