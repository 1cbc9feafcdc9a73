"""Log records and events that agents and ranks send to torchrunx's log server. Imports no torch.

torchrunx's own server unpickles any data that is sent to its port. The server here expects a proof that the sender
belongs to the launch (this start of ranks), and then a line of JSON per record.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Sequence
from logging.handlers import SocketHandler
from typing import Any

from mjlab_dist.launch.handshake import MAX_UNPROVEN, authenticate, secret_of
from mjlab_dist.launch.hosts import HERE

MAX_RECORD_BYTES = 64 * 1024**2
"""Maximum length of a record. A longer record ends its connection."""

REQUIRED = frozenset({"hostname", "local_rank", "name", "msg", "levelno"})
"""Fields that every record has."""


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
        """Serve a socket.

        Args:
            listener: Listening socket.
            secret: The secret of the launch.
            handlers: Receive the records; called from several threads.
        """
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
                record = read_record(line)
                for handler in self.server.handlers:
                    handler.handle(record)


def read_record(line: bytes) -> logging.LogRecord:
    """Return a log record for torchrunx's handlers.

    Its logger is ``torchrunx.<host>`` for the agent of a machine, and ``torchrunx.<host>.<local rank>`` for a rank.

    Args:
        line: A line of JSON.

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
