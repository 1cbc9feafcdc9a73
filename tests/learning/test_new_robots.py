"""On tasks that new-task writes, training on two CPU ranks reaches the goal."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import gymnasium
import pytest
from conftest import Command

import mjlab_dist_tasks
from mjlab_dist.runs.run_dir import read_metrics

STEPS = 500.0
"""Control steps of an episode: 10 s at 50 Hz."""

GYM = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"

OWN = Path(mjlab_dist_tasks.__file__).parent


class Robot(NamedTuple):
    """A robot, and the reward that it must reach."""

    mjcf: Path
    iterations: int
    reward: str
    """Reward term that is 1 in each step in which the goal is reached."""
    share: float
    """Minimum share of the steps in which the goal must be reached."""


ROBOTS = {
    "cheetah": Robot(GYM / "half_cheetah.xml", 60, "forward", 0.8),
    "quadruped": Robot(OWN / "quadruped" / "quadruped.xml", 100, "forward", 0.8),
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("robot", ROBOTS.values(), ids=ROBOTS)
def test_a_new_task_learns_its_goal(command: Command, robot: Robot) -> None:
    made = command("mjlab-dist", "new-task", "new-robot", "--mjcf", str(robot.mjcf), timeout_s=600)
    assert made.code == 0, made.err
    site = command.cwd / "site"
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(command.cwd / "new_robot")]
    subprocess.run(install, check=True, cwd=command.cwd)

    flags = ("--gpu-ids", "None", "--cpu-ranks", "2", "--seed", "1", "--max-iterations", str(robot.iterations))
    done = command("mjlab-dist", "train", "new-robot", *flags, env={"PYTHONPATH": str(site)}, timeout_s=3000)
    assert done.code == 0, done.err
    (run,) = (command.cwd / "logs" / "new-robot").iterdir()
    row = read_metrics(run)[-1]
    assert row["mean_episode_length"] >= 0.9 * STEPS
    assert row[f"reward/{robot.reward}"] >= robot.share * STEPS
