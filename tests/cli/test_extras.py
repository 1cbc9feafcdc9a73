"""Without extras, training works, and a command that needs an extra names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command
from run_files import only_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the commands in an environment without extras."""
    venv = tmp_path_factory.mktemp("light") / "venv"
    env = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(venv), "UV_LINK_MODE": "symlink"}
    sync = ["uv", "sync", "--quiet", "--no-default-groups", "--python", sys.executable]
    subprocess.run(sync, cwd=ROOT, env=env, check=True)
    return venv / "bin"


@pytest.mark.slow
def test_training_and_videos_need_no_extra(programs: Path, command: Command) -> None:
    flags = ("--gpu-ids", "None", "--cpu-ranks", "2", "--num-envs", "16", "--max-iterations", "2")
    for name, *words in (
        ("train", "cartpole-balance", *flags),
        ("play", "cartpole-balance", "--video", "balance.mp4", "--seconds", "0.1"),
        ("mjlab-dist", "doctor"),
    ):
        done = command(str(programs / name), *words)
        assert done.code == 0, done.err
    assert "wandb is missing" in done.out
    assert len((only_run(command.cwd) / "metrics.jsonl").read_text().splitlines()) == 2
    assert (command.cwd / "balance.mp4").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("mjlab-dist export cartpole-balance", "export"),
        ("train gym-hopper --gpu-ids None", "gym"),
        ("python -m mjlab_dist.gymnasium", "gym"),
        ("mjlab-dist compare latest --output curves.png", "plots"),
        ("mjlab-dist new-task my-go2 --robot go2", "robots"),
        ("train cartpole-balance --gpu-ids None --logger trackio", "trackio"),
        ("play cartpole-balance --viewer web", "viewer"),
        ("mjlab-dist watch latest", "viewer"),
        ("train cartpole-balance --gpu-ids None --logger wandb", "wandb"),
    ],
)
def test_what_needs_an_extra_names_it(programs: Path, command: Command, words: str, extra: str) -> None:
    program, *rest = words.split()
    done = command(str(programs / program), *rest)
    assert done.code != 0
    *traceback, line = done.err.splitlines()
    assert " is missing (" in line
    assert f'"mjlab-dist[{extra}]"' in line
    assert not traceback or program == "python"
