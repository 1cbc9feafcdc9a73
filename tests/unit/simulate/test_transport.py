"""The launcher and a rank exchange tensors by shared memory or a network. Other processes cannot connect."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from mjlab_dist.launch.handshake import NotOursError
from mjlab_dist.simulate.job import Entry, Layout
from mjlab_dist.simulate.meeting import Meeting, open_meeting
from mjlab_dist.simulate.shared import create
from mjlab_dist.simulate.transport import Network, SharedMemory, Transport

LAYOUT: Layout = {
    "wide": Entry((3, 5, 7), "float32", 1),
    "rewards": Entry((5,), "float32", 0),
    "terminated": Entry((3, 5), "bool", 1),
}
"""Layout of tensors for five envs."""

ROWS = range(2, 5)

SECRET = b"secret" * 6


@pytest.fixture(params=[SharedMemory, Network])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Transport, Transport]]:
    kind: Callable[[Connection], Transport] = request.param
    launcher, rank = (Connection(end.detach()) for end in socket.socketpair())
    with launcher, rank:
        yield kind(launcher), kind(rank)


def test_rows_of_a_rank_are_exchanged_in_both_directions(ends: tuple[Transport, Transport]) -> None:
    launcher, rank = ends
    whole = create(LAYOUT)
    ours = launcher.offer(whole, ROWS)
    theirs = rank.obtain(LAYOUT, ROWS)
    assert {name: tuple(tensor.shape) for name, tensor in theirs.tensors.items()} == {
        "wide": (3, 3, 7),
        "rewards": (3,),
        "terminated": (3, 3),
    }
    # The launcher sends values to the rank, as it sends actions
    whole.tensors["rewards"][:] = torch.arange(5.0)
    ours.send()
    theirs.receive()
    assert theirs.tensors["rewards"].tolist() == [2, 3, 4]
    # The rank sends values to the launcher, as it sends results
    theirs.tensors["wide"].fill_(2.0)
    theirs.tensors["terminated"].fill_(True)
    theirs.send()
    ours.receive()
    assert whole.tensors["wide"].sum(dim=(0, 2)).tolist() == [0, 0, 42, 42, 42]
    assert whole.tensors["terminated"].sum(dim=0).tolist() == [0, 0, 3, 3, 3]


def test_a_closed_connection_ends_the_wait_for_rows() -> None:
    launcher, rank = socket.socketpair()
    with Connection(launcher.detach()) as connection:
        rows = Network(connection).offer(create(LAYOUT), ROWS)
        rank.sendall(b"part")
        rank.close()
        with pytest.raises(EOFError):
            rows.receive()


def test_ranks_of_both_kinds_connect_and_strangers_do_not(
    tmp_path: Path, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    hosts = ("localhost", "127.0.0.1")
    with open_meeting(tmp_path, hosts, 1, port_range=None, secret=SECRET, timeout_s=60) as (meeting, arrived):
        assert meeting.address is not None
        with socket.create_connection(meeting.address):  # a stranger connects and sends nothing
            with pytest.raises(NotOursError):
                meeting.connect(1, b"another")
            for rank, kind in enumerate((SharedMemory, Network)):
                ours, theirs = _connected(meeting, arrived, rank)
                assert isinstance(ours, kind)
                assert isinstance(theirs, kind)
                with ours.connection, theirs.connection:
                    theirs.connection.send(rank)
                    assert ours.connection.recv() == rank
    wait_for(lambda: "meeting" not in [thread.name for thread in threading.enumerate()])
    with pytest.raises(OSError, match="refused"):
        meeting.connect(1, SECRET)


def test_a_connection_from_which_nothing_arrives_times_out(tmp_path: Path) -> None:
    with open_meeting(tmp_path, ["localhost"], 1, port_range=None, secret=SECRET, timeout_s=1) as (meeting, arrived):
        assert meeting.address is None
        ours, theirs = _connected(meeting, arrived, 0)
        with ours.connection, theirs.connection, pytest.raises(BlockingIOError):
            ours.connection.recv()


def _connected(meeting: Meeting, arrived: queue.SimpleQueue[Transport], rank: int) -> tuple[Transport, Transport]:
    """Connect a rank, and return both ends of the connection."""
    theirs = meeting.connect(rank, SECRET)
    return arrived.get(timeout=60), theirs
