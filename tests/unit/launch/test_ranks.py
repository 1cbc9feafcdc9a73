"""If an interrupt comes early, torchrunx's launcher is still starting in a thread. It must not start any process."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection

import psutil
import pytest
import torchrunx
import torchrunx.launcher

from mjlab_dist.launch.agents import Agent
from mjlab_dist.launch.hosts import listen_on
from mjlab_dist.launch.preparation import Launch
from mjlab_dist.launch.ranks import _adapted_torchrunx


@contextlib.contextmanager
def waiting() -> Iterator[tuple[Agent, subprocess.Popen[bytes]]]:
    """Start a process that prints what is sent to it, in place of an agent."""
    with subprocess.Popen("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Agent("localhost", "agent", process), process


@contextlib.contextmanager
def launch_with(agent: Agent) -> Iterator[Launch]:
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
    with waiting() as (agent, process):
        before = set(psutil.Process().children(recursive=True))
        with launch_with(agent) as launch:
            with _adapted_torchrunx(launch, refuse) as adapted:
                pass
            with pytest.raises(RuntimeError, match="has ended"):
                adapted.run(launcher(), print)
        assert set(psutil.Process().children(recursive=True)) == before
        assert process.communicate()[0] == b""


def test_torchrunx_stays_as_it_is_during_a_launch() -> None:
    original = dict(vars(torchrunx.launcher))
    with waiting() as (agent, _), launch_with(agent) as launch, _adapted_torchrunx(launch, refuse):
        assert vars(torchrunx.launcher) == original
