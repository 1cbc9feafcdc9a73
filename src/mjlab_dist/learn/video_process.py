"""Videos during training: a separate process makes them, and rank 0 passes finished ones to its loggers.

Neither training nor a logger waits for the process. If it fails, training continues without videos.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed.heartbeat import STOP_SIGNALS, Control
from mjlab_dist.learn.loggers.all_loggers import LoggerGroup
from mjlab_dist.learn.metrics import Row
from mjlab_dist.machine.processes import kill_with_descendants
from mjlab_dist.messages import emit
from mjlab_dist.runs.run_dir import due_checkpoint, list_checkpoints, list_videos, remove_unfinished, video_path

# Maximum number of starts of the process. After two crashes, further crashes are likely.
MAX_STARTS = 2

# Maximum seconds to wait for the last video. `LAST_S_PER_S` is added for each second of the video.
LAST_S = 120.0

LAST_S_PER_S = 10.0

# Interval between checks for the last video, in seconds
POLL_S = 0.2


class VideoWriter:
    """Runs :mod:`mjlab_dist.policies.film` in a process, and gives videos to the loggers. A thread reads its output."""

    def __init__(self, run_dir: Path, config: TrainConfig, loggers: LoggerGroup) -> None:
        self._run_dir = run_dir
        self._config = config
        self._loggers = loggers
        self._finished: collections.deque[int] = collections.deque()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_last = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name="videos", daemon=True)
        self._thread.start()

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:  # noqa: ARG002 (only the loggers write rows)
        """Pass the videos that were finished since the last row to the loggers."""
        while self._finished:
            iteration = self._finished.popleft()
            self._loggers.video(video_path(self._run_dir, iteration), iteration)

    def finishing(self, control: Control) -> Callable[..., None]:
        """Return an exit callback for ``contextlib.ExitStack`` that calls :meth:`finish`, except after an error."""

        def leave(kind: type[BaseException] | None, *_: object) -> None:
            if kind is None:
                self.finish(control)

        return leave

    def finish(self, control: Control) -> None:
        """Wait for a video of the last checkpoint, and pass it to the loggers."""
        # Return if the process has already finished or failed
        checkpoints = list_checkpoints(self._run_dir)
        interval = self._config.video_interval or 1
        last = due_checkpoint(checkpoints, list_videos(self._run_dir), interval, is_last=True)
        if last is None or not self._thread.is_alive() or control.stop_requested:
            return
        emit("last_video", text=f"Making the video of iteration {last} (Ctrl-C ends the command without it).")
        # Request the video
        with self._lock:
            self._is_last = True
            self._request_last()
        # Wait for the video
        limit_s = LAST_S + LAST_S_PER_S * self._config.video_length
        end_by = time.monotonic() + limit_s
        while self._thread.is_alive() and not control.wait_for_stop(POLL_S):
            control.beat(last)
            emit("beat", rank=0, iteration=last)  # otherwise the launcher would consider this rank hung
            if time.monotonic() > end_by:
                emit("warning", text=f"the video of iteration {last} is not finished after {limit_s:g} s and is lost")
                break
        self.write({})
        if video_path(self._run_dir, last).exists():
            emit("status", text=f"Video: {video_path(self._run_dir, last)}")

    def close(self) -> None:
        """Kill the process; a video in progress is lost."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None and process.poll() is None:
            kill_with_descendants(process)
        self._thread.join(timeout=1)
        remove_unfinished(video_path(self._run_dir, 0).parent)

    def _watch(self) -> None:
        """Run the process until it ends. If this thread ended first, the kernel would kill the process."""
        # The process inherits this mask. Schedulers send SIGTERM to every process, but only the ranks should handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        for start in range(1, MAX_STARTS + 1):
            try:
                code = self._run()
            except OSError as error:
                emit("warning", text=f"videos: no process can be started ({error}); training continues without videos")
                return
            if code == 0 or self._is_closed:
                return
            how = f"was killed (signal {-code})" if code < 0 else f"ended (exit code {code})"
            then = "training continues without videos" if start == MAX_STARTS else "it is started again"
            emit("warning", text=f"videos: the process that makes them {how}; {then}")

    def _run(self) -> int:
        """Start the process, and return its exit code when it has ended."""
        # Start
        with self._lock:
            if self._is_closed:
                return 0
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mjlab_dist.policies.film", str(self._run_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={
                    **os.environ,
                    # Pass all of sys.path, as multiprocessing does: it includes the directory of the user's script.
                    "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
                    "CUDA_VISIBLE_DEVICES": "",  # so that it takes no GPU memory; EGL can still use the GPUs
                    "OMP_NUM_THREADS": "1",
                },
                start_new_session=True,  # Ctrl-C in the terminal is for the launcher only
            )
            self._request_last()
        # Read results until the process ends
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if "iteration" in message:
                self._finished.append(message["iteration"])
                emit("debug", text=f"video: {video_path(self._run_dir, message['iteration'])}")
            else:
                emit("warning", text=f"videos: {message['warning']}")
        return process.wait()

    def _request_last(self) -> None:
        """If training has ended, notify the process. The caller holds the lock."""
        if self._is_last and self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(b"last\n")
                self._process.stdin.flush()
            except OSError:
                pass  # the process has ended; a new one will be notified
