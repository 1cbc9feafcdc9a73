"""The connections between torchrunx's launcher and its agents."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from strangers import silent_strangers
from torchrunx.utils.comm import AgentPayload
from torchrunx.utils.errors import AgentFailedError

from mjlab_dist.launch.agent_group import AgentGroup, LauncherGroup
from mjlab_dist.launch.handshake import SECRET, new_secret

KNOWN = new_secret()
TIMEOUT_S = 60


HOSTS = ("localhost", "node7")
"""Machines of the agents."""


class Touch:
    """Creates a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setenv(SECRET, KNOWN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def make(listener: socket.socket, rank: int, num_agents: int) -> Any:
    kind = AgentGroup if rank else LauncherGroup.listening(listener, bytes.fromhex(KNOWN), HOSTS[:num_agents])
    host, port = listener.getsockname()
    return kind(
        launcher_hostname=host, launcher_port=port, world_size=num_agents + 1, rank=rank, agent_timeout=TIMEOUT_S
    )


def join(pool: ThreadPoolExecutor, listener: socket.socket, num_agents: int) -> list[Any]:
    """Connect the launcher and the agents in reverse order of their ranks. Return their groups in order of rank."""
    joined: list[Future[Any]] = [pool.submit(make, listener, rank, num_agents) for rank in range(num_agents, -1, -1)]
    return [future.result() for future in reversed(joined)]


def test_every_end_receives_all_objects_in_order(listener: socket.socket, pool: ThreadPoolExecutor):
    groups = join(pool, listener, 2)
    for _ in range(2):
        payloads = [AgentPayload(f"host {rank}", 1, 2) for rank in range(3)]
        received = list(pool.map(lambda group, payload: group.sync_payloads(payload), groups, payloads))
        assert received == [(payloads[0], payloads[1:])] * 3
    for group in groups:
        group.shutdown()


def test_a_stranger_is_not_admitted_and_its_data_is_not_unpickled(
    listener: socket.socket, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    target = tmp_path / "executed"
    data = cloudpickle.dumps((1, Touch(target)))
    with socket.create_connection(listener.getsockname()) as stranger:
        stranger.sendall((len(data)).to_bytes(4, "big") + data + bytes(200))
        launcher, agent = join(pool, listener, 1)
        gathered = list(pool.map(lambda group: group.sync_payloads(group.rank), (launcher, agent)))
        assert gathered == [(0, [1])] * 2
    assert not target.exists()
    pickle.loads(cloudpickle.dumps(Touch(target)))
    assert target.exists(), "unpickling the data would have created the directory"
    launcher.shutdown()
    agent.shutdown()


def test_silent_strangers_delay_agents_but_do_not_use_up_descriptors_or_threads(
    listener: socket.socket, pool: ThreadPoolExecutor, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    launcher = pool.submit(make, listener, 0, 1)
    with silent_strangers(listener.getsockname(), wait_for):
        agent = pool.submit(make, listener, 1, 1)
    for group in (launcher, agent):
        group.result().shutdown()


def test_the_loss_of_one_agent_is_noticed_by_all(listener: socket.socket, pool: ThreadPoolExecutor):
    launcher, first, second = join(pool, listener, 2)
    waiting = pool.submit(first.sync_payloads, "first")
    second.shutdown()
    with pytest.raises(AgentFailedError):
        launcher.sync_payloads("launcher")
    launcher.shutdown()
    with pytest.raises(AgentFailedError):
        waiting.result()
    first.shutdown()


def test_an_agent_that_does_not_answer_is_named(listener: socket.socket, pool: ThreadPoolExecutor):
    launcher, first, second = join(pool, listener, 2)
    launcher.agent_timeout = 0.2
    waiting = pool.submit(first.sync_payloads, "first")
    with pytest.raises(AgentFailedError, match=f" {HOSTS[1]}$"):
        launcher.sync_payloads("launcher")
    launcher.shutdown()
    with pytest.raises(AgentFailedError):
        waiting.result()
    for agent in (first, second):
        agent.shutdown()


def test_an_abort_ends_the_wait_for_an_agent_that_is_lost(listener: socket.socket, pool: ThreadPoolExecutor):
    kind = LauncherGroup.listening(listener, bytes.fromhex(KNOWN), HOSTS)
    arguments = {"launcher_hostname": "", "launcher_port": 0, "world_size": 3, "rank": 0, "agent_timeout": 10**6}
    # First, the launcher waits for an agent that never answers. After the abort, it does not wait for any agent
    launching = pool.submit(kind, **arguments)
    first, second = (make(listener, rank, 2) for rank in (1, 2))
    launcher: Any = launching.result()
    waiting, of_agent = pool.submit(launcher.sync_payloads, "launcher"), pool.submit(first.sync_payloads, "first")
    kind.abort()
    for future in (waiting, of_agent):
        with pytest.raises(AgentFailedError):
            future.result()
    for group in (launcher, first, second):
        group.shutdown()
    with pytest.raises(AgentFailedError):
        kind(**arguments)


def test_an_agent_that_does_not_connect_is_a_failure(listener: socket.socket):
    kind = LauncherGroup.listening(listener, bytes.fromhex(KNOWN), HOSTS[:1])
    with pytest.raises(AgentFailedError, match=f" {HOSTS[0]}$"):
        kind(launcher_hostname="", launcher_port=0, world_size=2, rank=0, agent_timeout=0)
    listener.close()


def test_an_agent_does_not_join_a_stranger(listener: socket.socket, pool: ThreadPoolExecutor):
    def pretend() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(bytes(64))
            while peer.recv(1024):
                pass

    pretending = pool.submit(pretend)
    with pytest.raises(OSError, match="secret"):
        make(listener, 1, 1)
    pretending.result()
