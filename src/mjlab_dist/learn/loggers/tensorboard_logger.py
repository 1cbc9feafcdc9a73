"""TensorBoard's event files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.logger import Logger
from mjlab_dist.run_dir import animation_path


class TensorBoardLogger(Logger):
    """Writes TensorBoard's event file, with the iteration as the step."""

    def __init__(self, run_dir: Path, config: TrainConfig, resumed_at: int | None) -> None:  # noqa: ARG002
        """Open a new event file. A resumed run keeps its earlier files.

        Args:
            run_dir: The run directory.
            config: The run's config.
            resumed_at: See :class:`Logger`. TensorBoard ignores the points after this iteration in the earlier
                files.
        """
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (slow to import, and only rank 0 writes)

        self._run_dir = run_dir
        purge_step = None if resumed_at is None else resumed_at + 1
        self._writer = SummaryWriter(log_dir=str(run_dir), purge_step=purge_step)

    def log(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)
        # Flush, so that the file of a killed run has all points up to its newest checkpoint. This takes 0.2 ms.
        self._writer.flush()

    def video(self, file: Path, iteration: int) -> None:  # noqa: ARG002 (TensorBoard shows no mp4 files)
        """Add a video as an animated GIF, which TensorBoard shows among the images, and remove the GIF file."""
        from tensorboard.compat.proto import summary_pb2  # noqa: PLC0415 (slow to import)

        animation = animation_path(self._run_dir, iteration)
        data = animation.read_bytes()
        width, height = struct.unpack_from("<HH", data, 6)
        proto: Any = summary_pb2  # type checkers do not find its classes, which are created at import
        image = proto.Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
        events = self._writer.file_writer
        assert events is not None, "it is open"
        events.add_summary(proto.Summary(value=[proto.Summary.Value(tag="video", image=image)]), iteration)
        self._writer.flush()
        animation.unlink()

    def close(self) -> None:
        self._writer.close()
