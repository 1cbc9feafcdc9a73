"""mjlab_dist.play returns the frames of a policy, which a notebook shows as a video."""

from __future__ import annotations

import base64
import re
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
from conftest import Command

import mjlab_dist
from mjlab_dist import UserError
from mjlab_dist.policies import PlayResult

TASK = "quadruped-velocity-flat"


def play(**fields: Any) -> PlayResult:
    return mjlab_dist.play(TASK, run="pretrained", width=96, height=64, quiet=True, **fields)


@pytest.mark.slow
def test_frames_are_those_of_the_video(command: Command) -> None:
    played = play(seconds=0.4)
    assert played.frames is not None
    assert played.frames.shape == (10, 64, 96, 3)
    assert played.frames.dtype == np.uint8
    assert (played.fps, played.returns) == (25.0, [])
    # The robot moves
    assert not np.array_equal(played.frames[0], played.frames[-1])
    # A notebook shows the video that the command writes
    shown = re.search(r"base64,([^\"]+)", str(played._repr_html_()))
    assert shown
    video = iio.imread(base64.b64decode(shown[1]), extension=".mp4")
    done = command.here(
        *("play", TASK, "--run", "pretrained", "--seconds", "0.4", "--num-envs", "1"),
        *("--width", "96", "--height", "64", "--video", "robot.mp4"),
    )
    assert done.code == 0, done.err
    assert np.array_equal(video, iio.imread(command.cwd / "robot.mp4"))
    assert np.abs(video.astype(float) - played.frames).mean() < 4, "frames of other times differ by 7"


@pytest.mark.slow
def test_fields_of_the_env_change_it() -> None:
    short = play(seconds=None, disturbances=False, **{"env.episode_length_s": 0.1})
    assert short.lengths == [5]
    assert short.outcomes["termination/time_limit"] == 1
    assert short.frames is not None
    assert len(short.frames) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"run": "missing"},
        {"task": "missing"},
        {"width": 95},
        {"env": (1,)},
        {"seconds": -1.0},
        {"agent.gamma": 0.9},
        {"video": "robot.mp4"},
        {"env.rewards.missing": None},
    ],
    ids=str,
)
def test_mistakes_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        mjlab_dist.play(**{"task": TASK, "run": "pretrained", **fields})
