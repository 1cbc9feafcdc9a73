"""torchrunx's agent on one machine, which starts the machine's ranks.

The agent starts before its arguments are available. The launcher, the agent and the process that ranks are forked from
therefore import their libraries at the same time. torchrunx itself starts the agent only after the launcher has
imported torch, and starts ranks only after the agent has imported torch.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
import threading
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from mjlab_dist.distributed.heartbeat import STOP_SIGNALS, slices
from mjlab_dist.imports import prepare_opengl, start_up
from mjlab_dist.machine.processes import LAUNCH, TEMPORARY, temporary_directory

# Argument that makes the agent fork ranks from a process that has imported their libraries
FORK = "--fork"

# Argument that asks the agent to make a temporary directory for itself and its ranks
OWN_DIRECTORY = "--own-directory"

# Line with which an agent's messages begin
GREETING = b"agent of mjlab_dist\n"

# Message from the launcher that shows only that the launcher can still be reached
HEARTBEAT = b""

# Argument with a number of seconds: the agent ends if it receives no heartbeat for this long. Without the argument,
# there is no limit.
SILENCE = "--silence="

# Argument with the descriptor of a listening socket: the agent serves torch's store there, where ranks of several
# machines meet
STORE = "--store="

# Maximum length of TMPDIR in bytes; if it is longer, ranks are not forked.
#
# The fork server creates a Unix socket in this directory, and the path of a Unix socket has at most 107 bytes.
MAX_DIRECTORY = 70


def main() -> None:
    """Import libraries, wait for torchrunx's arguments, and run torchrunx's agent.

    The process ends when the launcher ends.
    """
    if OWN_DIRECTORY not in sys.argv:
        _run()
        return
    with temporary_directory(os.environ[LAUNCH]) as path:
        os.environ["TMPDIR"] = path
        tempfile.tempdir = None  # so that tempfile reads TMPDIR again
        _run()


def _run() -> None:
    # Processes that this one starts must not hold its streams or the store's socket
    messages = Messages()
    given = _option(STORE)
    listener = socket.socket(fileno=int(given)) if given else None
    if listener is not None:
        listener.set_inheritable(False)
    # Schedulers send SIGTERM to every process, but only the launcher and the ranks handle it. multiprocessing unblocks
    # the signal when it starts its resource tracker, so the tracker must start before this process blocks the signal.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    messages.open(float(_option(SILENCE) or math.inf))
    # Start the fork server, which imports the ranks' libraries
    forks = FORK in sys.argv and len(os.fsencode(os.environ.get("TMPDIR", ""))) <= MAX_DIRECTORY
    if forks:
        forkserver.set_forkserver_preload(["mjlab_dist.launch.fork_server"])
        forkserver.ensure_running()
    # Import the agent's own libraries
    prepare_opengl(os.environ)  # another machine may lack the launcher's libraries
    with start_up():
        from torch._C._distributed_c10d import TCPStore

        from mjlab_dist.launch.torchrunx import run_agent
    if listener is not None:
        host, port = listener.getsockname()[:2]
        # Serves until this process ends
        _store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    run_agent(messages, forks=forks)


def _option(name: str) -> str | None:
    """Return the value of an argument of this process."""
    return next((each[len(name) :] for each in sys.argv if each.startswith(name)), None)


class Messages:
    """Messages to and from the launcher, through the standard streams with which this process was started.

    From then on, standard output is the stream of errors, and standard input is empty: libraries and ranks may print
    and read.
    """

    def __init__(self) -> None:
        self._to = Connection(os.dup(1), readable=False)
        self._from = Connection(os.dup(0), writable=False)
        self._received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        os.dup2(2, 1)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)

    def open(self, silence_s: float) -> None:
        """Begin to send and receive; kill this process if the launcher ends, or is silent for too long."""
        os.write(self._to.fileno(), GREETING)
        threading.Thread(target=self._read, args=(silence_s,), name="launcher", daemon=True).start()

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._to.send_bytes(message)

    def receive(self) -> bytes:
        """Wait for a message."""
        return self._received.get()

    def _read(self, silence_s: float) -> None:
        with contextlib.suppress(OSError, EOFError):
            while any(self._from.poll(wait_s) for wait_s in slices(silence_s)):
                if (message := self._from.recv_bytes()) != HEARTBEAT:
                    self._received.put(message)
        _remove_own_directory()
        os.kill(os.getpid(), signal.SIGKILL)  # which also ends the ranks


def _remove_own_directory() -> None:
    """Remove the temporary directory of the launch, which a killed launcher leaves behind."""
    directory = Path(tempfile.gettempdir())
    if directory.name.startswith(TEMPORARY):
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
