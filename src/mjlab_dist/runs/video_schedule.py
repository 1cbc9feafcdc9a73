"""Decide when training makes a video, and name unfinished video files. Imports only the standard library."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import parse_interval

# Prefix of files that are being written
UNFINISHED = ".unfinished."


def unfinished_path(file: Path) -> Path:
    """Return the path of a video or an animation while it is being written."""
    return file.with_name(UNFINISHED + file.name)


def remove_unfinished(directory: Path) -> None:
    """Remove the unfinished files of a killed process from a directory of videos."""
    for file in directory.glob(f"{UNFINISHED}*"):
        file.unlink(missing_ok=True)


def due_checkpoint(
    checkpoints: Collection[int], videos: Collection[int], interval: int, *, is_last: bool
) -> int | None:
    """Return the checkpoint to make a video of; None if no video is due.

    The first checkpoint at or after each multiple of ``interval`` iterations is due. If several checkpoints are due,
    because videos take longer than training, only the newest checkpoint gets a video.
    """
    newest = max(checkpoints, default=0)
    before = max((video for video in videos if video <= newest), default=0)
    is_due = newest > before if is_last else newest // interval > before // interval
    return newest if is_due else None


def describe(config: TrainConfig) -> str:
    """Describe in words when a run makes videos, and their length."""
    return f"{config.video_length:g} s, every {config.video_interval} iterations"


def note(config: TrainConfig) -> str | None:
    """Return a line for the user if videos may show iterations between multiples of the interval; None otherwise."""
    interval = config.video_interval
    iterations, seconds = parse_interval(config.checkpoint.interval)
    if interval is None or (iterations is not None and interval % iterations == 0):
        return None
    unit = f"{iterations} iterations" if seconds is None else f"{seconds:g} s"
    return (
        f"Videos show checkpoints, which are written every {unit}. Each video shows the first checkpoint at or after a "
        f"multiple of {interval} iterations (--video-interval {interval}, --checkpoint.interval "
        f"{config.checkpoint.interval})."
    )
