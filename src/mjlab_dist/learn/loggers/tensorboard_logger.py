"""TensorBoard's event files."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.learn.loggers import Logger
from mjlab_dist.runs.run_dir import animation_path


class TensorBoardLogger(Logger):
    """Writes TensorBoard's event file, with the iteration as the step.

    Unlike torch's SummaryWriter, it writes in the caller's thread, and raises the errors there. The thread of
    SummaryWriter also prints a traceback if the disk is full.
    """

    def __init__(self, run_dir: Path, config: TrainConfig, resumed_at: int | None) -> None:  # noqa: ARG002
        """Open a new event file. A resumed run keeps its earlier files."""
        from tensorboard.compat.proto import event_pb2, summary_pb2  # slow to import
        from tensorboard.summary.writer.record_writer import RecordWriter  # slow to import

        self._run_dir = run_dir
        # Type checkers do not find the classes, which are created at import
        events: Any = event_pb2
        summaries: Any = summary_pb2
        self._event, self._summary = events.Event, summaries.Summary
        # TensorBoard reads the files in the order of their names
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = RecordWriter((run_dir / name).open("wb"))
        self._write(file_version="brain.Event:2")
        if resumed_at is not None:
            self._write(step=resumed_at + 1, session_log=events.SessionLog(status=events.SessionLog.START))

    def log(self, row: Mapping[str, float], step: int) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        self._write(step=step, summary=self._summary(value=values))

    def video(self, file: Path, iteration: int) -> None:  # noqa: ARG002 (TensorBoard shows no mp4 files)
        """Add a video as an animated GIF, which TensorBoard shows among the images, and remove the GIF file."""
        animation = animation_path(self._run_dir, iteration)
        data = animation.read_bytes()
        width, height = struct.unpack_from("<HH", data, 6)
        image = self._summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
        self._write(step=iteration, summary=self._summary(value=[self._summary.Value(tag="video", image=image)]))
        animation.unlink()

    def close(self) -> None:
        self._file.close()

    def _write(self, **event: object) -> None:
        self._file.write(self._event(wall_time=time.time(), **event).SerializeToString())
        # Flush, so that the file of a killed run has all points up to its newest checkpoint
        self._file.flush()
