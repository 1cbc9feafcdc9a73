"""torchrunx's agent on one machine, which starts the machine's ranks.

The agent starts before its arguments are available. The launcher, the agent and the process that ranks are forked from
therefore import their libraries at the same time. torchrunx itself starts the agent only after the launcher has
imported torch, and starts ranks only after the agent has imported torch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import runpy
import select
import shutil
import signal
import sys
import tempfile
import threading
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import SimpleNamespace

from mjlab_dist.control import STOP_SIGNALS, slices
from mjlab_dist.imports import prepare_opengl, start_up
from mjlab_dist.launch.log_records import RecordSender
from mjlab_dist.machine.processes import LAUNCH, TEMPORARY, temporary_directory
from mjlab_dist.patching import patched

# Argument that makes the agent fork ranks from a process that has imported their libraries
FORK = "--fork"

# Argument that asks the agent to make a temporary directory for itself and its ranks
OWN_DIRECTORY = "--own-directory"

# Line from the launcher that shows only that the launcher can still be reached
HEARTBEAT = b"\n"

# Argument with a number of seconds: the agent ends if it receives no heartbeat for this long. Without the argument,
# there is no limit.
SILENCE = "--silence="

# Name of the logger with which torch reports failed ranks
REPORTS_FAILURES = "torch.distributed.elastic.multiprocessing.api"

# Maximum length of TMPDIR in bytes; if it is longer, ranks are not forked.
#
# The fork server creates a Unix socket in this directory, and the path of a Unix socket has at most 107 bytes.
MAX_DIRECTORY = 70


def main() -> None:
    """Import libraries, read torchrunx's arguments as one line of JSON, and run torchrunx's agent.

    If the launcher ends before it sends the arguments, return without running the agent. A running agent ends when the
    launcher ends.
    """
    if OWN_DIRECTORY not in sys.argv:
        _run()
        return
    with temporary_directory(os.environ[LAUNCH]) as path:
        os.environ["TMPDIR"] = path
        tempfile.tempdir = None  # so that tempfile reads TMPDIR again
        _run()


def _run() -> None:
    # Schedulers send SIGTERM to every process, but only the launcher and the ranks handle it. multiprocessing unblocks
    # the signal when it starts its resource tracker, so the tracker must start before this process blocks the signal.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    # Start the fork server, which imports the ranks' libraries
    forks = FORK in sys.argv and len(os.fsencode(os.environ.get("TMPDIR", ""))) <= MAX_DIRECTORY
    if forks:
        forkserver.set_forkserver_preload(["mjlab_dist.launch.fork_server"])
        forkserver.ensure_running()
    # Import the agent's own libraries
    prepare_opengl(os.environ)  # another machine may lack the launcher's libraries
    with start_up():
        import torch.distributed.elastic.multiprocessing as elastic
        import torchrunx.agent
        import torchrunx.utils.log_streaming

        from mjlab_dist.launch.agent_group import AgentGroup  # imports torch
        from mjlab_dist.launch.rank_entry import run_rank  # imports more than the start needs

    logging.getLogger(REPORTS_FAILURES).addFilter(format_error)

    # Wait for the arguments from the launcher
    silence_s = next((float(each.removeprefix(SILENCE)) for each in sys.argv if each.startswith(SILENCE)), math.inf)
    while (line := _next_line(silence_s)) == HEARTBEAT:
        pass
    if not line:
        _remove_own_directory()
        return
    sys.argv[1:] = json.loads(line)
    threading.Thread(target=_end_with_launcher, args=(silence_s,), name="launcher", daemon=True).start()
    # Run torchrunx's agent, with its start method and its connections replaced
    start = functools.partial(elastic.start_processes, start_method="forkserver" if forks else "spawn")
    adapted = SimpleNamespace(start_processes=start, DefaultLogsSpecs=elastic.DefaultLogsSpecs)
    with (
        patched(torchrunx.agent, "dist_mp", adapted),
        patched(torchrunx.agent, "LauncherAgentGroup", AgentGroup),
        patched(torchrunx.agent, "worker_entrypoint", run_rank),
        patched(torchrunx.utils.log_streaming, "SocketHandler", RecordSender),
    ):
        runpy.run_module("torchrunx", run_name="__main__")


def format_error(record: logging.LogRecord) -> bool:
    """Format the error of a log record; return True, so that the logger keeps the record.

    If torch formatted the error, it would first import its compiler, which takes seconds.
    """
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    record.exc_info = None
    return True


def _remove_own_directory() -> None:
    """Remove the temporary directory of the launch, which a killed launcher leaves behind."""
    directory = Path(tempfile.gettempdir())
    if directory.name.startswith(TEMPORARY):
        shutil.rmtree(directory, ignore_errors=True)


def _next_line(silence_s: float) -> bytes:
    """Return the next line from the launcher; no bytes if the launcher has ended, or was silent for too long."""
    if not any(select.select([0], [], [], wait_s)[0] for wait_s in slices(silence_s)):
        return b""
    with open(0, "rb", buffering=0, closefd=False) as lines:
        return lines.readline()


def _end_with_launcher(silence_s: float) -> None:
    """Wait until the launcher has ended or cannot be reached, and then kill this process, which also ends its ranks."""
    with contextlib.suppress(OSError):
        while _next_line(silence_s):
            pass
    _remove_own_directory()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
