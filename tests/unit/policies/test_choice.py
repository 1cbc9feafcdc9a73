"""Command lines that the command play refuses before it imports large libraries."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from run_files import write_checkpoint

from mjlab_dist.config import PlayConfig, registry
from mjlab_dist.errors import UserError
from mjlab_dist.policies.choice import grid, num_frames, resolve
from mjlab_dist.runs.run_dir import CONFIG_FILE, to_yaml


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": 0.0}, "--seconds 0.0: must be"),
        ({"seconds": math.inf}, "--seconds inf: must be"),
        ({"seconds": math.nan}, "--seconds nan: must be"),
        ({"video": "a.mp4", "env": (16,)}, r"--env 16: .* 0 to 15 \(--num-envs 16\)"),
        ({"video": "a.mp4", "env": (0, -1)}, "--env 0 -1: .* 0 to 15"),
        ({"video": "a.mp4", "env": ()}, "--env : name one or more"),
        ({"video": "a.mp4", "width": 14}, "--width 14: .* at least 16"),
        ({"video": "a.mp4", "height": 4098}, "--height 4098: .* at most 4096"),
        ({"video": "a.mp4", "height": 481}, "--height 481: must be an even number"),
        ({"video": "a.mp4", "env": tuple(range(16)), "width": 126}, "--width 126: .* 16 envs; use 128"),
        ({"camera": "top", "width": 320}, "--camera and --width: there is no video"),
        ({"env": (3,)}, "--env: there is no video"),
        ({"frames": "a.png", "video": "a.mp4"}, "--frames a.png: .* --video a.mp4"),
        ({"frames": "a.jpg"}, "--frames a.jpg: give a file that ends in .png"),
        ({"video": "a.webm"}, "--video a.webm: give a file that ends in .mp4 or .gif"),
        ({"frames": "none/a.png"}, "--frames none/a.png: there is no directory none"),
        ({"frames": "a.png", "nan_dump": "dump.pt"}, "--frames a.png: .* --nan-dump dump.pt"),
        ({"frames": "a.png", "env": (0, 1)}, "--env 0 1: a strip shows one env"),
        ({"frames": "a.png", "env": (16,)}, "--env 16: .* 0 to 15"),
        ({"frames": "a.png", "width": 399}, "--width 399: .* two square frames with --height 200; use 400"),
        ({"frames": "a.png", "height": 8}, "--height 8: must be at least 16 and at most 4096"),
        ({"nan_dump": "dump.pt", "seconds": 1.0}, "--nan-dump dump.pt: .* --seconds"),
        ({"nan_dump": "dump.pt", "video": "a.mp4", "env": (3,)}, "--nan-dump dump.pt: .* --env"),
    ],
)
def test_bad_values_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        resolve("cartpole-balance", PlayConfig(**changes))
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_its_run_or_of_another_program_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = Path("checkpoints", "model_1.pt")
    write_checkpoint(checkpoint)
    with pytest.raises(UserError, match=rf"^--checkpoint {checkpoint}: is in no run directory, [^-]*$"):
        resolve("cartpole-balance", PlayConfig(checkpoint=str(checkpoint)))
    Path(CONFIG_FILE).write_text(to_yaml(registry.task_config("cartpole-balance")))
    assert resolve("cartpole-balance", PlayConfig(checkpoint=str(checkpoint)))[1] == checkpoint
    write_checkpoint(checkpoint, model_state_dict={})
    for chosen in (PlayConfig(checkpoint=str(checkpoint)), PlayConfig(run=".")):
        with pytest.raises(UserError, match=rf"^checkpoint {checkpoint}: .*rsl_rl below version 5"):
            resolve("cartpole-balance", chosen)


def test_grids_hold_all_pictures() -> None:
    assert [grid(n) for n in (1, 2, 3, 4, 5, 9, 10)] == [(1, 1), (2, 1), (2, 2), (2, 2), (3, 2), (3, 3), (4, 3)]
    for n in range(1, 200):
        columns, rows = grid(n)
        assert columns * (rows - 1) < n <= columns * rows


def test_a_strip_has_as_many_nearly_square_frames_as_fit() -> None:
    assert num_frames(PlayConfig(frames="a.png")) == 6
    assert [num_frames(PlayConfig(frames="a.png", width=w, height=100)) for w in (200, 249, 251, 1000)] == [2, 2, 3, 10]
