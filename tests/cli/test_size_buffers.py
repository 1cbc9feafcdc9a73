"""mjlab-dist size-buffers on a box on a plane, whose number of contacts, and thus the right result, is known."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from conftest import Command, Done

from mjlab_dist.config.physics import BUFFER_MARGIN, MIN_BUFFER, SHARED_MARGIN, size_for

SIZE_BUFFERS = ("mjlab-dist", "size-buffers")
BOX = Path(__file__).parents[1] / "data" / "models" / "box.xml"

CONFIG = """
from mjlab_dist.config import ActionConfig, EnvConfig, ObservationConfig, PpoConfig, RewardConfig, SimConfig
from mjlab_dist.config import TrainConfig

def lie() -> TrainConfig:
    \"\"\"Fall, and lie.\"\"\"
    return TrainConfig(
        task="box-lie",
        agent=PpoConfig(num_steps_per_env=8, num_mini_batches=1),
        env=EnvConfig(
            sim=SimConfig(model="box_tasks:box.xml", njmax=16, nconmax=8),
            episode_length_s=2.0,
            actions={"push": ActionConfig(actuators=(".*",), scale=0.1)},
            observations={"actor": {"down": ObservationConfig(func="mjlab_dist.mdp.observations:projected_gravity")}},
            rewards={"alive": RewardConfig(func="mjlab_dist.mdp.rewards:alive", weight=1.0)},
        ),
    )
"""

ROWS, CONTACTS = 16, 4
"""The box's four corners touch the plane. Each contact has a pyramidal cone, with four constraint rows."""

NUM_ENVS = 32


@pytest.fixture
def env(command: Command) -> dict[str, str]:
    """Environment variables that let commands find the task."""
    package = command.cwd / "box_tasks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "config.py").write_text(CONFIG)
    (package / "box.xml").write_text(BOX.read_text())
    info = command.cwd / "box_tasks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: box-tasks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mjlab_dist.tasks]\nbox-lie = box_tasks.config:lie\n")
    return {"PYTHONPATH": str(command.cwd)}


def measured(command: Command, env: dict[str, str], *flags: str) -> Done:
    """Run size-buffers for enough steps that the box comes to rest."""
    size = ("--num-envs", str(NUM_ENVS), "--steps", "120", "--gpu-ids", "None")
    done = command(*SIZE_BUFFERS, "box-lie", *size, *flags, env=env, timeout_s=600)
    assert done.code == 0, done.err
    return done


def table_of(done: Done) -> dict[str, list[str]]:
    rows = [line.strip("│").split("│") for line in done.out.splitlines() if line.startswith("│")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


@pytest.mark.slow
def test_the_contacts_of_a_box_are_counted(command: Command, env: dict[str, str]) -> None:
    done = measured(command, env)
    njmax, nconmax = (
        size_for(BUFFER_MARGIN * ROWS, is_possible=True),
        size_for(SHARED_MARGIN * CONTACTS, is_possible=True),
    )
    assert table_of(done) == {
        "constraints": [str(ROWS), "", "", "njmax 16", str(njmax)],
        "contacts": [str(CONTACTS), f"{CONTACTS:.1f}", str(CONTACTS * NUM_ENVS), "nconmax 8", str(nconmax)],
        "near pairs": ["", "1.0", str(NUM_ENVS), "", ""],
    }
    assert done.out.splitlines()[-1] == f"--env.sim.njmax {njmax} --env.sim.nconmax {nconmax}"
    assert "njmax 16 and nconmax" not in done.out, "measured once"
    assert "NEFC" not in done.out
    assert sorted(path.name for path in command.cwd.iterdir()) == ["box_tasks", "box_tasks-1.0.dist-info"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "again", "times_named"),
    [
        (("8", "8"), "njmax 16 and nconmax 8", 2),
        (("16", "0"), "njmax 16 and nconmax 4", 0),
    ],
)
def test_an_overflow_is_measured_again_with_more_room(
    command: Command, env: dict[str, str], sizes: tuple[str, str], again: str, times_named: int
) -> None:
    done = measured(command, env, "--env.sim.njmax", sizes[0], "--env.sim.nconmax", sizes[1])
    assert done.out.count(again) == 1
    assert done.out.count("NEFC") == times_named, "named as the reason of the second measurement, and in the verdict"
    table = table_of(done)
    assert table["constraints"][0] == str(ROWS)
    assert table["contacts"][:3] == [str(CONTACTS), f"{CONTACTS:.1f}", str(CONTACTS * NUM_ENVS)]
    assert [table["constraints"][3], table["contacts"][3]] == [f"njmax {sizes[0]}", f"nconmax {sizes[1]}"]


@pytest.mark.slow
def test_a_run_is_measured_with_its_policy_and_config(command: Command, env: dict[str, str]) -> None:
    flags = ("--gpu-ids", "None", "--num-envs", str(NUM_ENVS), "--max-iterations", "1", "--env.sim.nconmax", "12")
    assert command("mjlab-dist", "train", "box-lie", *flags, env=env, timeout_s=600).code == 0
    (run,) = (command.cwd / "logs" / "box-lie").iterdir()
    done = measured(command, env, "--run", "latest")
    assert re.search(rf"and the policy of logs/box-lie/{run.name}/checkpoints/\S+, on cpu", done.out)
    assert table_of(done)["contacts"][3] == "nconmax 12", "the run's config"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["no-such-task"], "unknown task no-such-task"),
        (["cartpole-balance", "--steps", "0"], "--steps 0: must be at least 1"),
        (["cartpole-balance", "--num-envs", "auto"], "--num-envs auto: works only for training"),
        (["cartpole-balance", "--run", "gone"], "--run gone: is not a run directory"),
        (["cartpole-balance", "--run", "latest", "--config", "x"], "--run latest: "),
        (["--run", "latest"], "--run latest: no task is named"),
        (["cartpole-balance", "--env.sim.njmax", "-1"], "--env.sim.njmax -1: must be at least 0"),
    ],
)
def test_invalid_input_is_refused_in_one_line(command: Command, args: list[str], says: str) -> None:
    done = command.here(*SIZE_BUFFERS, *args)
    assert done.code == 2
    assert says in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


def test_sizes_are_large_enough_and_take_few_different_values() -> None:
    sizes = [size_for(n, is_possible=False) for n in range(400)]
    assert all(n <= size < n + 16 for n, size in enumerate(sizes))
    assert all(after >= before for before, after in itertools.pairwise(sizes))
    assert len(set(sizes)) < 40
    assert sizes[0] == 0
    assert size_for(0, is_possible=True) == MIN_BUFFER
