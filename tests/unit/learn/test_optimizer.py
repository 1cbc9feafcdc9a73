"""The learning rate that iterations of a run report. test_ppo.py compares the adaptive schedule with rsl_rl's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.distributed import Rank
from mjlab_dist.env import Env
from mjlab_dist.learn.runner import Runner
from mjlab_dist.runs.run_dir import read_metrics
from mjlab_dist.sim import start_warp


def rates(config: TrainConfig, run_dir: Path) -> list[float]:
    """Train or resume, and return the learning rate of every iteration of the run."""
    start_warp("cpu")
    Runner(Env(config.env, 4, "cpu"), config, Rank(), run_dir).train()
    return [row["learning_rate"] for row in read_metrics(run_dir)]


@pytest.mark.slow
def test_the_linear_schedule_ends_at_0_for_any_length_and_after_a_resume(tmp_path: Path) -> None:
    task = registry.task_config("cartpole-balance")
    agent = dataclasses.replace(task.agent, schedule="linear", learning_rate=8e-4, num_steps_per_env=4)
    run = dataclasses.replace(task, num_envs=4, total_num_envs=None, max_iterations=4, agent=agent)
    assert rates(run, tmp_path / "whole") == pytest.approx([8e-4, 6e-4, 4e-4, 2e-4])
    assert rates(dataclasses.replace(run, total_timesteps=32), tmp_path / "steps") == pytest.approx([8e-4, 4e-4])
    # After a resume with more iterations, the rate equals that of a run that had the new length from the start.
    longer = dataclasses.replace(run, max_iterations=8)
    assert rates(longer, tmp_path / "whole")[4:] == pytest.approx([4e-4, 3e-4, 2e-4, 1e-4])
    fixed = dataclasses.replace(run, agent=dataclasses.replace(agent, schedule="fixed"))
    assert rates(fixed, tmp_path / "fixed") == pytest.approx([8e-4] * 4)
    # A fixed rate is that of the flag, also after a resume.
    slower = dataclasses.replace(longer, agent=dataclasses.replace(fixed.agent, learning_rate=1e-4))
    assert rates(slower, tmp_path / "fixed")[4:] == pytest.approx([1e-4] * 4)
