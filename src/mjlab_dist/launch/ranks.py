"""Start ranks through torchrunx, receive their events, end their processes. Only this module uses torchrunx's API."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import gc
import json
import logging
import multiprocessing
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, TextIO, TypeVar

from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankDevice
from mjlab_dist.distributed.rank import LOOPBACK, MEETING_POINT
from mjlab_dist.errors import RankError
from mjlab_dist.faults import ATTEMPT
from mjlab_dist.imports import start_up
from mjlab_dist.launch.agent import FORK
from mjlab_dist.launch.hosts import end_on_hosts, own_address
from mjlab_dist.launch.log_records import plain_record
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.supervision import Ranks
from mjlab_dist.machine.processes import LAUNCH, end_children, temporary_directory
from mjlab_dist.messages import Event, EventHandler, Listener
from mjlab_dist.patching import patched
from mjlab_dist.rank_logs import log_dir
from mjlab_dist.worker import Entry, die_with_parent, run_or_die

if TYPE_CHECKING:
    import torchrunx
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_*",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "PYTHON*",
    "CUDA*",
    "TORCH*",
    "PYTORCH*",
    "NCCL*",
    "GLOO*",
    "OMP*",
    "MKL*",
    "MUJOCO*",
    "WARP*",
    "WANDB*",
    "XDG_CACHE_HOME",
    "MJLAB_DIST*",
)
"""Environment variables that ranks need, as patterns, including those that torchrunx does not copy by default."""

SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Substrings in the names of secret variables. These must not appear in a command line, which any user can read."""


def run_ranks(
    entry: Entry[T],
    result_type: type[T],
    config: TrainConfig,
    plan: RunPlan,
    *,
    listen: Listener,
    control: Control,
    attempt: int = 0,
) -> list[T]:
    """Start ranks on one or several machines, and wait for their results.

    Args:
        entry: Function that each rank runs. It is pickled by name; its result is sent as plain data.
        result_type: Dataclass that ``entry`` returns.
        config: The run's config.
        plan: Devices, hosts and run directory.
        listen: Called with the ranks' events for the user, in a thread of its own.
        control: Its stop request is forwarded to the ranks.
        attempt: Number of earlier starts of these ranks.

    Returns:
        The ranks' results, in order of rank.

    Raises:
        RankError: If a rank ended early or hung.
        UserError: If a rank ended because of something that the user can fix.
    """
    # Names, addresses and log files of this launch
    launch, address, logs = uuid.uuid4().hex, own_address(plan.hosts), log_dir(config, plan.run_dir, os.environ)
    ranks = Ranks(plan.hosts, len(plan.devices), listen, control)
    with temporary_directory() as temporary, _child_errors() as errors, contextlib.ExitStack() as stack:
        # Socket of the store where ranks meet. If rank 0 opened it seconds later, another process could take the port
        # in the meantime.
        meeting_point = stack.enter_context(_listen(here_only=len(plan.hosts) == 1))
        variables = _own_variables(launch, f"{address}:{meeting_point.getsockname()[1]}", attempt)
        # Agent of this machine, which imports its libraries while this process imports its own
        agent = None
        if len(plan.hosts) == 1:
            variables["TMPDIR"] = temporary  # torchrunx's agent leaves a directory there
            agent = stack.enter_context(_waiting_agent(plan.devices, variables, listen))
        with start_up():
            import torchrunx  # noqa: F401
        # Store. It is closed when this variable is deleted.
        _debug(listen, f"ranks meet at {variables[MEETING_POINT]}; log files in {logs}")
        _store = _open_store(meeting_point)
        # Ranks, and the wait for their results
        pipe = stack.enter_context(_event_pipe(ranks.receive))
        stack.enter_context(_adapted_torchrunx(address, agent))
        launcher = _torchrunx_launcher(config, plan, variables, logs, pipe)
        rank: Callable[..., object] = run_or_die
        with _in_thread(lambda: launcher.run(rank, entry, config, plan.rank_plans)) as future:
            try:
                results = ranks.wait(future, config.hang_timeout)
            except RankError as error:
                raise _with_log(error, logs, plan, errors) from None
            finally:
                _end_processes(config, plan.hosts, launch, listen)
    return [_decoded(result_type, result) for result in results]


def _own_variables(launch: str, meeting_point: str, attempt: int) -> dict[str, str]:
    """Return the environment variables that a launch sets for its ranks."""
    return {
        # All of sys.path, as in multiprocessing: it includes the directory of the user's script.
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        LAUNCH: launch,
        MEETING_POINT: meeting_point,
        ATTEMPT: str(attempt),
    }


def _open_store(meeting_point: socket.socket) -> Store:
    """Return a key-value store that listens at a socket, until it is garbage-collected."""
    from torch._C._distributed_c10d import TCPStore

    # Reference cycles of a traceback may keep an earlier attempt's process groups alive, with threads and sockets.
    gc.collect()
    port = meeting_point.getsockname()[1]
    return TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=meeting_point.detach())


def _torchrunx_launcher(
    config: TrainConfig, plan: RunPlan, variables: Mapping[str, str], logs: Path | None, pipe: int
) -> torchrunx.Launcher:
    """Return torchrunx's launcher for a run.

    Args:
        config: The run's config.
        plan: Devices, hosts and run directory.
        variables: Variables to set for the ranks, in addition to those that they inherit.
        logs: Directory of the ranks' log files; None for no files.
        pipe: Descriptor that events are written to.
    """
    import torchrunx

    return torchrunx.Launcher(
        hostnames=list(plan.hosts),
        workers_per_host=len(plan.devices),
        ssh_config_file=config.ssh_config,
        backend=None,
        copy_env_vars=tuple(exported_names(os.environ)),
        extra_env_vars=dict(variables),
    ).set_logging_handlers(functools.partial(_log_handlers, logs, plan.hosts, len(plan.devices), pipe))


def _end_processes(config: TrainConfig, hosts: Sequence[str], launch: str, listen: Listener) -> None:
    """Kill all processes of a launch, and wait for them: torchrunx asks its agents to end but does not wait."""
    end_children(launch)
    if left := end_on_hosts(hosts, config.ssh_config, launch):
        text = f"no answer from {', '.join(left)}: processes of this run may still be running there"
        listen({"kind": "warning", "text": text})


def _debug(listen: Listener, text: str) -> None:
    listen({"kind": "debug", "text": f"launcher: {text}"})


def exported_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that torchrunx copies to ranks. It writes their values into a command line.

    Processes on this machine inherit all other variables as well, including secrets.
    """
    return [
        name
        for name in environ
        if any(fnmatch.fnmatch(name, pattern) for pattern in ENVIRONMENT) and not any(word in name for word in SECRET)
    ]


def _with_log(error: RankError, logs: Path | None, plan: RunPlan, errors: IO[str]) -> RankError:
    """Return an error with the path of the rank's log and, if it has no report, the error output of child processes."""
    errors.seek(0)
    message, report = str(error), error.report or errors.read()
    if logs and error.rank is not None:
        host_index, local_rank = divmod(error.rank, len(plan.devices))
        found = sorted(logs.glob(f"*/{plan.hosts[host_index]}[[]{local_rank}].log"))
        message += f". Its log: {found[-1]}" if found else ""
    return RankError(message, error.rank, report, error.exit_code)


def _decoded(result_type: type[T], plain: dict[str, Any]) -> T:
    import dacite  # noqa: PLC0415 (only needed at the end)

    return dacite.from_dict(result_type, plain, config=dacite.Config(cast=[Path], strict=True))  # pyright: ignore[reportArgumentType]


def _listen(here_only: bool) -> socket.socket:
    """Listen on a free port, which the kernel chooses, of the loopback address or of all addresses."""
    if here_only:
        return socket.create_server((LOOPBACK, 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def can_fork(devices: Sequence[RankDevice], environ: Mapping[str, str]) -> bool:
    """Return whether ranks may be forked from a process that has imported their libraries.

    With MUJOCO_GL set, MuJoCo initializes EGL or OSMesa at its import. Neither survives a fork; nor does CUDA.
    """
    return all(device.device == "cpu" for device in devices) and "MUJOCO_GL" not in environ


@contextlib.contextmanager
def _waiting_agent(
    devices: Sequence[RankDevice], variables: Mapping[str, str], listen: Listener
) -> Iterator[subprocess.Popen[str]]:
    """Start the agent of this machine, protected from Ctrl-C and SIGTERM; it waits for torchrunx's arguments.

    Args:
        devices: Devices of the ranks.
        variables: Variables to set for the agent and the ranks.
        listen: Receives a line for ``--verbose``.
    """
    forks = can_fork(devices, os.environ)
    command = [sys.executable, "-u", "-m", "mjlab_dist.launch.agent", *([FORK] if forks else [])]
    environ = {**os.environ, **variables}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # children inherit the mask
    try:
        agent = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, text=True, start_new_session=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        how = "forked" if forks else "spawned"
        _debug(listen, f"started torchrunx's agent (process {agent.pid}), ranks are {how}")
        yield agent
    finally:
        agent.kill()  # its fork server and the ranks end with it
        agent.communicate()


@contextlib.contextmanager
def _adapted_torchrunx(address: str, agent: subprocess.Popen[str] | None) -> Iterator[None]:
    """Patch torchrunx to use an address of this machine, and an agent that does not receive Ctrl-C from the terminal.

    - The machine's own name may not resolve, or may not be reachable from the machine itself.
    - An agent that receives SIGINT kills its ranks.
    - The log process is killed on exit. After an early interrupt, torchrunx would end it only minutes later, and this
      process waits for it.

    Args:
        address: Address of this machine.
        agent: Agent on this machine, which waits for its arguments; None if torchrunx starts all agents.
    """
    import torchrunx.launcher
    import torchrunx.utils.environment

    started: list[BaseProcess] = []

    # Record the log process, so that it can be killed on exit
    def context(method: str) -> SimpleNamespace:
        def make(**kwargs: Any) -> BaseProcess:
            started.append(multiprocessing.get_context(method).Process(**kwargs))  # pyright: ignore[reportAttributeAccessIssue]
            return started[-1]

        return SimpleNamespace(Process=make)

    # Pass the arguments to the agent that is already running here; start other agents in sessions of their own
    def popen(command: str, **kwargs: Any) -> subprocess.Popen[str]:
        _, starts_agent, arguments = command.partition(" -m torchrunx ")
        if agent is None or not starts_agent:
            return subprocess.Popen(command, start_new_session=True, **kwargs)
        assert agent.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # torchrunx detects an ended agent, which never connects
            agent.stdin.write(json.dumps(shlex.split(arguments)) + "\n")
            agent.stdin.flush()
        return agent

    own_session = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE)
    with (
        patched(torchrunx.launcher, "socket", SimpleNamespace(getfqdn=lambda: address)),
        patched(torchrunx.launcher, "get_context", context),
        patched(torchrunx.utils.environment, "subprocess", own_session),
    ):
        try:
            yield
        finally:
            for process in started:
                if process.pid is not None:
                    process.kill()


@contextlib.contextmanager
def _event_pipe(listen: Listener) -> Iterator[int]:
    """Yield the write end of a pipe for torchrunx's log process, a fork of this one; a thread reads events from it."""
    read_fd, write_fd = os.pipe()

    def read() -> None:
        with os.fdopen(read_fd) as lines:
            for line in lines:
                listen(json.loads(line))

    reader = threading.Thread(target=read, name="events", daemon=True)
    reader.start()
    try:
        yield write_fd
    finally:
        os.close(write_fd)
        reader.join(timeout=2)


@contextlib.contextmanager
def _in_thread(function: Callable[[], T]) -> Iterator[Future[T]]:
    """Run a function in a thread; neither the thread nor processes that it starts receive Ctrl-C.

    torchrunx waits in C code for seconds at a time. The calling thread waits in Python instead, where KeyboardInterrupt
    is raised at once. A terminal or a notebook sends Ctrl-C to every process, but only this one should end the ranks.
    """
    future: Future[T] = Future()

    def run() -> None:
        # Schedulers send SIGTERM to every process; the ranks' log process must survive it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    thread = threading.Thread(target=run, name="launcher", daemon=True)
    thread.start()
    try:
        yield future
    finally:
        # After an interrupt, torchrunx may wait minutes for an agent to connect; the daemon thread is left behind then.
        thread.join(timeout=2)


@contextlib.contextmanager
def _child_errors() -> Iterator[IO[str]]:
    """Redirect the standard error of child processes to a file; this process still prints to the console or notebook.

    For example, torchrunx runs ``kill`` for agents that may have ended already, and ``kill`` prints an error then.
    """
    console = os.dup(2)
    with (
        tempfile.TemporaryFile("w+", errors="replace") as file,
        os.fdopen(os.dup(2), "w", buffering=1) as stderr,
        contextlib.redirect_stderr(stderr if _is_descriptor_2(sys.stderr) else sys.stderr),
    ):
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(console, 2)
            os.close(console)


def _is_descriptor_2(stream: TextIO | None) -> bool:
    """Return whether a stream writes to the process's standard error; that of a notebook does not."""
    try:
        return stream is not None and stream.fileno() == 2
    except (OSError, ValueError):
        return False


def _log_handlers(
    directory: Path | None, hosts: Sequence[str], ranks_per_host: int, pipe: int
) -> list[logging.Handler]:
    """Return handlers that write log files and send events to the launcher. Runs in torchrunx's log process."""
    from torchrunx.utils import log_streaming
    from torchrunx.utils.log_handling import file_handlers

    # Keep the objects of an earlier attempt. Its process groups join threads when they are freed; this fork does not
    # have these threads, and would abort.
    gc.freeze()
    die_with_parent()

    # Plain data only: otherwise anyone who can connect to the port could run code here by sending a pickle.
    log_streaming.__dict__["pickle"] = SimpleNamespace(loads=plain_record)
    # Events, and log files
    handlers: list[logging.Handler] = [EventHandler(lambda event: _write_line(pipe, event))]
    if directory is not None:
        counts = [ranks_per_host] * len(hosts)
        handlers += file_handlers(list(hosts), counts, log_dir=directory, log_level=logging.INFO)
    return handlers


def _write_line(fd: int, event: Event) -> None:
    os.write(fd, (json.dumps(event) + "\n").encode())
