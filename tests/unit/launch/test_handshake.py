"""Each end of a connection proves that it knows the secret of the launch."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from mjlab_dist.launch import channel
from mjlab_dist.launch.channel import NotOursError, authenticate, new_secret

OURS, OTHER = (bytes.fromhex(new_secret()) for _ in range(2))


def outcomes(caller: Callable[[socket.socket], object], listener: Callable[[socket.socket], object]) -> list[str]:
    """Return the results of both ends of a connection. An end that fails closes the connection."""

    def end(function: Callable[[socket.socket], object], connection: socket.socket) -> str:
        with connection:
            try:
                function(connection)
            except NotOursError:
                return "refused"
            except OSError:
                return "closed"
            return "passed"

    with ThreadPoolExecutor(2) as pool:
        ends = socket.socketpair()
        return list(pool.map(end, (caller, listener), ends))


def calls(secret: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: authenticate(connection, secret, listens=False)


def listens(secret: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: authenticate(connection, secret, listens=True)


def test_ends_of_one_launch_pass_and_then_have_no_timeout():
    assert outcomes(calls(OURS), listens(OURS)) == ["passed", "passed"]
    left, right = socket.socketpair()
    with left, right, ThreadPoolExecutor(1) as pool:
        done = pool.submit(authenticate, left, OURS, listens=False)
        authenticate(right, OURS, listens=True)
        done.result()
        assert left.gettimeout() is None
        assert right.gettimeout() is None


def test_neither_end_accepts_another_secret():
    assert outcomes(calls(OTHER), listens(OURS))[1] == "refused"
    assert outcomes(calls(OURS), listens(OTHER))[0] == "refused"


def test_a_peer_that_returns_what_it_received_is_refused():
    def echo(connection: socket.socket) -> None:
        while data := connection.recv(1024):
            connection.sendall(data)

    assert outcomes(echo, listens(OURS))[1] == "refused"
    assert outcomes(calls(OURS), echo)[0] == "refused"


def test_two_listeners_do_not_prove_themselves_to_each_other():
    assert "passed" not in outcomes(listens(OURS), listens(OURS))


def test_the_wait_for_a_peer_that_sends_nothing_is_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel, "TIMEOUT_S", 0.05)
    left, right = socket.socketpair()
    with left, right, pytest.raises(TimeoutError):
        authenticate(right, OURS, listens=True)


def test_single_bytes_do_not_extend_the_wait_for_a_peer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel, "TIMEOUT_S", 0.2)
    sent = 0

    def trickle(connection: socket.socket) -> None:
        nonlocal sent
        connection.settimeout(0.02)
        while True:
            try:
                if not connection.recv(1024):
                    return
            except TimeoutError:
                connection.sendall(b"x")
                sent += 1

    assert outcomes(trickle, listens(OURS))[1] == "closed"
    assert 0 < sent < channel.SECRET_BYTES


@pytest.mark.parametrize("sent", [b"", b"x" * 10])
def test_a_peer_that_ends_early_is_refused(sent: bytes):
    assert outcomes(lambda connection: connection.sendall(sent), listens(OURS))[1] in {"refused", "closed"}
