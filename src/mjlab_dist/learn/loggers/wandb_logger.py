"""Weights & Biases runs in a separate process, because it may hang, fail or have no network.

Training sends rows to the process without waiting. At the end, a process that does not end in time is killed.
"""

from __future__ import annotations

import collections
import json
import math
import os
import select
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.logger import Logger
from mjlab_dist.machine.processes import kill_with_descendants
from mjlab_dist.masking import masked
from mjlab_dist.messages import emit
from mjlab_dist.run_dir import BEST_LINK, CHECKPOINTS_DIR, METRICS_FILE, follow_link
from mjlab_dist.wandb_run import WANDB_FILE, WandbRun, read_wandb_run, write_wandb_run

START_S = 60.0
"""Maximum seconds for Weights & Biases to start; after that, rows are stored offline. Training does not wait for it."""

CLOSE_S = 4.5
"""Maximum seconds that a run waits at its end for Weights & Biases to receive the remaining rows."""

# Maximum seconds of this wait if `--checkpoint.wandb` is set, because the last checkpoint must be uploaded
CLOSE_FILES_S = 60.0

CLOSE_START_S = 2.0
"""Maximum seconds that a run waits at its end for Weights & Biases to start online; after that, it starts offline."""

MAX_WAITING_ROWS = 10_000
"""Maximum number of waiting rows, of about 4 kB each. If there are more, the run continues without W&B."""

# Values of WANDB_MODE that need no network
NO_NETWORK = {"offline", "dryrun", "disabled"}

Message = dict[str, Any]
"""A message between this process and :mod:`mjlab_dist.learn.loggers.wandb_process`."""


class WandbLogger(Logger):
    """Logger for Weights & Biases.

    It is offline if W&B's environment variables request this, or if W&B cannot start online.
    Only :meth:`close` waits for Weights & Biases: for its start, and then at most :data:`CLOSE_S` or
    :data:`CLOSE_FILES_S` seconds. If Weights & Biases fails, one warning is printed, and training continues without it.
    """

    def __init__(self, run_dir: Path, config: TrainConfig, resumed_at: int | None) -> None:  # noqa: ARG002
        """Start a W&B run, or continue it if the run is resumed."""
        self._run_dir = run_dir
        self._config = config
        found = read_wandb_run(run_dir)
        if found is None and (run_dir / WANDB_FILE).exists():
            self._warn(f"gets a new run, because {run_dir / WANDB_FILE} cannot be read")
        self._run = found or WandbRun(project=config.wandb_project)
        self._waiting: collections.deque[Message] = collections.deque()
        self._process: _WandbProcess | None = None
        self._mode = os.environ.get("WANDB_MODE") or None
        self._started = False
        self._start_by = 0.0
        self._step = 0
        self._close_s = CLOSE_FILES_S if config.checkpoint.wandb else CLOSE_S
        try:
            write_wandb_run(run_dir, self._run)
            self._start()
        except OSError as error:
            self._give_up(f"could not be started ({error})")

    def log(self, row: Mapping[str, float], step: int) -> None:
        if self._process is None:
            return
        self._step = step
        self._send({"step": step, "values": dict(row)}, self._process)

    def video(self, file: Path, iteration: int) -> None:
        """Send a video. Log it at the step of the last row, because Weights & Biases refuses earlier steps."""
        if self._process is not None:
            video = {"file": str(file), "caption": f"iteration {iteration}"}
            self._send({"step": self._step, "video": video}, self._process)

    def checkpoint(self, file: Path, iteration: int) -> None:
        """With ``--checkpoint.wandb``, send a hard link, so that wandb can read the file even after it was pruned."""
        if self._process is None or not self._config.checkpoint.wandb:
            return
        copy = self._run_dir / "wandb" / f".{file.name}"
        try:
            copy.parent.mkdir(exist_ok=True)
            copy.unlink(missing_ok=True)
            copy.hardlink_to(file)
        except OSError as error:
            self._warn(f"does not get the checkpoint of iteration {iteration} ({error.strerror})")
            return
        sent = {"file": str(copy), "name": file.name, "iteration": iteration, "is_best": self._is_best(file)}
        self._send({"checkpoint": sent}, self._process)

    def _is_best(self, file: Path) -> bool:
        link = self._run_dir / CHECKPOINTS_DIR / BEST_LINK
        return link.is_symlink() and follow_link(link).name == file.name

    def _send(self, message: Message, process: _WandbProcess) -> None:
        self._waiting.append(message)
        if len(self._waiting) > MAX_WAITING_ROWS:
            oldest = next((waiting["step"] for waiting in self._waiting if "step" in waiting), self._step)
            self._give_up(f"has accepted no rows since iteration {oldest}")
            return
        self._exchange(process)

    def close(self) -> None:
        """Send the remaining rows, and end the process."""
        end_by = math.inf
        if self._mode not in NO_NETWORK:
            self._start_by = min(self._start_by, time.monotonic() + CLOSE_START_S)
        self._waiting.append({"close": True})
        while self._process is not None:
            if self._started:
                end_by = min(end_by, time.monotonic() + self._close_s)
            if time.monotonic() > end_by:
                self._give_up(f"did not end within {self._close_s:g} s")
                break
            self._exchange(self._process)
            if self._process is not None:
                self._process.wait(0.05)
        for copy in (self._run_dir / "wandb").glob(".model_*.pt"):
            copy.unlink(missing_ok=True)

    def _start(self) -> None:
        init = {
            "entity": self._run.entity,
            "project": self._run.project,
            "id": self._run.id,
            "name": self._run_dir.name,
            "dir": str(self._run_dir),
            "config": to_plain(self._config),
            "resume": "allow",
            "mode": self._mode,
        }
        settings = {
            "silent": True,
            "console": "off",
            "program": sys.argv[0],
            "x_stats_pid": os.getpid(),
            "init_timeout": START_S / 2,
            "finish_timeout": self._close_s - 1,
            "finish_timeout_raises": True,
            "x_transaction_log_flush_interval": 1.0,  # in s: if wandb is killed, rows of the last second may be lost
        }
        self._started = False
        self._start_by = time.monotonic() + START_S
        self._process = _WandbProcess({"argv": masked(sys.argv), "init": init, "settings": settings})

    def _exchange(self, process: _WandbProcess) -> None:
        """Handle received messages, and send waiting rows without blocking."""
        try:
            for message in process.receive():
                self._handle(message)
            if self._process is not process:
                return
            process.send(self._waiting if self._started else collections.deque())
            if not self._started and time.monotonic() > self._start_by:
                self._fall_back("it does not answer")
        except ConnectionError:
            self._give_up("failed (its process is gone)")
        except OSError as error:
            self._give_up(f"failed ({error})")

    def _handle(self, message: Message) -> None:
        if "started" in message:
            self._started = True
            self._run = WandbRun(**message["started"])
            write_wandb_run(self._run_dir, self._run)
        elif "failed" not in message:
            if not message["finished"]:
                self._warn(f"did not accept all rows in time; {self._where}")
            self._end()
        elif self._started:
            self._give_up(f"failed ({message['failed']})")
        else:
            self._fall_back(message["failed"])

    def _fall_back(self, reason: str) -> None:
        if self._mode in NO_NETWORK:
            self._give_up(f"failed ({reason})")
            return
        self._mode = "offline"
        self._warn(f"cannot be reached ({reason}); {self._where}")
        self._end()
        self._start()

    def _give_up(self, reason: str) -> None:
        self._warn(f"{reason}; it receives no further rows, but {METRICS_FILE} has every row")
        self._waiting.clear()
        self._end()

    def _warn(self, text: str) -> None:
        emit("warning", text=f"Weights & Biases {text}")

    @property
    def _where(self) -> str:
        # The pattern itself stays without quotes
        files = f"{shlex.quote(str(self._run_dir))}/wandb/{'offline-' if self._mode in NO_NETWORK else ''}run-*"
        return f"rows are kept in this run's directory, and `uv run wandb sync {files}` uploads them"

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class _WandbProcess:
    """A process that runs :mod:`mjlab_dist.learn.loggers.wandb_process`. Sending and receiving do not wait.

    Raises:
        ConnectionError: If the process has ended before a message is sent or received.
        OSError: If the process cannot be started.
    """

    def __init__(self, first: Message) -> None:
        """Start the process."""
        # wandb's service process leaves temporary files when it is killed. end() removes them with this directory.
        self._temporary = tempfile.TemporaryDirectory(prefix="mjlab-dist-", ignore_cleanup_errors=True)
        # This process may have a service process of wandb for other runs. This run must not use it.
        environ = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
        self._link, other_end = socket.socketpair()
        self._link.setblocking(False)
        self._unsent = _line(first)
        self._received = b""
        script = Path(__file__).with_name("wandb_process.py")
        with other_end:
            self._process = subprocess.Popen(
                # -P: Python does not add the directory of the script to sys.path.
                [sys.executable, "-P", str(script), self._temporary.name],
                stdin=other_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environ, "TMPDIR": self._temporary.name},
                start_new_session=True,  # Ctrl-C in the terminal is for the launcher only
            )
        self.send(collections.deque())

    def send(self, messages: collections.deque[Message]) -> None:
        """Send as many messages as possible without blocking, and remove them from the queue."""
        while self._unsent or messages:
            self._unsent = self._unsent or _line(messages.popleft())
            try:
                self._unsent = self._unsent[self._link.send(self._unsent) :]
            except BlockingIOError:
                return

    def receive(self) -> list[Message]:
        """Return the messages received since the last call."""
        try:
            while data := self._link.recv(1 << 16):
                self._received += data
        except BlockingIOError:
            *lines, self._received = self._received.split(b"\n")
            return [json.loads(line) for line in lines]
        raise ConnectionError

    def wait(self, timeout_s: float) -> None:
        """Wait until the process can receive a message or has sent one."""
        poll = select.poll()  # select() does not support descriptors above 1023
        poll.register(self._link, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.poll(1000 * timeout_s)

    def end(self) -> None:
        """Kill the process, and wandb's service process."""
        kill_with_descendants(self._process)
        self._link.close()
        self._temporary.cleanup()


def _line(message: Message) -> bytes:
    return json.dumps(message, default=str).encode() + b"\n"
