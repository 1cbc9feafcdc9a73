"""Writers of metrics: metrics.jsonl, and TensorBoard or Weights & Biases. Only rank 0 writes.

Weights & Biases may hang, fail or have no network. It receives rows without waiting, and is killed if it does not end.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.learn.metrics import Row
from mjlab_dist.messages import emit
from mjlab_dist.run_dir import METRICS_FILE, RANK_METRICS_FILE, WandbRun, cut_metrics, read_wandb_run, write_wandb_run

START_S = 60.0
"""Maximum seconds for Weights & Biases to start; after that, rows are stored offline. Training does not wait for it."""

CLOSE_S = 4.5
"""Maximum seconds that a run waits at its end for Weights & Biases to receive the remaining rows."""

CLOSE_START_S = 2.0
"""Maximum seconds of :data:`CLOSE_S` for it to start."""

MAX_WAITING_ROWS = 10_000
"""Maximum number of waiting rows, of about 4 kB each; Weights & Biases is abandoned if there are more."""

NO_NETWORK = {"offline", "dryrun", "disabled"}
"""Values of WANDB_MODE with which Weights & Biases needs no network."""

Message = dict[str, Any]
"""A message between this process and :mod:`mjlab_dist.learn.wandb_process`."""


class Writer(Protocol):
    """A destination of rows."""

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:
        """Write one row.

        Args:
            row: Metrics of an iteration.
            ranks: Metrics of each rank in it, with ``--log-ranks``.
        """

    def close(self) -> None:
        """Finish. Nothing is written afterwards."""


class JsonlWriter:
    """metrics.jsonl and rank_metrics.jsonl: one JSON object per line, complete after every iteration."""

    def __init__(self, run_dir: Path, resumed_at: int | None) -> None:
        """Open metrics.jsonl.

        Args:
            run_dir: The run directory.
            resumed_at: See :func:`writers`.
        """
        if resumed_at is not None:
            for name in (METRICS_FILE, RANK_METRICS_FILE):
                cut_metrics(run_dir, resumed_at, name)
        self._file = (run_dir / METRICS_FILE).open("a", buffering=1)
        self._path_of_ranks = run_dir / RANK_METRICS_FILE

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:
        """Append one row, and one for each rank."""
        self._file.write(_line_of(row))
        if ranks:
            with self._path_of_ranks.open("a") as file:
                file.write("".join(map(_line_of, ranks)))

    def close(self) -> None:
        """Close metrics.jsonl."""
        self._file.close()


class TensorBoardWriter:
    """Writes TensorBoard's event file, with the iteration as the step."""

    def __init__(self, run_dir: Path, resumed_at: int | None) -> None:
        """Open a new event file, next to those of the run before it was resumed.

        Args:
            run_dir: The run directory.
            resumed_at: See :func:`writers`. TensorBoard drops later points of the earlier files.
        """
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (slow to import, and only rank 0 writes)

        purge_step = None if resumed_at is None else resumed_at + 1
        self._writer = SummaryWriter(log_dir=str(run_dir), purge_step=purge_step)

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:
        """Add one scalar per metric."""
        for name, value in scalars(row, ranks).items():
            self._writer.add_scalar(name, value, row["iteration"])
        # So that the file of a killed run has all points up to its newest checkpoint. This takes 0.2 ms.
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


class WandbWriter:
    """Logger for Weights & Biases: online, or offline if its environment variables say so or it cannot start.

    Only :meth:`close` waits for it, at most :data:`CLOSE_S`. If it fails, training continues without it, after one
    warning.
    """

    def __init__(self, run_dir: Path, config: TrainConfig) -> None:
        """Start a W&B run; if the run is resumed, continue its W&B run.

        Args:
            run_dir: The run directory; files are written to ``wandb/`` in it.
            config: The run's config.
        """
        self._run_dir = run_dir
        self._config = config
        self._run = read_wandb_run(run_dir) or WandbRun(project=config.wandb_project)
        self._waiting: collections.deque[Message] = collections.deque()
        self._process: _WandbProcess | None = None
        self._mode = os.environ.get("WANDB_MODE") or None
        self._started = False
        self._start_by = 0.0
        try:
            write_wandb_run(run_dir, self._run)
            self._start()
        except OSError as error:
            self._give_up(f"could not be started ({error})")

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:
        """Send one row."""
        if self._process is None:
            return
        self._waiting.append({"step": row["iteration"], "values": scalars(row, ranks)})
        if len(self._waiting) > MAX_WAITING_ROWS:
            self._give_up(f"has accepted no rows since iteration {self._waiting[0]['step']}")
            return
        self._exchange(self._process)

    def close(self) -> None:
        """Send the remaining rows, and end the process."""
        end_by = time.monotonic() + CLOSE_S
        self._start_by = min(self._start_by, end_by - CLOSE_S + CLOSE_START_S)
        self._waiting.append({"close": True})
        while self._process is not None:
            if time.monotonic() > end_by:
                self._give_up(f"did not end within {CLOSE_S:g} s")
                return
            self._exchange(self._process)
            if self._process is not None:
                self._process.wait(0.05)

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
            "finish_timeout": CLOSE_S - 1,
            "finish_timeout_raises": True,
            "x_transaction_log_flush_interval": 1.0,  # in s: rows that a kill may lose
        }
        self._started = False
        self._start_by = time.monotonic() + START_S
        self._process = _WandbProcess({"argv": sys.argv, "init": init, "settings": settings})

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
        self._warn(f"{reason}; training continues without it, and {METRICS_FILE} has every row")
        self._waiting.clear()
        self._end()

    def _warn(self, text: str) -> None:
        emit("warning", text=f"Weights & Biases {text}")

    @property
    def _where(self) -> str:
        files = self._run_dir / "wandb" / f"{'offline-' if self._mode in NO_NETWORK else ''}run-*"
        return f"rows are kept in this run's directory, and `uv run wandb sync {files}` uploads them"

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class _WandbProcess:
    """A process that runs :mod:`mjlab_dist.learn.wandb_process`. Sending and receiving do not wait.

    Raises:
        ConnectionError: If the process has ended, when sending or receiving.
        OSError: If the process cannot be started.
    """

    def __init__(self, first: Message) -> None:
        """Start the process.

        Args:
            first: The first message.
        """
        # wandb's service process leaves files behind when it is killed.
        self._temporary = tempfile.TemporaryDirectory(prefix="mjlab-dist-", ignore_cleanup_errors=True)
        # This process may have a service process for other runs, which must not be shared.
        environ = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
        self._link, other_end = socket.socketpair()
        self._link.setblocking(False)
        self._unsent = _line(first)
        self._received = b""
        script = Path(__file__).with_name("wandb_process.py")
        with other_end:
            self._process = subprocess.Popen(
                # -P: modules beside the script are not importable by their bare names.
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
        """Wait until the process can receive or has sent something."""
        poll = select.poll()  # select() does not support descriptors above 1023
        poll.register(self._link, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.poll(1000 * timeout_s)

    def end(self) -> None:
        """Kill the process, and wandb's service process."""
        import psutil  # noqa: PLC0415 (slow to import, and needed at the end only)

        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)  # longer would not help if it hangs in the kernel
        self._link.close()
        self._temporary.cleanup()


def writers(config: TrainConfig, run_dir: Path, resumed_at: int | None) -> list[Writer]:
    """Create the writers of a run, for rank 0: metrics.jsonl, and the chosen logger.

    Args:
        config: The run's config.
        run_dir: The run directory.
        resumed_at: Iteration of the checkpoint that the run resumes from, 0 if it had none yet; rows of later
            iterations are removed. None for a new run.
    """
    rows = JsonlWriter(run_dir, resumed_at)
    chosen = WandbWriter(run_dir, config) if config.logger == "wandb" else TensorBoardWriter(run_dir, resumed_at)
    return [rows, chosen]


def scalars(row: Row, ranks: Sequence[Row] = ()) -> dict[str, float]:
    """Return the values of rows that can be plotted; names start with the group that they are shown in.

    Args:
        row: Metrics of an iteration.
        ranks: Metrics of each rank in it; ``rank_steps_per_s/0`` is one of rank 0.
    """
    of_ranks = {f"rank_{name}/{own['rank']}": value for own in ranks for name, value in own.items() if name != "rank"}
    return {
        name if "/" in name else f"{'perf' if name.endswith('_s') else 'train'}/{name}": float(value)
        for name, value in {**row, **of_ranks}.items()
        if value is not None and name != "iteration" and not name.startswith("rank_iteration/")
    }


def _line_of(row: Row) -> str:
    return json.dumps({k: _jsonable(v) for k, v in row.items()}) + "\n"


def _line(message: Message) -> bytes:
    return json.dumps(message, default=str).encode() + b"\n"


def _jsonable(value: float | int | None) -> float | int | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
