"""Connection between a rank and its launcher: events to the launcher, requests to the rank. Imports no torch.

User code in a rank may change the settings of logging, the standard streams and the signal handlers, so none of them
carries events or requests.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Literal

from mjlab_dist.launch.handshake import PATIENCE_S, authenticate, secret_of
from mjlab_dist.messages import Event

# Variable with the address and the port where ranks connect to the launcher, as address:port
LAUNCHER = "MJLAB_DIST_LAUNCHER"

# Variable with the address and the port of the log server
LOGS = "MJLAB_DIST_LOGS"

# Maximum length of an event, in bytes
MAX_BYTES = 64 * 1024**2

# stop: stop training after the current iteration. report: report the stack, and end, because the rank hangs.
Request = Literal["stop", "report"]


class Channel:
    """A rank's end."""

    def __init__(self, rank: int, receive: Callable[[Request], None]) -> None:
        """Connect to the launcher."""
        peer = connect(LAUNCHER)
        self._connection = Connection(peer.detach())
        self._connection.send_bytes(b"rank %d" % rank)
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._receive = receive
        # If the launcher is stopped and the connection is full, only the thread that sends waits
        self._sender = threading.Thread(target=self._send, name="events", daemon=True)
        self._sender.start()
        threading.Thread(target=self._read, name="requests", daemon=True).start()

    def listen(self, event: Event) -> None:
        """Send an event. This does not wait, and raises no error if the launcher has ended."""
        self._events.put(event)

    def flush(self, timeout_s: float | None) -> None:
        """Wait until all events are sent, or the connection has ended. No further event can be sent."""
        self._events.put(None)
        self._sender.join(timeout_s)

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while (event := self._events.get()) is not None:
                self._connection.send_bytes(json.dumps(event, default=str).encode())

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                self._receive(json.loads(self._connection.recv_bytes(MAX_BYTES)))


class Channels:
    """The launcher's ends. Each connection is read in the thread that accepted it."""

    def __init__(self, receive: Callable[[Event], None]) -> None:
        self._receive = receive
        self._connections: dict[int, Connection] = {}

    def admit(self, rank: int, connection: Connection) -> None:
        """Read the events of a rank until its connection ends."""
        self._connections[rank] = connection
        with contextlib.suppress(OSError, EOFError):
            while True:
                data = connection.recv_bytes(MAX_BYTES)
                try:
                    event = json.loads(data)
                    if event["kind"] == "warning":
                        event["text"] = f"rank {rank}: {event['text']}"
                    self._receive(event)
                except Exception:  # otherwise a rank whose events are not read would seem to hang
                    logging.getLogger(__name__).exception("an event of rank %d was dropped: %r", rank, data[:1000])

    def send(self, rank: int, request: Request) -> None:
        """Send a request to a rank; do nothing if the rank is not connected."""
        if rank in self._connections:
            with contextlib.suppress(OSError):
                self._connections[rank].send_bytes(json.dumps(request).encode())


def address_of(listener: socket.socket) -> str:
    """Return the address of a listener, as :func:`connect` reads it."""
    address, port = listener.getsockname()[:2]
    return f"{address}:{port}"


def connect(variable: str) -> socket.socket:
    """Connect to a listener of the launcher, and prove that this process belongs to the launch."""
    address, _, port = os.environ[variable].rpartition(":")
    peer = socket.create_connection((address, int(port)), PATIENCE_S)
    authenticate(peer, secret_of(os.environ), listens=False)
    return peer
