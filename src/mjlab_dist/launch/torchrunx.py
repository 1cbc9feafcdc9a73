"""All contact with torchrunx. Nothing else imports it.

torchrunx starts the ranks on every machine, watches their processes, and reports the first that fails. Six names of its
modules are replaced: its own connections listen on all addresses, accept anyone, and unpickle what they receive.

In the launcher:

- ``LauncherAgentGroup``: objects are exchanged through the standard streams of the agents' processes, not over gloo.
- ``execute_command``: the agents already run, so they only need their arguments. torchrunx's commands would also show
  the environment to every user of a machine.
- ``get_context``: there is no process that receives log records. Ranks send their output to the launcher instead.

In an agent:

- ``LauncherAgentGroup``: the other end.
- ``redirect_stdio_to_logger``: what the agent prints stays readable. It logs nothing.
- ``dist_mp``: CPU ranks are forked from a process that has imported their libraries.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import queue
import re
import runpy
import shlex
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import torch.distributed.elastic.multiprocessing as elastic
import torchrunx
import torchrunx.agent
import torchrunx.launcher
from torchrunx.utils.comm import LauncherAgentGroup

from mjlab_dist.errors import UserError, listed
from mjlab_dist.launch.channel import SETTLED_S
from mjlab_dist.launch.preparation import Agent
from mjlab_dist.launch.supervision import AgentLostError, RankLostError
from mjlab_dist.launch.torchrunx_agent import Messages

# Release whose modules have the names that are replaced here
RELEASE = "0.4"


def require_release() -> None:
    """Raise if the names that this module replaces may differ in the installed release of torchrunx."""
    if not torchrunx.__version__.startswith(f"{RELEASE}."):
        raise UserError(
            f"torchrunx {torchrunx.__version__} is installed, but {RELEASE} is needed; run `uv sync --inexact`"
        )


def run_launcher(
    agents: Sequence[Agent],
    ranks_per_host: Sequence[int],
    timeout_s: float | None,
    rank: Callable[..., object],
    *arguments: object,
) -> None:
    """Run torchrunx's launcher: the agents start ranks, which call a function. Return when all ranks have returned.

    Args:
        agents: The agents, one per machine, which wait for their arguments.
        ranks_per_host: Number of ranks of each agent.
        timeout_s: Seconds to wait for an answer of all agents; None waits forever.
        rank: The function. It can be pickled, and so can its arguments.
        arguments: Arguments of the function.

    Raises:
        AgentLostError: An agent has ended, or has not answered in time.
        RankLostError: The process of a rank has ended before the function returned.
    """

    def execute(command: str, hostname: str, **_: object) -> None:
        (agent,) = [agent for agent in agents if agent.host == hostname]
        _program, starts, options = command.partition(" -m torchrunx ")
        if starts:
            agent.send(options.encode())
        else:
            agent.end(SETTLED_S)

    # The launcher of this launch only: after an interrupt, the thread of an earlier one may still be running
    own = _copy_of(torchrunx.launcher)
    end = functools.partial(LauncherEnd, agents, timeout_s)
    no_process = SimpleNamespace(start=lambda: None, kill=lambda: None)
    _replace(
        own,
        LauncherAgentGroup=defaultdict(lambda: end),  # torchrunx gives it a type: LauncherAgentGroup[T](...)
        execute_command=execute,
        get_context=lambda _: SimpleNamespace(Process=lambda **_: no_process),
    )
    launcher = own.Launcher(
        hostnames=[agent.host for agent in agents],
        workers_per_host=list(ranks_per_host),
        backend=None,
        copy_env_vars=(),  # agents already have their environment
    )
    try:
        launcher.set_logging_handlers(None).run(rank, *arguments)
    except torchrunx.WorkerFailedError as error:
        killed = re.search(r"received by PID (\d+)", str(error))
        raise RankLostError(str(error), int(killed[1]) if killed else None) from error


def run_agent(messages: Messages, *, forks: bool) -> None:
    """Run torchrunx's agent in this process, which ends after it.

    Args:
        messages: To and from the launcher. The first message has torchrunx's arguments.
        forks: Whether ranks are forked from multiprocessing's fork server.
    """
    # A rank has reported its error. To log it too, torch would import its compiler, and torchrunx would pickle it.
    logging.disable()
    start = functools.partial(elastic.start_processes, start_method="forkserver" if forks else "spawn")
    _replace(
        torchrunx.agent,
        LauncherAgentGroup=functools.partial(AgentEnd, messages),
        redirect_stdio_to_logger=lambda _: None,
        dist_mp=SimpleNamespace(start_processes=start, DefaultLogsSpecs=elastic.DefaultLogsSpecs),
    )
    sys.argv[1:] = shlex.split(messages.receive().decode())
    runpy.run_module("torchrunx", run_name="__main__")


class LauncherEnd(LauncherAgentGroup[Any]):
    """The launcher's end of the exchanges with its agents. torchrunx creates the object."""

    def __init__(self, agents: Sequence[Agent], timeout_s: float | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._agents = agents
        self._timeout_s = timeout_s

    def __post_init__(self) -> None:
        """Do nothing: the agents' processes are connected since their start."""

    def _all_gather(self, obj: Any) -> list[Any]:
        """Receive an object from each agent, send all objects to all agents, and return them, the launcher's first."""
        # Each agent sends one object, and then waits for all
        arrivals = self._agents[0].arrivals
        received: dict[str, bytes] = {}
        deadline = math.inf if self._timeout_s is None else time.monotonic() + self._timeout_s
        while missing := [agent.host for agent in self._agents if agent.host not in received]:
            remaining_s = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
            try:
                host, message = arrivals.get(timeout=remaining_s)
            except queue.Empty:
                text = f"no answer within {self._timeout_s} s from torchrunx's agent on {listed(missing)}"
                raise AgentLostError(text) from None
            if message is None:
                arrivals.put((host, None))
                raise AgentLostError
            received[host] = message
        gathered = [obj, *(cloudpickle.loads(received[agent.host]) for agent in self._agents)]
        answer = cloudpickle.dumps(gathered)
        for agent in self._agents:
            agent.send(answer)
        return gathered

    def shutdown(self) -> None:
        """Do nothing: the launch ends its agents."""


class AgentEnd(LauncherAgentGroup[Any]):
    """An agent's end."""

    def __init__(self, messages: Messages, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._messages = messages

    def __post_init__(self) -> None:
        """Do nothing: the streams are connected since the start of the process."""

    def _all_gather(self, obj: Any) -> list[Any]:
        """Return the objects of the launcher and of all agents, in order of rank."""
        self._messages.send(cloudpickle.dumps(obj))
        return cloudpickle.loads(self._messages.receive())

    def shutdown(self) -> None:
        """Do nothing: the streams close with the process."""


def _copy_of(module: ModuleType) -> Any:
    """Import a module once more, without replacing the imported one."""
    spec = importlib.util.find_spec(module.__name__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def _replace(module: ModuleType, **values: object) -> None:
    """Replace names of a module."""
    for name, value in values.items():
        getattr(module, name)  # raises if another release has no such name
        setattr(module, name, value)
