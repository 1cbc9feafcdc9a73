"""Checks of the evidence of ranks, with invented evidence, and the record of written files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from rank_evidence import evidence

from mjlab_dist.config import SyncConfig, TrainConfig, registry
from mjlab_dist.launch.verify.evidence import Check, Evidence, judge


def checks(config: TrainConfig, second: Evidence) -> dict[str, Check]:
    return {check.name: check for check in judge(config, [evidence(0), second])}


@pytest.fixture
def config() -> TrainConfig:
    return registry.task_config("cartpole-balance")


def test_good_evidence_passes_every_check(config: TrainConfig) -> None:
    seen = checks(config, evidence(1))
    assert all(check.passed and not check.why for check in seen.values())


@pytest.mark.parametrize(
    ("changed", "name", "part"),
    [
        ({"digests": {"actor.mean": "a", "critic.mean": "c"}}, "parameters equal", "critic.mean"),
        ({"first_observations": ["0", "3"]}, "env streams different", "same random numbers"),
        ({"difference": 1e-4}, "gradient average", "1e-05"),
        ({"written": ["stray.txt"]}, "files by rank 0 alone", "stray.txt"),
        ({"per_mini_batch": 2.0}, "collectives", "1 per mini-batch"),
        ({"per_iteration": 4.0}, "collectives", "up to 3 more"),
    ],
)
def test_a_problem_of_one_rank_fails_only_its_check(
    config: TrainConfig, changed: dict[str, Any], name: str, part: str
) -> None:
    seen = checks(config, evidence(1, **changed))
    assert [check.name for check in seen.values() if not check.passed] == [name]
    assert part in seen[name].why


def test_one_rank_needs_no_collectives_and_must_write_files(config: TrainConfig) -> None:
    good = evidence(0, difference=None, per_mini_batch=0.0, per_iteration=0.0)
    assert all(check.passed for check in judge(config, [good]))
    bad = dataclasses.replace(good, per_iteration=1.0, written=[])
    failed = [check.name for check in judge(config, [bad]) if not check.passed]
    assert failed == ["files by rank 0 alone", "collectives"]


def test_compressed_gradients_may_differ_more(config: TrainConfig) -> None:
    config = dataclasses.replace(config, sync=SyncConfig(compression="bf16"))
    assert checks(config, evidence(1, difference=1e-3))["gradient average"].passed
    assert not checks(config, evidence(1, difference=1e-1))["gradient average"].passed


def test_local_gradients_are_not_checked_for_their_average(config: TrainConfig) -> None:
    config = dataclasses.replace(config, sync=SyncConfig(period=4))
    local = [evidence(rank, difference=None, per_mini_batch=0.0) for rank in (0, 1)]
    seen = {check.name: check for check in judge(config, local)}
    assert all(check.passed for check in seen.values())
    assert "period 4" in seen["gradient average"].figure


def test_new_files_are_recorded_with_their_final_names(tmp_path: Path) -> None:
    from mjlab_dist.launch.verify.evidence import _Written

    (tmp_path / "old").write_text("")
    with _Written(tmp_path) as written:
        (tmp_path / "old").read_text()
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "part").write_text("")
        (tmp_path / "made" / "part").rename(tmp_path / "made" / "whole")
        (tmp_path.parent / "elsewhere").write_text("")
    (tmp_path / "late").write_text("")
    assert written.names == {"made", "made/whole"}
