"""The process that makes videos during training. It plays new checkpoints of a run on one core.

:class:`~mjlab_dist.learn.video_process.VideoWriter` of rank 0 starts this process, and reads one JSON object per line
from it: ``{"iteration": n}`` for a finished video, ``{"warning": text}`` for a line to print. A line on standard input
means that training has ended: the process makes a video of the last checkpoint and ends. It also ends when standard
input is closed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.config import PlayConfig, TrainConfig
from mjlab_dist.distributed.rank import seed_generators
from mjlab_dist.errors import with_notes
from mjlab_dist.imports import import_learner
from mjlab_dist.machine.processes import die_with_parent
from mjlab_dist.messages import Event, listening
from mjlab_dist.policies.policy_episodes import load_env, play_policy
from mjlab_dist.runs.run_dir import (
    animation_path,
    checkpoint_path,
    due_checkpoint,
    list_checkpoints,
    list_videos,
    read_config_file,
    remove_unfinished,
    unfinished_path,
    video_path,
)

if TYPE_CHECKING:
    from mjlab_dist.env import Env

# Number added to the process's niceness. If ranks use every core, the process gets about a tenth of one core.
NICENESS = 10

# Interval between checks for a new checkpoint, in seconds
POLL_S = 1.0

# Maximum number of frames of an animation for TensorBoard. It is low because a GIF is much larger than a video.
MAX_ANIMATION_FRAMES = 100

# Maximum frame rate of an animation
ANIMATION_FPS = 10


def main(run_dir: Path) -> None:
    """Make videos of a run until standard input reports the end of training."""
    die_with_parent()
    os.nice(NICENESS)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    # Standard output is a pipe to rank 0. Keep the pipe for this module, and discard what libraries print
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def report(**message: object) -> None:
        pipe.write(json.dumps(message) + "\n")

    try:
        _make_videos(run_dir, report)
    except Exception as error:  # noqa: BLE001 (whatever fails here would fail again)
        report(warning=f"{type(error).__name__}: {with_notes(error)}; training continues without videos")


def _make_videos(run_dir: Path, report: Callable[..., None]) -> None:
    config = read_config_file(run_dir, trust=True)  # trusted: rank 0 of this run started this process
    assert config.video_interval is not None
    camera = _Camera(run_dir, config)
    warned: set[str] = set()

    def listen(event: Event) -> None:
        if event["kind"] == "warning" and event["text"] not in warned:
            warned.add(event["text"])
            report(warning=event["text"])

    is_last = False
    with listening(listen):
        while not is_last:
            if select.select([sys.stdin], [], [], POLL_S)[0]:
                if not sys.stdin.readline():
                    return
                is_last = True
            iteration = due_checkpoint(
                list_checkpoints(run_dir), list_videos(run_dir), config.video_interval, is_last=is_last
            )
            if iteration is not None and camera.record(iteration):
                report(iteration=iteration)


class _Camera:
    """Plays checkpoints in one env. At the first checkpoint, imports packages and builds the env."""

    def __init__(self, run_dir: Path, config: TrainConfig) -> None:
        self._run_dir = run_dir
        self._config = config
        self._env: Env | None = None
        folder = video_path(run_dir, 0).parent
        folder.mkdir(exist_ok=True)
        remove_unfinished(folder)

    def record(self, iteration: int) -> bool:
        """Make the video of a checkpoint; return False if training has removed the checkpoint in the meantime."""
        checkpoint, file = checkpoint_path(self._run_dir, iteration), video_path(self._run_dir, iteration)
        play = PlayConfig(video=str(unfinished_path(file)), seconds=self._config.video_length, num_envs=1)
        if self._env is None:
            import_learner()
            self._env = load_env(self._config, play.num_played, play.seed)

        from mjlab_dist.learn.networks import load_policy  # imports torch

        try:
            policy = load_policy(self._env, self._config, checkpoint)
        except Exception:
            if not checkpoint.exists():
                return False
            raise
        seed_generators(play.seed)  # the same start state in every video
        play_policy(self._env, policy, checkpoint, play)
        if "tensorboard" in self._config.logger:
            _animate(Path(str(play.video)), animation_path(self._run_dir, iteration))
        Path(str(play.video)).replace(file)
        return True


def _animate(video: Path, file: Path) -> None:
    """Write an animation of a video, with half the width and height and with fewer frames."""
    import imageio.v3 as imageio  # slow to import

    info = imageio.immeta(video)
    num_frames = info["fps"] * info["duration"]
    stride = max(1, round(info["fps"] / ANIMATION_FPS), math.ceil(num_frames / MAX_ANIMATION_FRAMES))
    frames = [frame[::2, ::2] for i, frame in enumerate(imageio.imiter(video)) if i % stride == 0]
    temporary = unfinished_path(file)
    imageio.imwrite(temporary, frames, duration=1000 * stride / info["fps"], loop=0)
    temporary.replace(file)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the rank has ended
        main(Path(sys.argv[1]))
