"""The log server accepts only records that processes of its launch send."""

from __future__ import annotations

import json
import logging
import pickle
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from strangers import silent_strangers

from mjlab_dist.launch.handshake import SECRET, authenticate, new_secret
from mjlab_dist.launch.log_records import LogServer, RecordSender, read_record

KNOWN = new_secret()


def make_record(text: str = "%s is %d", args: tuple[object, ...] = ("x", 3), **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "root", "levelno": logging.INFO, "msg": text, "args": args, "hostname": "node7", "local_rank": 1}
        | fields
    )


@dataclass
class Server:
    port: int
    records: queue.SimpleQueue[logging.LogRecord]

    def next(self) -> logging.LogRecord:
        return self.records.get(timeout=60)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Log server of a launch. This process knows the secret of the launch."""
    monkeypatch.setenv(SECRET, KNOWN)
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.put(record)

    listener = socket.create_server(("127.0.0.1", 0))
    server = LogServer(listener, bytes.fromhex(KNOWN), [Handler()])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Server(listener.getsockname()[1], records)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def sender(server: Server) -> Iterator[RecordSender]:
    sender = RecordSender("127.0.0.1", server.port)
    yield sender
    sender.close()


def ended(connection: socket.socket) -> bool:
    """Wait until the other end has read the sent data and closed the connection. Return True."""
    connection.settimeout(60)
    try:
        while connection.recv(1024):
            pass
    except ConnectionError:
        pass
    return True


def test_a_record_of_a_rank_arrives(server: Server, sender: RecordSender):
    row = {"iteration": 3, "kl": 0.5, "mean_return": None}
    sender.emit(make_record(event={"kind": "iteration", "row": row}))
    record = server.next()
    assert record.getMessage() == "x is 3"
    assert record.name == "torchrunx.node7.1"
    assert record.event["row"] == row  # pyright: ignore[reportAttributeAccessIssue]
    sender.emit(make_record("of an agent", (), name="urllib3", local_rank=None))
    record = server.next()
    assert (record.name, record.getMessage()) == ("torchrunx.node7", "urllib3:of an agent")


def test_an_exception_arrives_as_text(server: Server, sender: RecordSender):
    try:
        raise ValueError("no such thing")
    except ValueError as error:
        sender.emit(make_record("failed", (), exc_info=(ValueError, error, error.__traceback__)))
    assert "no such thing" in str(server.next().exc_text)


@pytest.mark.parametrize(
    "sent",
    [
        json.dumps({"name": "root", "hostname": "node7", "local_rank": 0, "levelno": 20, "msg": "forged"}).encode(),
        struct.pack(">L", 5) + pickle.dumps(1),
        struct.pack(">L", 2**32 - 1) + b"half a record",
    ],
)
def test_data_from_a_stranger_is_not_read(server: Server, sender: RecordSender, sent: bytes):
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(sent.ljust(200) + b"\n")
        assert ended(stranger)
    sender.emit(make_record("ours", ()))
    assert server.next().getMessage() == "ours"
    assert server.records.empty()


def test_silent_strangers_delay_records_but_do_not_use_up_descriptors_or_threads(
    server: Server, sender: RecordSender, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    with ThreadPoolExecutor(1) as pool, silent_strangers(("127.0.0.1", server.port), wait_for):
        pool.submit(sender.emit, make_record("late", ()))
    assert server.next().getMessage() == "late"


def test_half_a_record_is_dropped_with_its_connection(server: Server):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        authenticate(connection, bytes.fromhex(KNOWN), listens=False)
        connection.sendall(b'{"name": "ro')
        connection.shutdown(socket.SHUT_WR)
        assert ended(connection)
    assert server.records.empty()


def test_a_sender_with_another_secret_drops_its_records(
    server: Server, sender: RecordSender, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setenv(SECRET, new_secret())
        RecordSender("127.0.0.1", server.port).emit(make_record("forged", ()))
    sender.emit(make_record("ours", ()))
    assert server.next().getMessage() == "ours"
    assert server.records.empty()


@pytest.mark.parametrize("line", [b"", b"nonsense\n", b"[1, 2]\n", b'{"name": "x"}\n', b"\xff\n"])
def test_a_line_that_is_no_record_becomes_a_warning(line: bytes):
    record = read_record(line)
    assert record.levelno == logging.WARNING
    assert record.name == "torchrunx.localhost"
