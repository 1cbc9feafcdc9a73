"""PPO and SAC in configs: files, command lines, settings of tasks, and settings that are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from configs import typed

from mjlab_dist.config import PpoConfig, SacConfig, TrainConfig, registry
from mjlab_dist.config.checks import validate
from mjlab_dist.config.serialization import FieldError, from_plain, to_plain
from mjlab_dist.errors import UserError
from mjlab_dist.launch.budget import budget_of
from mjlab_dist.runs.run_dir import to_yaml


def config(**fields: Any) -> TrainConfig:
    base = registry.task_config("cartpole-balance", "sac")
    return dataclasses.replace(base, agent=dataclasses.replace(base.agent, **fields))


def refusal_of(changed: TrainConfig, world_size: int = 1, num_envs: int = 64) -> str:
    def settle() -> None:
        validate(changed)
        budget_of(changed, world_size, num_envs)

    with pytest.raises(UserError) as caught:
        settle()
    return str(caught.value)


def test_the_algorithm_comes_back_from_a_file() -> None:
    plain = to_plain(config(tau=0.1))
    assert plain["agent"]["algorithm"] == "sac"
    assert from_plain(plain) == config(tau=0.1)
    # A file without it is of PPO
    plain["agent"] = {"lam": 0.5}
    assert from_plain(plain).agent == PpoConfig(lam=0.5)


@pytest.mark.parametrize(
    ("agent", "path"),
    [
        ({"algorithm": "dqn"}, "agent.algorithm"),
        ({"algorithm": "sac", "lam": 0.9}, "lam"),
        ({"algorithm": "sac", "tau": "fast"}, "agent.tau"),
    ],
)
def test_files_with_mistakes_are_refused(agent: dict[str, Any], path: str) -> None:
    with pytest.raises(FieldError) as caught:
        from_plain({**to_plain(config()), "agent": agent})
    assert caught.value.path == path


def test_the_flag_chooses_the_algorithm(tmp_path: Path) -> None:
    assert typed("cartpole-balance").agent == registry.task_config("cartpole-balance").agent
    assert typed("cartpole-balance", "--algorithm", "sac", "--agent.tau", "0.1").agent == SacConfig(tau=0.1)
    with pytest.raises(UserError, match=r"^--agent\.tau: "):
        typed("cartpole-balance", "--agent.tau", "0.1")
    # A file has an algorithm of its own
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config(tau=0.2)))
    assert typed("--config", str(file), "--algorithm", "sac").agent == SacConfig(tau=0.2)
    with pytest.raises(UserError, match=r"^--algorithm ppo: "):
        typed("--config", str(file), "--algorithm", "ppo")


def test_a_task_can_have_settings_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "tasks_for_both-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tasks_for_both\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nboth = tasks_for_both:task\n")
    (tmp_path / "tasks_for_both.py").write_text(
        "from dataclasses import replace\n"
        "from mjlab_dist.config import SacConfig, registry\n"
        "def task(algorithm='ppo'):\n"
        "    config = registry.task_config('cartpole-balance')\n"
        "    return replace(config, num_envs=7, agent=SacConfig(tau=0.3)) if algorithm == 'sac' else config\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.task_config("both").agent.algorithm == "ppo"
    with_sac = registry.task_config("both", "sac")
    assert (with_sac.agent, with_sac.num_envs) == (SacConfig(tau=0.3), 7)


@pytest.mark.parametrize(
    ("fields", "world_size", "start"),
    [
        ({"batch_size": 100}, 3, "--agent.batch-size 100: "),
        ({"replay_size": 1279}, 1, "--agent.replay-size 1279: "),
        ({"updates_per_step": 0.01}, 1, "--agent.updates-per-step 0.01: "),
        ({"actor_hidden_dims": ()}, 1, "--agent.actor-hidden-dims: "),
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, Any], world_size: int, start: str) -> None:
    assert refusal_of(config(**fields), world_size).startswith(start)
    validate(config())
    assert budget_of(config(batch_size=99, replay_size=3 * 1280), 3, 64).num_envs == 64


def test_parameters_cannot_be_sharded() -> None:
    assert refusal_of(dataclasses.replace(config(), fsdp_devices=2)).startswith("--fsdp-devices 2: ")
