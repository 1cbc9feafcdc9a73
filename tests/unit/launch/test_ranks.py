"""If an interrupt comes early, torchrunx's launcher is still starting in a thread. It must not start any process."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import psutil
import pytest
import torchrunx
import torchrunx.launcher

from mjlab_dist.launch.hosts import listen_on
from mjlab_dist.launch.preparation import Launch
from mjlab_dist.launch.ranks import _adapted_torchrunx
from mjlab_dist.launch.supervision import Ended


class WaitingAgent:
    """Records the commands that it is asked to run, but runs nothing."""

    host = "localhost"

    def __init__(self) -> None:
        self.runs: list[Sequence[str]] = []

    def run(self, arguments: Sequence[str]) -> None:
        self.runs.append(arguments)

    def ended(self) -> Ended | None:
        return None

    def answers(self) -> bool:
        return True

    def end(self, patience_s: float = 0.0) -> None:
        pass


@contextlib.contextmanager
def launch_with(agent: WaitingAgent) -> Iterator[Launch]:
    with listen_on("127.0.0.1") as agents, listen_on("127.0.0.1") as logs, tempfile.TemporaryFile("w+") as errors:
        yield Launch(
            name="test",
            secret=bytes(16),
            address="127.0.0.1",
            agent_listener=agents,
            log_listener=logs,
            store_listener=None,
            meeting_point="",
            agents=[agent],
            errors=errors,
        )


def refuse(rank: int, _: Connection) -> None:
    pytest.fail(f"rank {rank} has connected")


def launcher() -> torchrunx.Launcher:
    return torchrunx.Launcher(hostnames=["localhost"], workers_per_host=1, backend=None, agent_timeout=1)


def test_torchrunx_starts_nothing_after_the_end_of_a_launch() -> None:
    before = set(psutil.Process().children(recursive=True))
    with launch_with(agent := WaitingAgent()) as launch:
        with _adapted_torchrunx(launch, refuse) as adapted:
            pass
        with pytest.raises(RuntimeError, match="has ended"):
            adapted.run(launcher(), print)
    assert not agent.runs
    assert set(psutil.Process().children(recursive=True)) == before


def test_torchrunx_stays_as_it_is_during_a_launch() -> None:
    original = dict(vars(torchrunx.launcher))
    with launch_with(WaitingAgent()) as launch, _adapted_torchrunx(launch, refuse):
        assert vars(torchrunx.launcher) == original
