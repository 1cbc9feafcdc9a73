"""Start ranks through torchrunx, receive their events, end their processes."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import IO, TypeVar

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import RankError
from mjlab_dist.imports import start_up
from mjlab_dist.launch.output import LogFiles
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.preparation import end_processes, prepared, remote_timeout_s
from mjlab_dist.launch.rank_entry import run_or_die
from mjlab_dist.launch.supervision import Ranks
from mjlab_dist.launch.worker import Entry
from mjlab_dist.machine.preflight import require_connections
from mjlab_dist.messages import Listener
from mjlab_dist.runs.run_dir import log_dir

T = TypeVar("T")

# Seconds to wait for torchrunx's launcher after its agents have ended. After that, its daemon thread is left running.
JOIN_S = 10.0


def run_ranks(
    entry: Entry[T],
    result_type: type[T],
    config: TrainConfig,
    plan: RunPlan,
    *,
    listen: Listener,
    control: Control,
    left: dict[str, list[str]] | None = None,
    take: Callable[[int, socket.socket], None] | None = None,
) -> list[T]:
    """Start ranks on one or several machines, wait for their results, and return them in order of rank.

    Args:
        entry: Function that each rank runs.
        result_type: Type of its result.
        config: Config for the ranks.
        plan: Machines and devices.
        listen: Receives the events for the user.
        control: The caller's requests.
        left: Receives the names of launches of which processes may still be running, by machine.
        take: Takes over the connections that ranks open for commands, each with its rank.
    """
    hosts = [host.name for host in plan.hosts for _ in host.devices]
    ranks, directory = Ranks(hosts, listen, control), log_dir(config, plan.run_dir, os.environ)
    require_connections()
    with contextlib.ExitStack() as stack:
        # Start the agents. They import their libraries while this process imports its own.
        launch = stack.enter_context(prepared(config, plan, listen))
        with start_up():
            from mjlab_dist.launch.torchrunx import require_release, run_launcher
        require_release()
        listen({"kind": "debug", "text": f"launcher: ranks meet at {launch.meeting_point}; log files in {directory}"})
        logs = stack.enter_context(contextlib.closing(LogFiles(directory, hosts)))
        stack.enter_context(ranks.channels.accepting(launch.listener, launch.secret, logs.copy, take))
        # Start the ranks, and wait for their results. Ctrl-Z may stop the launcher for any length of time. On one
        # machine, no timeout is needed, because the agent ends when the launcher ends.
        start = functools.partial(
            run_launcher,
            launch.agents,
            [len(host.devices) for host in plan.hosts],
            None if len(plan.hosts) == 1 else remote_timeout_s(config),
            *(run_or_die, entry, config, plan.rank_plans),
        )
        thread, future = in_thread(start, "launcher")
        try:
            results = ranks.wait(
                future,
                config.hang_timeout,
                lambda: next(filter(None, (agent.ended() for agent in launch.agents)), None),
            )
        except RankError as error:
            raise _with_log(error, logs, launch.errors) from None
        finally:
            # torchrunx asks its agents to end, but does not wait for them
            for host in end_processes(config, plan.host_names, launch.name, listen):
                if left is not None:
                    left.setdefault(host, []).append(launch.name)
            for agent in launch.agents:
                agent.end()
            thread.join(JOIN_S)

    import dacite  # only needed at the end

    decoding = dacite.Config(cast=[Path], strict=True)
    return [dacite.from_dict(result_type, result, config=decoding) for result in results]  # pyright: ignore[reportArgumentType]


def _with_log(error: RankError, logs: LogFiles, errors: IO[str]) -> RankError:
    """Return an error with the path of the rank's log.

    If the error has no report, what the agents have printed takes its place.
    """
    errors.seek(0)
    message, report = str(error), error.report or errors.read()
    if logs.files and error.rank is not None:
        message += f". Its log: {logs.files[error.rank].name}"
    return RankError(message, error.rank, report, error.exit_code, may_pass=error.may_pass)


def in_thread(function: Callable[[], T], name: str) -> tuple[threading.Thread, Future[T]]:
    """Run a function in a thread, while the calling thread can react to KeyboardInterrupt."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 (the future raises it in the thread that waits)
            future.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread, future
