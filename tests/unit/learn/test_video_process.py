"""Videos are made at intervals. Intervals that do not match those of checkpoints are reported."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mjlab_dist.config import CheckpointConfig, TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.config.registry import task_config
from mjlab_dist.errors import UserError
from mjlab_dist.launch.plan import video_note
from mjlab_dist.runs.run_dir import due_checkpoint


def config_with(checkpoints: int | str = 50, **fields: Any) -> TrainConfig:
    return dataclasses.replace(
        task_config("cartpole-balance"), checkpoint=CheckpointConfig(interval=checkpoints), **fields
    )


@pytest.mark.parametrize(
    ("checkpoints", "videos", "due", "due_at_the_end"),
    [
        ([], [], None, None),
        ([50], [], None, 50),
        ([50, 100], [], 100, 100),
        ([50, 100], [100], None, None),
        ([100, 150], [100], None, 150),
        ([100, 150, 200, 250, 300], [100], 300, 300),
        ([130, 210], [130], 210, 210),
        ([50], [100, 200], None, 50),
        ([100], [100, 200], None, None),
    ],
)
def test_a_video_is_due_for_the_first_checkpoint_after_each_interval(
    checkpoints: list[int], videos: list[int], due: int | None, due_at_the_end: int | None
) -> None:
    assert due_checkpoint(checkpoints, videos, 100, is_last=False) == due
    assert due_checkpoint(checkpoints, videos, 100, is_last=True) == due_at_the_end


def test_only_intervals_that_do_not_fit_are_noted() -> None:
    assert video_note(config_with()) is None
    assert video_note(config_with(video_interval=100)) is None
    for interval, checkpoints in ((5, 50), (75, 50), (100, "60s")):
        text = video_note(config_with(checkpoints, video_interval=interval))
        assert text is not None
        assert f"--video-interval {interval}" in text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"video_interval": 0}, "--video-interval 0: must be at least 1"),
        ({"video_length": 0.0}, "--video-length 0.0: must be above 0"),
        ({"video_length": 61.0}, "--video-length 61.0: .* at most 60"),
        ({"video_length": float("nan")}, "--video-length nan: "),
    ],
)
def test_bad_values_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(config_with(**fields))
