"""Exchanges between torchrunx's launcher and its agents, and what torchrunx's launcher does here.

tests/distributed runs whole launches.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torchrunx
import torchrunx.launcher

from mjlab_dist.errors import UserError
from mjlab_dist.launch.channel import SECRET, new_secret
from mjlab_dist.launch.preparation import Agent, Arrivals, waiting_agents
from mjlab_dist.launch.supervision import AgentLostError, RankLostError
from mjlab_dist.launch.torchrunx import LauncherEnd, require_release, run_launcher
from mjlab_dist.launch.torchrunx_agent import FORK

START = """
import math, os, pickle, sys
print("a shell prints this", flush=True)
from mjlab_dist.launch.torchrunx_agent import Messages
launcher = Messages()
launcher.open(math.inf)
os.system("cat; echo printed by a child")
sys.stdout.write("printed\\n")  # at once: print writes the end of a line later if Python does not buffer
sys.stdout.flush()
"""

# Sends what it received last, at first its argument
ECHO = f"""{START}
last = sys.argv[1]
while True:
    launcher.send(pickle.dumps(last))
    last = pickle.loads(launcher.receive())
"""

LONG = ECHO.replace("sys.argv[1]", "sys.argv[1] * 10**6")

SILENT = f"""{START}
launcher.receive()
"""

# Follows the protocol of torchrunx's agent with one rank. The rank returns what its launcher's process does, or fails.
OBSERVER = f"""{START}
import json, psutil
from pathlib import Path
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torchrunx.utils.comm import AgentPayload, AgentStatus
from torchrunx.utils.errors import WorkerFailedError
arguments = launcher.receive().decode()
launcher.send(pickle.dumps(AgentPayload("localhost", 0, os.getpid())))
payload, _ = pickle.loads(launcher.receive())
parent = psutil.Process(os.getppid())
seen = {{
    "arguments": arguments,
    "children": [child.pid for child in parent.children(recursive=True)],
    "listening": [each.laddr.port for each in parent.net_connections("all") if each.status == "LISTEN"],
    "function": payload.fn.func.__name__,
    "ranks": payload.worker_global_ranks,
}}
Path(sys.argv[2]).write_text(json.dumps(seen))
failure = ProcessFailure(local_rank=0, pid=77, exitcode=-9, error_file="")
result = None if sys.argv[1] == "done" else WorkerFailedError(failure.message)
launcher.send(pickle.dumps(AgentStatus(sys.argv[1], [result])))
launcher.receive()
"""

Start = Callable[..., Agent]
WaitFor = Callable[[Callable[[], bool]], None]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Function that starts a program in place of an agent."""
    agents: list[Agent] = []
    arrivals: Arrivals = queue.SimpleQueue()

    def begin(program: str, *arguments: str, host: str = "localhost") -> Agent:
        with (tmp_path / "errors").open("a") as errors:
            command = [sys.executable, "-c", program, *arguments]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        agents.append(agent := Agent(host, "agent", process, arrivals))
        return agent

    yield begin
    for each in agents:
        each.end()


def launcher_of(*agents: Agent, timeout_s: float | None = None) -> LauncherEnd:
    return LauncherEnd(agents, timeout_s, launcher_hostname="", launcher_port=0, world_size=len(agents) + 1, rank=0)


def test_every_end_receives_all_objects_in_order_whatever_agents_print(start: Start, tmp_path: Path) -> None:
    launcher = launcher_of(start(ECHO, "a"), start(LONG, "b", host="node7"))
    first = launcher._all_gather("launcher")
    assert first == ["launcher", "a", "b" * 10**6]
    assert launcher._all_gather("again") == ["again", first, first]
    assert sorted((tmp_path / "errors").read_text().splitlines()) == ["printed"] * 2 + ["printed by a child"] * 2


def test_the_loss_of_one_agent_ends_the_exchange_at_once(start: Start) -> None:
    first, second = start(ECHO, "a"), start(SILENT, host="node7")
    launcher = launcher_of(first, second)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(launcher._all_gather, "waits")
        second.end()
        with pytest.raises(AgentLostError):
            waiting.result()
    with pytest.raises(AgentLostError):
        launcher._all_gather("lost")


def test_an_agent_that_does_not_answer_is_named(start: Start, wait_for: WaitFor) -> None:
    first, second = start(ECHO, "a"), start(SILENT, host="node7")
    assert first.arrivals.get(timeout=60)[0] == "localhost"
    with pytest.raises(AgentLostError, match=r" localhost and node7$"):
        launcher_of(first, second, timeout_s=0.0)._all_gather("launcher")
    first.send(pickle.dumps("answers"))
    wait_for(lambda: not first.arrivals.empty())
    with pytest.raises(AgentLostError, match=r" node7$"):
        launcher_of(first, second, timeout_s=0.0)._all_gather("launcher")


def test_an_agent_ends_with_its_launcher_and_after_a_silence(start: Start) -> None:
    agent = start(ECHO, "a")
    assert agent.arrivals.get(timeout=60)[1]
    agent._to.close()
    assert agent._process.stdin is not None
    agent._process.stdin.close()
    assert agent._process.wait(60) == -signal.SIGKILL
    silent = start(ECHO.replace("math.inf", "0.2"), "a")
    assert silent._process.wait(60) == -signal.SIGKILL


def test_torchrunx_starts_its_agents_no_process_and_no_listener(start: Start, tmp_path: Path) -> None:
    original = dict(vars(torchrunx.launcher))
    agent = start(OBSERVER, "done", str(tmp_path / "seen"))
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    run_launcher([agent], [3], None, print, "text")
    seen = json.loads((tmp_path / "seen").read_text())
    assert set(seen["children"]) <= before
    assert not seen["listening"]
    assert "--world-size 2 --rank 1 --hostname localhost" in seen["arguments"]
    assert (seen["function"], seen["ranks"]) == ("print", [[0, 1, 2]])
    assert agent._process.poll() is not None, "torchrunx has ended its agent"
    assert vars(torchrunx.launcher) == original


def test_a_rank_that_was_killed_is_named_by_its_process(start: Start, tmp_path: Path) -> None:
    with pytest.raises(RankLostError) as caught:
        run_launcher([start(OBSERVER, "failed", str(tmp_path / "seen"))], [1], None, print)
    assert caught.value.pid == 77


def test_torchrunx_starts_nothing_after_the_end_of_a_launch(start: Start) -> None:
    agent = start(ECHO, "a")
    agent.end()
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(AgentLostError):
        run_launcher([agent], [1], None, print)
    assert set(psutil.Process().children(recursive=True)) <= before


SEEN = """
import os, psutil
from pathlib import Path
Path(os.environ["SEEN"], os.environ["RANK"]).write_text(" ".join(psutil.Process(os.getppid()).cmdline()))
"""


class Bomb:
    """Raises when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return exec, ("raise ValueError('unlike any other')",)


@pytest.mark.slow
@pytest.mark.parametrize("forks", [True, False])
def test_a_real_agent_starts_ranks_and_shows_its_errors(forks: bool, tmp_path: Path, short_tmp: Path) -> None:
    here = {**os.environ, SECRET: new_secret(), "SEEN": str(tmp_path), "TMPDIR": str(short_tmp)}
    options: dict[str, Any] = {"here": here, "there": {}, "silence_s": 60.0}
    with (tmp_path / "errors").open("w+") as errors:
        with waiting_agents(["localhost"], None, [FORK] if forks else [], errors=errors, **options) as agents:
            run_launcher(agents, [2], None, exec, SEEN)
        for rank in ("0", "1"):
            assert ("multiprocessing.forkserver" in (tmp_path / rank).read_text()) == forks
        if not forks:
            with (
                pytest.raises(AgentLostError),
                waiting_agents(["localhost"], None, [], errors=errors, **options) as agents,
            ):
                run_launcher(agents, [1], None, print, Bomb())
            errors.seek(0)
            assert errors.read().splitlines()[-1] == "ValueError: unlike any other"


def test_another_release_of_torchrunx_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_release()
    monkeypatch.setattr(torchrunx, "__version__", "0.5.0")
    with pytest.raises(UserError, match=r"torchrunx 0\.5\.0 "):
        require_release()
