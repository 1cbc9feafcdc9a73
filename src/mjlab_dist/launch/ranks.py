"""Start ranks through torchrunx, receive their events, end their processes."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from mjlab_dist.config import TrainConfig
from mjlab_dist.control import STOP_SIGNALS, Control
from mjlab_dist.errors import RankError, UserError
from mjlab_dist.imports import start_up
from mjlab_dist.launch.agents import Agent
from mjlab_dist.launch.log_records import LogFiles, LogServer
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.preparation import Launch, end_processes, prepared, remote_timeout_s
from mjlab_dist.launch.rank_entry import run_or_die
from mjlab_dist.launch.supervision import SETTLED_S, Ended, Ranks
from mjlab_dist.machine.preflight import require_connections
from mjlab_dist.machine.processes import die_with_parent
from mjlab_dist.messages import Listener
from mjlab_dist.patching import with_names
from mjlab_dist.rank_logs import log_dir
from mjlab_dist.streams import child_errors
from mjlab_dist.worker import Entry

if TYPE_CHECKING:
    import torchrunx
    from torchrunx.launcher import LaunchResult

    from mjlab_dist.launch.agent_group import LauncherGroup

T = TypeVar("T")

# Held while this process has ranks. It prevents two launches at a time, because a launch redirects standard error.
_launching = threading.Lock()

# Seconds to wait for torchrunx's launcher after its connections are closed. After that, its daemon thread is left
# running.
JOIN_S = 10.0

# Slightly less than the longest timeout that poll(2) accepts, in seconds
LONGEST_S = 20 * 24 * 3600


def run_ranks(
    entry: Entry[T],
    result_type: type[T],
    config: TrainConfig,
    plan: RunPlan,
    *,
    listen: Listener,
    control: Control,
    left: dict[str, list[str]] | None = None,
    secret: str | None = None,
) -> list[T]:
    """Start ranks on one or several machines, wait for their results, and return them in order of rank."""
    ranks = Ranks(_hosts_of_ranks(plan), listen, control)
    logs = log_dir(config, plan.run_dir, os.environ)
    with _one_at_a_time(), child_errors() as errors, contextlib.ExitStack() as stack:
        require_connections()
        # Start the agents. They import their libraries while this process imports its own.
        launch = stack.enter_context(prepared(config, plan, listen, secret))
        with start_up():
            import torchrunx  # noqa: F401
        # Store. It is closed when this variable is deleted.
        listen({"kind": "debug", "text": f"launcher: ranks meet at {launch.meeting_point}; log files in {logs}"})
        _store = launch.open_store()
        # Start the ranks, and wait for their results
        adapted = stack.enter_context(_adapted_torchrunx(launch, ranks.channels.admit))
        launcher = _torchrunx_launcher(config, plan, logs)
        rank: Callable[..., object] = run_or_die
        with _in_thread(lambda: adapted.run(launcher, rank, entry, config, plan.rank_plans)) as future:
            try:
                results = ranks.wait(
                    future, config.hang_timeout, lambda: _ended_helper(launch.agents, adapted.log_processes)
                )
            except RankError as error:
                raise _with_log(error, logs, plan, launch.errors, errors) from None
            finally:
                # torchrunx asks its agents to end, but does not wait for them
                for host in end_processes(config, plan.host_names, launch.name, listen):
                    if left is not None:
                        left.setdefault(host, []).append(launch.name)
                adapted.group.abort()

    import dacite  # only needed at the end

    decoding = dacite.Config(cast=[Path], strict=True)
    return [dacite.from_dict(result_type, result, config=decoding) for result in results]  # pyright: ignore[reportArgumentType]


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Raise if this process already has ranks."""
    if not _launching.acquire(blocking=False):
        raise UserError("this process already has ranks; close their envs, wait until they end, or use another process")
    try:
        yield
    finally:
        _launching.release()


def _torchrunx_launcher(config: TrainConfig, plan: RunPlan, logs: Path | None) -> torchrunx.Launcher:
    """Return torchrunx's launcher for a run."""
    import torchrunx

    ranks_per_host = [len(host.devices) for host in plan.hosts]
    return torchrunx.Launcher(
        hostnames=list(plan.host_names),
        workers_per_host=ranks_per_host,
        backend=None,
        # How long agents and launcher wait for each other. Ctrl-Z may stop the launcher for any length of time. On one
        # machine, no limit is needed, because agents end when the launcher ends. Agents on other machines need a limit:
        # they do not notice when the launcher's machine fails.
        agent_timeout=LONGEST_S if len(plan.hosts) == 1 else remote_timeout_s(config),
        copy_env_vars=(),  # agents already have their environment
    ).set_logging_handlers(functools.partial(_log_handlers, logs, plan.host_names, ranks_per_host))


def _hosts_of_ranks(plan: RunPlan) -> list[str]:
    """Return the name of each rank's machine, in order of rank."""
    return [host.name for host in plan.hosts for _ in host.devices]


def _with_log(error: RankError, logs: Path | None, plan: RunPlan, *outputs: IO[str]) -> RankError:
    """Return an error with the path of the rank's log.

    If the error has no report, the error output of child processes takes its place.
    """
    for output in outputs:
        output.seek(0)
    message, report = str(error), error.report or "".join(output.read() for output in outputs)
    if logs and error.rank is not None:
        hosts = _hosts_of_ranks(plan)
        host = hosts[error.rank]
        found = sorted(logs.glob(f"*/{host}[[]{error.rank - hosts.index(host)}].log"))
        message += f". Its log: {found[-1]}" if found else ""
    return RankError(message, error.rank, report, error.exit_code, may_pass=error.may_pass)


class _Adapted(NamedTuple):
    """Parts of torchrunx for one launch."""

    # torchrunx.Launcher.run with the agents and the sockets of the launch
    run: Callable[..., LaunchResult[Any]]
    # The launcher's connections to its agents
    group: type[LauncherGroup]
    # torchrunx's log process; empty until torchrunx has created it
    log_processes: Sequence[_LogProcess]


@contextlib.contextmanager
def _adapted_torchrunx(launch: Launch, admit_rank: Callable[[int, Connection], None]) -> Iterator[_Adapted]:
    """Adapt torchrunx to use the agents and the sockets of a launch. torchrunx's modules do not change.

    After an early interrupt, the thread of torchrunx's launcher may still be starting when this context ends. The
    context then prevents the thread from starting the log process, and kills a log process that is running. Otherwise,
    torchrunx would end the log process only minutes later, and this process would wait until then.
    """
    import torchrunx.launcher
    import torchrunx.utils.log_streaming

    from mjlab_dist.launch.agent_group import LauncherGroup  # imports torch

    created: list[_LogProcess] = []
    is_over = threading.Event()

    # Record the log process, so that it can be killed on exit
    def create(**kwargs: Any) -> _LogProcess:
        created.append(process := _LogProcess(**kwargs))
        if is_over.is_set():
            process.kill()
        return process

    # torchrunx's commands start or kill an agent. The agents already run: pass them their arguments, or end them
    def execute(command: str, hostname: str, **_: str | None) -> None:
        (agent,) = [agent for agent in launch.agents if agent.host == hostname]
        _program, separator, arguments = command.partition(" -m torchrunx ")
        if separator:
            agent.send(shlex.split(arguments))
        else:
            agent.end(SETTLED_S)

    def log_server(handlers: Sequence[logging.Handler], **_: object) -> LogServer:
        return LogServer(launch.log_listener, launch.secret, handlers)

    ports = iter([launch.agent_listener.getsockname()[1], launch.log_listener.getsockname()[1]])
    hosts = [agent.host for agent in launch.agents]
    group = LauncherGroup.listening(launch.agent_listener, launch.secret, hosts, admit_rank)
    run = with_names(
        torchrunx.Launcher.run,
        socket=SimpleNamespace(getfqdn=lambda: launch.address),
        get_open_port=lambda: next(ports),
        get_context=lambda _: SimpleNamespace(Process=create),
        LauncherAgentGroup=group,
        execute_command=execute,
        start_logging_server=with_names(
            torchrunx.utils.log_streaming.start_logging_server, _LogRecordSocketReceiver=log_server
        ),
    )
    try:
        yield _Adapted(run, group, created)
    finally:
        is_over.set()
        for process in created:
            process.kill()


class _LogProcess(ForkProcess):
    """Log process of torchrunx. It records whether the launcher has killed it, for example at the end of a launch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.is_stopped = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process."""
        with self._lock:
            if self.is_stopped:
                raise RuntimeError("the launch has ended")
            super().start()

    def kill(self) -> None:
        """Kill the process; if it was not started yet, prevent its start."""
        with self._lock:
            self.is_stopped = self.exitcode is None
            if self.pid is not None:
                super().kill()


def _ended_helper(agents: Sequence[Agent], log_processes: Sequence[_LogProcess]) -> Ended | None:
    """Return an agent or a log process that ended before it passed on all results; None if all of them are running."""
    for agent in agents:
        if ended := agent.ended():
            return ended
    for process in log_processes:
        if not process.is_stopped and process.exitcode is not None:
            return Ended("torchrunx's log server", process.exitcode)
    return None


@contextlib.contextmanager
def _in_thread(function: Callable[[], T]) -> Iterator[Future[T]]:
    """Run a function in a thread; neither the thread nor processes that it starts receive Ctrl-C.

    torchrunx waits in C code for seconds at a time. The calling thread waits in Python instead, where KeyboardInterrupt
    is raised at once. A terminal or a notebook sends Ctrl-C to every process, but only this process should end the
    ranks.
    """
    future: Future[T] = Future()

    def run() -> None:
        # Schedulers send SIGTERM to every process, and terminals send SIGHUP; the log process must survive both.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    thread = threading.Thread(target=run, name="launcher", daemon=True)
    thread.start()
    try:
        yield future
    finally:
        thread.join(timeout=JOIN_S)


def _log_handlers(directory: Path | None, hosts: Sequence[str], ranks_per_host: list[int]) -> list[logging.Handler]:
    """Return the handlers that write log files. Runs in torchrunx's log process."""
    # Never free objects of an earlier attempt. Its process groups join threads when they are freed; this forked process
    # does not have these threads, and would abort.
    gc.freeze()
    die_with_parent()
    return [] if directory is None else [LogFiles(directory, hosts, ranks_per_host)]
