"""On two CPU ranks, robots learn to walk, and an arm learns to lift, within the iterations of their tasks.

Some of the tasks are those that new-task writes.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from conftest import BIN, Command

from mjlab_dist.runs.run_dir import read_metrics
from mjlab_dist_tasks import humanoid

SCRIPT = Path(__file__).parents[2] / "scripts" / "follow_velocity.py"

QUADRUPED = Path(__file__).parents[1] / "data" / "models" / "quadruped.xml"

HUMANOID = Path(humanoid.__file__).parent / "humanoid.xml"

CHEETAH = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "half_cheetah.xml"


def new_task(command: Command, mjcf: Path) -> dict[str, str]:
    """Make and install the task new-robot, and return the environment variables with which it is found."""
    made = command("mjlab-dist", "new-task", "new-robot", "--mjcf", str(mjcf), timeout_s=600)
    assert made.code == 0, made.err
    site = command.cwd / "site"
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(command.cwd / "new_robot")]
    subprocess.run(install, check=True, cwd=command.cwd)
    return {"PYTHONPATH": str(site)}


def train(command: Command, task: str, env: dict[str, str], *flags: str) -> Path:
    """Train a task, and return the run."""
    flags = ("--gpu-ids", "None", "--cpu-ranks", "2", "--seed", "1", *flags)
    done = command("train", task, *flags, env=env, timeout_s=3000)
    assert done.code == 0, done.err
    (run,) = (command.cwd / "logs" / task).iterdir()
    return run


def follow(
    command: Command, run: Path, env: dict[str, str], *flags: str, min_strides_hz: float = 1.5
) -> dict[str, Any]:
    """Return how a policy follows velocity commands, after checks of its gait."""
    followed = command(str(BIN / "python"), str(SCRIPT), str(run), "--json", *flags, env=env, timeout_s=600)
    figures = json.loads(followed.out.splitlines()[-1])
    assert figures["error_m_s"] <= 0.15, figures
    forward = figures["commands"]["forward"]
    assert forward["lift_cm"] >= 3
    assert min_strides_hz <= forward["strides_hz"] <= 3.5
    assert forward["tilt_deg"] <= 5
    return figures


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_quadruped_follows_commands_and_lifts_its_feet(command: Command) -> None:
    run = train(command, "quadruped-velocity-flat", {})
    figures = follow(command, run, {})
    assert figures["fell"] <= 0.05, figures  # 0.013 to 0.019 in three runs
    # Pyramidal friction cones, with which the task trains, would turn the robots
    straight = follow(command, run, {}, "--nominal", "--full-physics")
    assert straight["commands"]["forward"]["path_deg"] <= 5, straight


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_humanoid_walks(command: Command) -> None:
    figures = follow(command, train(command, "humanoid-velocity-flat", {}), {}, min_strides_hz=1.4)
    forward = figures["commands"]["forward"]
    assert forward["forward_m_s"] >= 0.8, figures
    assert forward["fell"] <= 1, figures  # of 32


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_arm_brings_the_cube_to_its_target(command: Command) -> None:
    run = train(command, "arm-lift-cube", {})
    done = command("mjlab-dist", "evaluate", "arm-lift-cube", "--run", str(run), "--json", timeout_s=600)
    assert done.code == 0, done.err
    (result,) = json.loads(done.out)["results"]
    assert result["columns"]["metric/success"]["mean"] >= 0.9, result


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_quadruped_of_new_task_walks_straight(command: Command) -> None:
    env = new_task(command, QUADRUPED)
    figures = follow(command, train(command, "new-robot", env), env)
    assert figures["fell"] <= 0.01, figures
    assert figures["commands"]["forward"]["path_deg"] <= 5, figures


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_humanoid_of_new_task_walks(command: Command) -> None:
    env = new_task(command, HUMANOID)
    figures = follow(command, train(command, "new-robot", env), env, min_strides_hz=1.4)
    assert figures["fell"] <= 0.1, figures  # 0.059 in one run, all at the highest speed
    assert figures["commands"]["half"]["fell"] <= 1, figures  # of 32, at 0.5 m/s


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_cheetah_of_new_task_runs(command: Command) -> None:
    env = new_task(command, CHEETAH)
    row = read_metrics(train(command, "new-robot", env, "--max-iterations", "60"))[-1]
    num_steps = 500.0  # 10 s at 50 Hz
    assert row["mean_episode_length"] >= 0.9 * num_steps
    assert row["reward/forward"] >= 0.8 * num_steps
