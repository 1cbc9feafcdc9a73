"""Events of a rank reach its launcher, and requests of the launcher reach the rank."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

from mjlab_dist.launch.agent_group import LauncherGroup
from mjlab_dist.launch.channel import LAUNCHER, Channel, Channels
from mjlab_dist.launch.handshake import SECRET, new_secret
from mjlab_dist.messages import Event


class Launcher(NamedTuple):
    events: queue.SimpleQueue[Event]
    channels: Channels
    group: type[LauncherGroup]
    reads: threading.Event
    """Cleared to read no further events."""

    def next(self) -> Event:
        return self.events.get(timeout=60)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    secret, events, reads = new_secret(), queue.SimpleQueue[Event](), threading.Event()
    monkeypatch.setenv(SECRET, secret)

    def receive(event: Event) -> None:
        reads.wait(60)
        assert event["kind"] != "fails"
        events.put(event)

    reads.set()
    channels = Channels(receive)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        monkeypatch.setenv(LAUNCHER, f"127.0.0.1:{listener.getsockname()[1]}")
        group = LauncherGroup.listening(listener, bytes.fromhex(secret), ["localhost"], channels.admit)
        yield Launcher(events, channels, group, reads)
        group.abort()


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
    launcher.group.abort()
    for _ in range(100):
        channel.listen({"kind": "status", "text": "x" * 100_000})
    channel.flush(60)
    assert launcher.events.empty()
