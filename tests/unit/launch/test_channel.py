"""Events and output of a rank reach its launcher, and requests of the launcher reach the rank."""

from __future__ import annotations

import json
import os
import pickle
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pytest
from strangers import silent_strangers

from mjlab_dist.launch.channel import LAUNCHER, SECRET, Channel, Channels, connect, new_secret
from mjlab_dist.launch.output import LogFiles
from mjlab_dist.messages import Event


class Launcher(NamedTuple):
    events: queue.SimpleQueue[Event]
    channels: Channels
    end: Callable[[], None]
    reads: threading.Event
    """Cleared to read no further events."""
    address: tuple[str, int]
    taken: queue.SimpleQueue[tuple[int, Connection]]
    """Connections for commands, with their ranks."""

    def next(self) -> Event:
        return self.events.get(timeout=60)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Launcher]:
    secret, events, reads = new_secret(), queue.SimpleQueue[Event](), threading.Event()
    monkeypatch.setenv(SECRET, secret)

    def receive(event: Event) -> None:
        reads.wait(60)
        assert event["kind"] != "fails"
        events.put(event)

    taken: queue.SimpleQueue[tuple[int, Connection]] = queue.SimpleQueue()

    def take(rank: int, peer: socket.socket) -> None:
        taken.put((rank, Connection(peer.detach())))

    reads.set()
    channels, logs = Channels(receive), LogFiles(tmp_path, ["localhost", "node7", "node7"])
    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv(LAUNCHER, f"127.0.0.1:{listener.getsockname()[1]}")
    with closing(logs), ExitStack() as stack:
        stack.enter_context(channels.accepting(listener, bytes.fromhex(secret), logs.copy, take))
        yield Launcher(events, channels, stack.close, reads, listener.getsockname(), taken)


def test_events_arrive_in_order_and_name_the_rank_of_a_warning(launcher: Launcher):
    for rank in (0, 7):
        channel = Channel(rank, print)
        channel.listen({"kind": "beat", "rank": rank, "iteration": 1})
        channel.listen({"kind": "warning", "text": "slow"})
        channel.flush(60)
        assert launcher.next() == {"kind": "beat", "rank": rank, "iteration": 1}
        assert launcher.next() == {"kind": "warning", "text": f"rank {rank}: slow"}


def test_an_event_whose_listener_fails_does_not_stop_the_next(launcher: Launcher, caplog: pytest.LogCaptureFixture):
    channel = Channel(0, print)
    for event in ({"kind": "warning"}, {"kind": "fails"}, {"kind": "beat"}):
        channel.listen(event)
    assert launcher.next() == {"kind": "beat"}
    assert [record.message.partition(" was dropped")[0] for record in caplog.records] == ["an event of rank 0"] * 2


def test_requests_reach_only_their_rank(launcher: Launcher):
    received: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for rank in (0, 1):
        channel = Channel(rank, lambda request, rank=rank: received.put((rank, request)))
        channel.listen({"kind": "joined"})
        launcher.next()
    launcher.channels.send(1, "stop")
    assert received.get(timeout=60) == (1, "stop")
    launcher.channels.send(0, "report")
    assert received.get(timeout=60) == (0, "report")
    launcher.channels.send(5, "stop")  # it has not connected
    assert received.empty()


def test_a_rank_does_not_wait_for_a_launcher_that_reads_nothing(launcher: Launcher):
    channel = Channel(0, print)
    launcher.reads.clear()
    for number in range(300):
        channel.listen({"kind": "iteration", "row": {"number": number, "text": "x" * 100_000}})
    channel.flush(0.0)
    assert launcher.events.empty()
    launcher.reads.set()
    assert [launcher.next()["row"]["number"] for _ in range(300)] == list(range(300))
    channel.flush(60)


def test_a_rank_goes_on_if_the_launcher_has_ended(launcher: Launcher):
    channel = Channel(0, print)
    channel.listen({"kind": "joined"})
    launcher.next()
    launcher.end()
    for _ in range(100):
        channel.listen({"kind": "status", "text": "x" * 100_000})
    channel.flush(60)
    assert launcher.events.empty()


def test_a_connection_for_commands_sends_at_once_and_outlives_the_others(launcher: Launcher):
    with connect("commands", 3) as theirs:
        rank, ours = launcher.taken.get(timeout=60)
        launcher.end()
        with ours:
            theirs.send("sizes")
            assert (rank, ours.recv()) == (3, "sizes")
            for end in (ours, theirs):
                with socket.socket(fileno=os.dup(end.fileno())) as peer:
                    assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def logs_in(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.rglob("*.log")}


def test_what_ranks_send_is_written_as_it_is_to_the_log_of_each(launcher: Launcher, tmp_path: Path):
    sent = {"localhost[0].log": b"", "node7[0].log": b"\xff\0no line", "node7[1].log": b"x" * 10**7}
    for rank, data in enumerate(sent.values()):
        with connect("output", rank) as connection, socket.socket(fileno=connection.fileno()) as peer:
            peer.sendall(data)
            peer.detach()
    launcher.end()
    assert logs_in(tmp_path) == sent


def test_without_a_directory_the_output_of_ranks_is_read_but_not_written():
    left, right = socket.socketpair()
    with left, ThreadPoolExecutor(1) as pool, Connection(right.detach()) as connection:
        copying = pool.submit(LogFiles(None, ["localhost"]).copy, 0, connection)
        left.sendall(b"x" * 10**7)
        left.shutdown(socket.SHUT_WR)
        copying.result()


EVENT = json.dumps({"kind": "joined", "rank": 0, "pid": 1}).encode()


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", len(EVENT)) + EVENT,
        struct.pack(">i", 8) + b"events 0" + struct.pack(">i", len(EVENT)) + EVENT,
        struct.pack(">i", 8) + b"output 1" + b"forged",
        struct.pack(">L", 5) + pickle.dumps(1),
        struct.pack(">L", 2**32 - 1) + b"half a record",
    ],
)
def test_data_from_a_stranger_is_not_read(launcher: Launcher, sent: bytes, tmp_path: Path):
    with socket.create_connection(launcher.address, 60) as stranger:
        stranger.sendall(sent.ljust(200))
        with suppress(ConnectionError):
            while stranger.recv(1024):
                pass
    channel = Channel(0, print)
    channel.listen({"kind": "joined"})
    assert launcher.next() == {"kind": "joined"}
    assert launcher.events.empty()
    assert not any(logs_in(tmp_path).values())


def test_silent_strangers_delay_ranks_but_do_not_use_up_descriptors_or_threads(
    launcher: Launcher, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    with ThreadPoolExecutor(1) as pool, silent_strangers(launcher.address, wait_for):
        joining = pool.submit(Channel, 0, print)
    joining.result().listen({"kind": "joined"})
    assert launcher.next() == {"kind": "joined"}
