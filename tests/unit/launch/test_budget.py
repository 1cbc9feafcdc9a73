"""Totals over all ranks, such as numbers of envs: the share of each rank, and totals that are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.errors import UserError
from mjlab_dist.launch.budget import Budget, budget_of, plan_budget, total_num_envs, validate_training
from mjlab_dist.runs.run_dir import read_config_file

STEPS = 32


def config(**changes: Any) -> TrainConfig:
    base = registry.task_config("cartpole-balance")
    assert base.agent.num_steps_per_env == STEPS
    return dataclasses.replace(base, **{"num_envs": 64, "total_num_envs": None, "max_iterations": 7, **changes})


def refusal_of(config: TrainConfig, world_size: int) -> str:
    with pytest.raises(UserError) as caught:
        plan_budget(config, world_size)
    message = str(caught.value)
    assert "\n" not in message
    return message


def budget(config: TrainConfig, world_size: int) -> Budget:
    planned = plan_budget(config, world_size)
    assert planned is not None
    return planned


@pytest.mark.parametrize(("total", "world_size", "rounded"), [(10, 3, 12), (2, 3, 3)])
def test_totals_that_ranks_cannot_share_are_rounded_up_with_a_note(total: int, world_size: int, rounded: int):
    planned = budget(config(total_num_envs=total), world_size)
    assert planned.num_envs * world_size == rounded
    (note,) = planned.notes
    assert note.startswith(f"--total-num-envs {total}: ")
    assert f" {rounded}, " in note


@pytest.mark.parametrize("num_envs", [64, "auto"])
def test_a_total_takes_precedence_over_the_number_per_rank(num_envs: int | str):
    asked = config(num_envs=num_envs, total_num_envs=6)
    assert budget(asked, 2).num_envs == 3
    assert total_num_envs(asked, 2) == 6


def test_envs_per_rank_add_up_and_only_training_measures_how_many_fit():
    assert total_num_envs(config(), 3) == 3 * 64
    with pytest.raises(UserError, match=r"^--num-envs auto: "):
        total_num_envs(config(num_envs="auto"), 3)


def test_steps_are_rounded_down_to_whole_iterations():
    per_iteration = 3 * 64 * STEPS
    total = 6 * per_iteration - 1
    planned = budget(config(total_timesteps=total), 3)
    assert (planned.num_envs, planned.max_iterations) == (64, 5)
    (note,) = planned.notes
    assert note.startswith(f"--total-timesteps {total}: ")
    assert f" {5 * per_iteration:,} in all; the remaining {per_iteration - 1:,} " in note


def test_steps_are_settled_once_auto_is_resolved():
    asked = config(num_envs="auto", total_timesteps=10_000)
    assert plan_budget(asked, 2) is None
    known = budget_of(asked, 2, 16)
    assert known.max_iterations == 9
    assert len(known.notes) == 1


def test_a_run_resumed_with_another_number_of_ranks_keeps_its_totals(tmp_path: Path):
    asked = config(total_num_envs=128, total_timesteps=20 * 128 * STEPS)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_plain(asked)))
    assert plan_budget(asked, 2) == Budget(num_envs=64, max_iterations=20)
    assert plan_budget(read_config_file(file), 4) == Budget(num_envs=32, max_iterations=20)


def test_mini_batches_are_checked_against_the_envs_per_rank():
    three = dataclasses.replace(config().agent, num_mini_batches=3)
    assert budget(config(total_num_envs=6, agent=three), 2).num_envs == 3  # 3 does not divide the rollout of 64 envs
    assert budget(config(total_num_envs=10, agent=three), 2).num_envs == 6
    message = refusal_of(config(total_num_envs=8, agent=three), 2)
    assert message.startswith("--agent.num-mini-batches 3: ")
    assert "--num-envs 4" in message


def test_mini_batches_are_checked_without_devices_if_they_do_not_matter():
    three = dataclasses.replace(config().agent, num_mini_batches=3)
    with pytest.raises(UserError, match=r"^--agent\.num-mini-batches 3: .*--num-envs 64 "):
        validate_training(config(agent=three))
    validate_training(config(total_num_envs=6, agent=three))
    validate_training(config(num_envs="auto", agent=three))


@pytest.mark.parametrize(("devices", "world_size", "fix"), [(3, 4, "4 ranks; use 1, 2 or 4"), (2, 1, "1 rank; use 1")])
def test_sharding_over_a_number_that_does_not_divide_the_ranks_is_refused(devices: int, world_size: int, fix: str):
    message = refusal_of(config(fsdp_devices=devices), world_size)
    assert message.startswith(f"--fsdp-devices {devices}: ")
    assert message.endswith(fix)
