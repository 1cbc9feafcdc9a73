"""A task in another package, as in the README: an entry point, a config, an MJCF and a term."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Command

from mjlab_dist.runs.run_dir import read_config_file, read_metrics

MODEL = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body>
      <joint name="x" type="slide" axis="1 0 0"/>
      <geom type="sphere" size=".1" mass="1" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="x" ctrllimited="true" ctrlrange="-1 1"/></actuator>
</mujoco>
"""

TERMS = """
def near_the_middle(env):
    return 1.0 - env.sim.qpos[:, 0].abs()

def far_away(env, limit):
    return env.sim.qpos[:, 0].abs() > limit
"""

CONFIG = """
from mjlab_dist.config import ActionConfig, EnvConfig, EventConfig, ObservationConfig, RewardConfig
from mjlab_dist.config import SimConfig, TermConfig, TerminationConfig, TrainConfig

def stay() -> TrainConfig:
    \"\"\"Stay in the middle.\"\"\"
    return TrainConfig(
        task="ball-stay",
        num_envs=16,
        max_iterations=3,
        env=EnvConfig(
            sim=SimConfig(model="ball_tasks:ball.xml", decimation=2, njmax=0, nconmax=0),
            episode_length_s=0.5,
            actions={"push": ActionConfig(actuators=("push",), scale=10.0)},
            observations={"actor": {
                "position": ObservationConfig(func="mjlab_dist.mdp.observations:joint_position", params={"joint": "x"}),
                "velocity": ObservationConfig(func="mjlab_dist.mdp.observations:joint_velocity", params={"joint": "x"}),
            }},
            rewards={"near": RewardConfig(func="ball_tasks.terms:near_the_middle", weight=2.0)},
            terminations={"far": TerminationConfig(func="ball_tasks.terms:far_away", params={"limit": 0.5})},
            events={"start": EventConfig(
                func="mjlab_dist.mdp.events:draw_joint_position", params={"joint": "x", "low": -0.4, "high": 0.4}
            )},
        ),
    )
"""


def write_package(root: Path) -> None:
    package = root / "ball_tasks"
    package.mkdir()
    for name, text in {"__init__.py": "", "config.py": CONFIG, "terms.py": TERMS, "ball.xml": MODEL}.items():
        (package / name).write_text(text)
    info = root / "ball_tasks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ball-tasks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mjlab_dist.tasks]\nball-stay = ball_tasks.config:stay\n")


@pytest.mark.slow
def test_task_of_another_package_is_listed_and_trains(command: Command) -> None:
    write_package(command.cwd)
    env = {"PYTHONPATH": str(command.cwd)}
    listed = command("list-tasks", env=env)
    starts = {line.split()[0]: line for line in listed.out.splitlines()}
    column = starts["cartpole-balance"].index("Keep")
    assert starts["ball-stay"] == f"{'ball-stay':{column}}Stay in the middle."
    flags = ("--gpu-ids", "None", "--env.rewards.near.weight", "3", "--env.terminations.far.params.limit", "0.3")
    done = command("train", "ball-stay", *flags, env=env)
    assert done.code == 0, done.err
    (run,) = (command.cwd / "logs" / "ball-stay").iterdir()
    # The package is not installed in this environment. Its functions can therefore be read only with trust
    config = read_config_file(run, trust=True)
    assert config.env.rewards["near"].weight == 3
    assert config.env.terminations["far"].params == {"limit": 0.3}
    row = read_metrics(run)[-1]
    assert 0 < row["mean_episode_length"] < 25, "some balls have left"
    assert row["reward/near"] == row["mean_return"]
