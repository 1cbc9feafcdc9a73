"""Sums over ranks of one machine. In these tests, each rank is a thread. The ranks use real stores and sockets."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from mjlab_dist.distributed import local_sum
from mjlab_dist.distributed.local_sum import LocalSum
from mjlab_dist.errors import LostRankError

T = TypeVar("T")


def on_ranks(world_size: int, work: Callable[[int, LocalSum], T], timeout_s: float = 20.0) -> list[T]:
    """Run a function on all ranks, and return the results."""
    store = HashStore()

    def be(rank: int) -> T:
        summing = LocalSum(store, rank, world_size, timeout_s)
        try:
            return work(rank, summing)
        finally:
            summing.close()

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(be, range(world_size)))


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_every_rank_receives_the_sum_computed_in_rank_order(world_size: int):
    g = torch.Generator().manual_seed(0)
    shapes = [(), (1,), (2,), (world_size,), (4, 3), (12_345,), (1_000_001,)]  # the last exceeds a socket's buffer
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        addends = [[(100 * torch.randn(shape, generator=g)).to(dtype) for shape in shapes] for _ in range(world_size)]

        def add_up(rank: int, summing: LocalSum, addends: list[list[torch.Tensor]] = addends) -> list[torch.Tensor]:
            for values in addends[rank]:
                summing.sum_(values)
            return addends[rank]

        expected = [functools.reduce(torch.add, part) for part in zip(*addends, strict=True)]
        for sums in on_ranks(world_size, add_up):
            assert all(torch.equal(a, b) for a, b in zip(sums, expected, strict=True))


def test_a_rank_that_waits_for_a_slow_one_sleeps(wait_for: Callable[[Callable[[], bool]], None]):
    waiting: list[int] = []

    def add_up(rank: int, summing: LocalSum) -> None:
        values = torch.ones(100)
        if rank == 0:
            waiting.append(threading.get_native_id())
        else:
            # Rank 0 must sleep while it waits. In a busy loop, it would never sleep.
            wait_for(lambda: bool(waiting) and is_asleep(waiting[0]))
        summing.sum_(values)
        assert values.eq(2.0).all()

    on_ranks(2, add_up)


def is_asleep(thread: int) -> bool:
    """Check ten times whether a thread of this process sleeps. Return True if it sleeps every time."""
    status = Path(f"/proc/self/task/{thread}/stat")
    return all(status.read_text().rpartition(")")[2].split()[0] == "S" for _ in range(10))


def test_a_rank_that_exited_is_named():
    def add_up(rank: int, summing: LocalSum) -> None:
        if rank != 1:
            with pytest.raises(LostRankError, match=r"^rank 1 "):
                summing.sum_(torch.ones(100))

    on_ranks(2, add_up)


def test_a_rank_that_does_not_respond_is_named():
    done = threading.Event()

    def add_up(rank: int, summing: LocalSum) -> None:
        if rank == 1:
            done.wait()
            return
        with pytest.raises(LostRankError, match=r"\brank 1 .*0\.2 s$"):
            summing.sum_(torch.ones(100))
        done.set()

    on_ranks(2, add_up, timeout_s=0.2)


@pytest.mark.parametrize("sizes", [(100, 40), (40, 100)])
def test_a_rank_that_skipped_a_sum_is_detected_by_the_size_of_the_next(sizes: tuple[int, int]):
    def add_up(rank: int, summing: LocalSum) -> str:
        with pytest.raises(LostRankError, match=rf"^rank {1 - rank} ") as caught:
            summing.sum_(torch.ones(sizes[rank]))
        return str(caught.value)

    # One of the two ranks reports both sizes. The other one may notice only that the connection has ended.
    messages = on_ranks(2, add_up)
    assert any({"400", "160"} <= set(re.findall(r"\d+", message)) for message in messages)


@pytest.fixture
def sayings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What strangers send who connect to each rank before the other ranks do."""
    strangers: list[socket.socket] = []
    said: list[bytes] = []
    create_server = socket.create_server

    def listen(*args: object, **kwargs: object) -> socket.socket:
        server = create_server(*args, **kwargs)  # type: ignore[arg-type]
        for one in said:
            strangers.append(socket.create_connection(server.getsockname()))
            strangers[-1].sendall(one)
        return server

    monkeypatch.setattr(socket, "create_server", listen)
    yield said
    assert len(strangers) == 2 * len(said)
    for stranger in strangers:
        stranger.close()


def sum_of_two() -> list[float]:
    def add_up(rank: int, summing: LocalSum) -> float:
        values = torch.full((3,), float(rank + 1))
        summing.sum_(values)
        return values[0].item()

    return on_ranks(2, add_up)


def test_connections_without_the_token_are_rejected(sayings: list[bytes]):
    sayings += [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", bytes(local_sum.HELLO_BYTES)]
    assert sum_of_two() == [3.0, 3.0]


def test_silent_strangers_do_not_delay_the_ranks(sayings: list[bytes]):
    sayings += [b"", b""]
    started = time.monotonic()
    assert sum_of_two() == [3.0, 3.0]
    assert time.monotonic() - started < local_sum.HELLO_TIMEOUT_S


def test_strangers_do_not_extend_the_time_to_connect():
    store = HashStore()
    store.set("local_sum/1", json.dumps((1, bytes(local_sum.TOKEN_BYTES).hex())))
    store.set("local_sum/read/1", "")
    is_over = threading.Event()

    def knock() -> None:
        port, _ = json.loads(store.get("local_sum/0"))
        while not is_over.wait(0.2):
            with contextlib.suppress(OSError):
                socket.create_connection((local_sum.LOOPBACK, port)).close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(knock)
        threading.Timer(8.0, is_over.set).start()
        started = time.monotonic()
        with pytest.raises(LostRankError, match=r"\brank 1 .*\b1 s$"):
            LocalSum(store, rank=0, world_size=2, timeout_s=1.0)
        took_s = time.monotonic() - started
        is_over.set()
    assert took_s < 5


def test_a_rank_that_exits_before_connecting_is_named():
    with socket.create_server((local_sum.LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    store = HashStore()
    store.set("local_sum/0", json.dumps((port, bytes(local_sum.TOKEN_BYTES).hex())))
    with pytest.raises(LostRankError, match=r"^rank 0 .*\("):
        LocalSum(store, rank=1, world_size=2, timeout_s=20.0)

    store.set("local_sum/1", json.dumps((port, bytes(local_sum.TOKEN_BYTES).hex())))
    with pytest.raises(LostRankError, match=r"\brank 1 .*0\.2 s$"):
        LocalSum(store, rank=0, world_size=2, timeout_s=0.2)
