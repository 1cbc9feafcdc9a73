"""Which runs `mjlab-dist verify` launches, and what it reports of them. The runs themselves are invented."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mjlab_dist import registry
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed.rank_info import RankInfo
from mjlab_dist.verify import run
from mjlab_dist.verify.evidence import Evidence, IterationTimes
from mjlab_dist.verify.figures import Reached

TIMES = IterationTimes(wall_s=1.0, physics_s=0.4, env_s=0.1, policy_s=0.1, update_s=0.2, waits_s=[])


class Runs:
    """Replaces runs. Ranks of the runs in ``faulty`` (number of ranks, envs per rank) end with different parameters."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, Any]] = []
        self.faulty: set[tuple[int, Any]] = set()

    def run(self, case: Any, until_return: float | None) -> tuple[list[Evidence], Reached | None]:
        assert until_return is None
        self.launched.append(case.key)
        return [self._evidence(rank, *case.key) for rank in range(case.num_ranks)], None

    def _evidence(self, rank: int, num_ranks: int, num_envs: int) -> Evidence:
        info = RankInfo(
            pid=1, rank=rank, host="a", device="cpu", name="CPU", memory_gb=8, capability=None,
            first_env_id=rank * num_envs, num_envs=num_envs, seed=rank, egl_device=None,
        )  # fmt: skip
        return Evidence(
            info=info, iterations=[TIMES] * 3, memory_mb=1.0, first_observations=[str(rank)],
            digests={"actor.mean": str(rank) if (num_ranks, num_envs) in self.faulty else "equal"},
            difference=0.0, written=[] if rank else ["metrics.jsonl"],
            per_mini_batch=min(1, num_ranks - 1), per_iteration=0.0,
        )  # fmt: skip


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(run, "_run", runs.run)
    return runs


def config(cpu_ranks: int | None = 5, **changed: Any) -> TrainConfig:
    task = registry.task_config("cartpole-balance")
    return dataclasses.replace(task, gpu_ids=None, cpu_ranks=cpu_ranks, num_envs=120, **changed)


def verify(config: TrainConfig, **options: Any) -> run.Report:
    return run.verify(config, **{"scaling": False, "rounds": 1, "until_return": None, **options})


def test_one_rank_and_all_ranks_are_compared(runs: Runs) -> None:
    report = verify(config(), rounds=2)
    assert runs.launched == [(1, 120), (5, 120)] * 2
    assert report.passed
    assert [rank.rank for rank in report.ranks] == [0, 1, 2, 3, 4]
    assert list(report.speeds) == ["weak"]


def test_scaling_measures_numbers_in_between_and_the_same_total(runs: Runs) -> None:
    report = verify(config(), scaling=True)
    assert runs.launched == [(1, 120), (2, 120), (4, 120), (5, 120), (2, 60), (4, 30), (5, 24)]
    assert [row.num_envs for row in report.speeds["strong"].rows] == [120, 60, 30, 24]


def test_a_total_is_that_of_all_ranks(runs: Runs) -> None:
    verify(config(4, total_num_envs=240), scaling=True)
    assert runs.launched == [(1, 60), (2, 60), (4, 60), (1, 240), (2, 120)]


def test_without_flags_there_is_a_rank_per_core(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "cores", lambda: 3)
    monkeypatch.setattr(run, "find_gpus", list)
    verify(dataclasses.replace(config(None), gpu_ids="auto"))
    assert runs.launched == [(1, 120), (3, 120)]


def test_a_run_that_fails_is_the_one_that_is_reported(runs: Runs) -> None:
    runs.faulty.add((2, 60))
    report = verify(config(), scaling=True)
    assert not report.passed
    assert [rank.num_envs for rank in report.ranks] == [60, 60]
    assert [check.name for check in report.checks if not check.passed] == ["parameters equal"]


@pytest.mark.parametrize(
    ("mean_return", "goal", "expected"),
    [(0.0, -0.1, True), (0.0, 0.0, True), (-0.2, -0.1, False), (None, -0.1, False), (5.0, None, False)],
)
def test_a_return_of_zero_can_reach_a_goal(mean_return: float | None, goal: float | None, expected: bool) -> None:
    assert run.has_reached(mean_return, goal) is expected
