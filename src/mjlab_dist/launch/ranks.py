"""Several ranks through torchrunx: started, listened to, ended. The only module that imports torchrunx."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import gc
import io
import json
import logging
import multiprocessing
import os
import pickle
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
from typing import IO, Any, Never, TextIO, TypeVar

from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankDevice
from mjlab_dist.distributed.rank import LOOPBACK, MEETING_POINT
from mjlab_dist.errors import RankError
from mjlab_dist.faults import ATTEMPT
from mjlab_dist.imports import start_up
from mjlab_dist.launch.agent import FORK
from mjlab_dist.launch.hosts import HERE, end_on_hosts, own_address
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.supervision import Ranks
from mjlab_dist.machine.processes import LAUNCH, end_children, temporary_directory
from mjlab_dist.messages import Event, EventHandler, Listener
from mjlab_dist.patching import patched
from mjlab_dist.worker import Entry, die_with_parent, run_or_die

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
"""Variables that ranks need also where torchrunx does not pass them on by itself."""

SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Parts of names of variables that must not stand in a command line, which every user of the machine can read."""


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
    """Start ranks, on this machine or on several, and wait for them.

    Args:
        entry: What each rank does; it travels by its name, its result as plain data.
        result_type: The dataclass that it returns.
        config: The run's config.
        plan: Devices, hosts and run directory.
        listen: Called, in a thread of its own, with what ranks tell the console.
        control: Asked whether the ranks are to stop in order.
        attempt: How often these ranks have been started before.

    Returns:
        The ranks' results, in order of rank.

    Raises:
        RankError: If a rank ended early or hung.
        UserError: If it ended because of something that the user can mend.
    """
    hosts, ranks_per_host = plan.hosts, len(plan.devices)
    launch, address = uuid.uuid4().hex, own_address(hosts)
    # Opened here, on a port that the kernel gives: one that is only chosen, and opened by rank 0 seconds later, may be
    # somebody else's by then.
    meeting_point = _listen(here_only=len(hosts) == 1)
    logs = log_dir(config, plan.run_dir, os.environ)
    ranks = Ranks(hosts, ranks_per_host, listen, control)
    rank: Callable[..., object] = run_or_die
    with meeting_point, temporary_directory() as temporary, _child_errors() as errors, contextlib.ExitStack() as stack:
        extra = {
            # As multiprocessing does it, ranks import what this process can: a script's own directory is in sys.path only.
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
            LAUNCH: launch,
            MEETING_POINT: f"{address}:{meeting_point.getsockname()[1]}",
            ATTEMPT: str(attempt),
        }
        agent = None
        if len(hosts) == 1:
            extra["TMPDIR"] = temporary  # torchrunx's agent leaves a directory there
            forks = can_fork(plan.devices, os.environ)
            agent = stack.enter_context(_waiting_agent({**os.environ, **extra}, forks=forks))
            how = "forked" if forks else "spawned"
            listen(
                {"kind": "debug", "text": f"launcher: started torchrunx's agent (process {agent.pid}), ranks are {how}"}
            )

        # The agent imports its libraries in the meantime.
        with start_up():
            import torchrunx
            from torch._C._distributed_c10d import TCPStore

        gc.collect()  # an earlier attempt's process groups, with their threads and sockets, hang in the cycles of a traceback
        port = meeting_point.getsockname()[1]
        listen({"kind": "debug", "text": f"launcher: ranks meet at {address}:{port}; log files in {logs}"})
        _store = TCPStore(  # it lives as long as this variable
            LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=meeting_point.detach()
        )
        pipe = stack.enter_context(_event_pipe(ranks.hear))
        stack.enter_context(_adapted_torchrunx(address, agent))
        launcher = torchrunx.Launcher(
            hostnames=list(hosts),
            workers_per_host=ranks_per_host,
            ssh_config_file=config.ssh_config,
            backend=None,
            copy_env_vars=tuple(exported_names(os.environ)),
            extra_env_vars=extra,
        ).set_logging_handlers(functools.partial(_log_handlers, logs, hosts, ranks_per_host, pipe))
        with _in_thread(lambda: launcher.run(rank, entry, config, plan.rank_plans)) as future:
            try:
                results = ranks.wait(future, config.hang_timeout)
            except RankError as error:
                raise _with_log(error, logs, hosts, ranks_per_host, errors) from None
            finally:
                end_children(launch)  # torchrunx tells its agent to end, and does not wait until it has
                if left := end_on_hosts(hosts, config.ssh_config, launch):
                    text = f"no answer from {', '.join(left)}: processes of this run may be left there"
                    listen({"kind": "warning", "text": text})
    return [_decoded(result_type, result) for result in results]


def log_dir(config: TrainConfig, run_dir: Path, environ: Mapping[str, str]) -> Path | None:
    """Where the ranks' log files go: the variable beats the flag, the flag the default; None for no files."""
    chosen = environ.get("TORCHRUNX_LOG_DIR", config.torchrunx_log_dir)
    if chosen is None:
        return run_dir / "torchrunx"
    return Path(chosen) if chosen else None


def exported_names(environ: Mapping[str, str]) -> list[str]:
    """Names of the variables to hand to ranks through torchrunx, which writes them into a command line.

    A process on this machine inherits the others too, secrets among them.
    """
    return [
        name
        for name in environ
        if any(fnmatch.fnmatch(name, pattern) for pattern in ENVIRONMENT) and not any(word in name for word in SECRET)
    ]


def _with_log(
    error: RankError, logs: Path | None, hosts: Sequence[str], ranks_per_host: int, errors: IO[str]
) -> RankError:
    """The same error with the path of the rank's log; and, where the rank left no report, with what processes complained of."""
    errors.seek(0)
    message, report = str(error), error.report or errors.read()
    if logs and error.rank is not None:
        host = hosts[error.rank // ranks_per_host]
        found = sorted(logs.glob(f"*/{host}[[]{error.rank % ranks_per_host}].log"))
        message += f". Its log: {found[-1]}" if found else ""
    return RankError(message, error.rank, report, error.exit_code)


def _decoded(result_type: type[T], plain: dict[str, Any]) -> T:
    import dacite  # noqa: PLC0415 (needed at the end only)

    return dacite.from_dict(result_type, plain, config=dacite.Config(cast=[Path], strict=True))  # pyright: ignore[reportArgumentType]


def _listen(here_only: bool) -> socket.socket:
    """Listen at a free port, of the loopback address only or of all addresses."""
    if here_only:
        return socket.create_server((LOOPBACK, 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def can_fork(devices: Sequence[RankDevice], environ: Mapping[str, str]) -> bool:
    """Return whether ranks may be forked from a process that has imported their libraries.

    MuJoCo starts EGL or OSMesa when it is imported, if the variable asks for that; both, like CUDA, do not survive a fork.
    """
    return all(device.device == "cpu" for device in devices) and "MUJOCO_GL" not in environ


@contextlib.contextmanager
def _waiting_agent(environ: Mapping[str, str], *, forks: bool) -> Iterator[subprocess.Popen[str]]:
    """Start the agent of this machine, out of reach of Ctrl-C and SIGTERM; it waits for torchrunx's arguments.

    Args:
        environ: Its environment, and that of the ranks.
        forks: Whether ranks are forked from a process that has imported their libraries.
    """
    command = [sys.executable, "-u", "-m", "mjlab_dist.launch.agent", *([FORK] if forks else [])]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        agent = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, text=True, start_new_session=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield agent
    finally:
        agent.kill()  # its fork server and the ranks end with it
        agent.communicate()


@contextlib.contextmanager
def _adapted_torchrunx(address: str, agent: subprocess.Popen[str] | None) -> Iterator[None]:
    """Have torchrunx call this machine by an address, and take its agent here out of reach of the terminal's Ctrl-C.

    The machine's own name need not resolve, nor be reachable from itself. An agent that Ctrl-C reaches kills its ranks. The log
    process is killed in the end: interrupted early, torchrunx does so minutes later, and this process could not end before.

    Args:
        address: Of this machine.
        agent: Waits for the arguments of the agent here; None where torchrunx starts all agents.
    """
    import torchrunx.launcher
    import torchrunx.utils.environment

    started: list[BaseProcess] = []

    def context(method: str) -> SimpleNamespace:
        def make(**kwargs: Any) -> BaseProcess:
            started.append(multiprocessing.get_context(method).Process(**kwargs))  # pyright: ignore[reportAttributeAccessIssue]
            return started[-1]

        return SimpleNamespace(Process=make)

    def popen(command: str, **kwargs: Any) -> subprocess.Popen[str]:
        _, starts_agent, arguments = command.partition(" -m torchrunx ")
        if agent is None or not starts_agent:
            return subprocess.Popen(command, start_new_session=True, **kwargs)
        assert agent.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # an agent that has ended is noticed when it does not connect
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
    """A pipe's writing end for torchrunx's log process, which is forked from this one, and a thread that reads it."""
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
    """Run a function in a thread that Ctrl-C does not reach, nor the processes that it starts.

    torchrunx waits in C code, for seconds: the calling thread waits in Python instead, where KeyboardInterrupt is raised at once.
    A terminal or a notebook sends Ctrl-C to every process, and ranks are to be ended by this one.
    """
    future: Future[T] = Future()

    def run() -> None:
        # A scheduler that sends SIGTERM to every process must not take the ranks' log away.
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
        # Interrupted before its agent has called, torchrunx waits for that for minutes; the thread is left to it.
        thread.join(timeout=2)


@contextlib.contextmanager
def _child_errors() -> Iterator[IO[str]]:
    """Send what child processes print as errors to a file: torchrunx kills an agent that may have ended, and `kill` complains.

    What this process prints as errors goes where it went: to the console, or into the notebook.
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
    """Whether a stream writes to the process's standard error; a notebook's does not."""
    try:
        return stream is not None and stream.fileno() == 2
    except (OSError, ValueError):
        return False


def _log_handlers(
    directory: Path | None, hosts: Sequence[str], ranks_per_host: int, pipe: int
) -> list[logging.Handler]:
    """Runs in torchrunx's log process: a file per rank, and events to the launcher."""
    from torchrunx.utils import log_streaming
    from torchrunx.utils.log_handling import file_handlers

    # Collected here, after the fork, what is left of an earlier attempt's process groups would abort: it joins its threads.
    gc.freeze()
    die_with_parent()
    # Whoever reaches the port could have this process run anything by a pickle.
    log_streaming.__dict__["pickle"] = SimpleNamespace(loads=plain_record)
    handlers: list[logging.Handler] = [EventHandler(lambda event: _write_line(pipe, event))]
    if directory is not None:
        counts = [ranks_per_host] * len(hosts)
        handlers += file_handlers(list(hosts), counts, log_dir=directory, log_level=logging.INFO)
    return handlers


class _PlainUnpickler(pickle.Unpickler):
    """Makes containers, text and numbers only."""

    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"a log record may not hold a {module}.{name}")


def plain_record(data: bytes) -> dict[str, Any]:
    """Read a log record as logging's SocketHandler writes it, and nothing that runs code.

    Args:
        data: A pickle.

    Returns:
        The record's fields; where the pickle holds anything else, those of a warning in the agent's log.
    """
    try:
        record = _PlainUnpickler(io.BytesIO(data)).load()
        known = isinstance(record, dict) and {"hostname", "local_rank", "name", "msg", "levelno"} <= record.keys()
        reason = "" if known else "it is none"
    except Exception as error:  # noqa: BLE001 (a damaged pickle raises nearly anything)
        record, reason = {}, str(error)
    if reason:
        record = {"name": "root", "hostname": HERE, "local_rank": None, "levelno": logging.WARNING}
        record |= {"levelname": "WARNING", "msg": f"a log record was refused: {reason}"}
    return record


def _write_line(fd: int, event: Event) -> None:
    os.write(fd, (json.dumps(event) + "\n").encode())
