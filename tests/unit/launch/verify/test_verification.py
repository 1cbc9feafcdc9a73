"""Which runs `mjlab-dist verify` launches, and what it reports of them. The runs themselves are invented."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from rank_evidence import evidence

from mjlab_dist.cli.verify import main
from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.errors import Exit, UserError
from mjlab_dist.launch import ranks
from mjlab_dist.launch.verify import verification
from mjlab_dist.launch.verify.evidence import Evidence
from mjlab_dist.launch.verify.speeds import Reached


class Runs:
    """Replaces runs. Ranks of the runs in ``faulty`` (number of ranks, envs per rank) end with different parameters."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, Any]] = []
        self.faulty: set[tuple[int, Any]] = set()

    def run(self, case: Any, until_return: float | None) -> tuple[list[Evidence], Reached | None]:
        self.launched.append(case.key)
        reached = None if until_return is None else Reached(seconds=until_return + len(self.launched), steps=1)
        return [self._evidence(rank, *case.key) for rank in range(case.num_ranks)], reached

    def _evidence(self, rank: int, num_ranks: int, num_envs: int) -> Evidence:
        digest, shared = str(rank) if (num_ranks, num_envs) in self.faulty else "equal", float(num_ranks > 1)
        digests = {"actor.mean": digest}
        return evidence(rank, num_envs, digests=digests, per_mini_batch=shared, per_iteration=shared)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(verification, "_run", runs.run)
    return runs


def config(cpu_ranks: int | None = 5, **changed: Any) -> TrainConfig:
    task = registry.task_config("cartpole-balance")
    fields = {"gpu_ids": None, "cpu_ranks": cpu_ranks, "num_envs": 120, "total_num_envs": None, **changed}
    return dataclasses.replace(task, **fields)


def verify(config: TrainConfig, **options: Any) -> verification.Report:
    return verification.verify(config, **{"scaling": False, "rounds": 1, "until_return": None, **options})


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
    report = verify(config(4, total_num_envs=240), scaling=True)
    assert runs.launched == [(1, 60), (2, 60), (4, 60), (1, 240), (2, 120)]
    assert report.speeds["strong"].rows[-1].speed_up == 1, "the run of one rank has all envs"


def test_without_flags_there_is_a_rank_per_core(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "cores", lambda: 3)
    monkeypatch.setattr(verification, "find_gpus", list)
    verify(dataclasses.replace(config(None), gpu_ids="auto"))
    assert runs.launched == [(1, 120), (3, 120)]


def test_a_run_that_fails_is_the_one_that_is_reported(runs: Runs) -> None:
    runs.faulty.add((2, 60))
    report = verify(config(), scaling=True)
    assert not report.passed
    assert [rank.num_envs for rank in report.ranks] == [60, 60]
    assert [check.name for check in report.checks if not check.passed] == ["parameters equal"]


def test_parameters_are_sharded_over_the_ranks_that_there_are(runs: Runs) -> None:
    verify(config(6, fsdp_devices=3), scaling=True)
    assert runs.launched == [(1, 120), (2, 120), (6, 120), (2, 60), (6, 20)]


@pytest.mark.usefixtures("runs")
def test_another_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(UserError, match=r"^verify: .* slurm$"):
        verify(config())


def test_the_command_prints_speeds_of_all_rounds_and_fails_with_a_check(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["cartpole-balance", "--cpu-ranks", "2", "--num-envs", "64", "--until-return", "5", "--rounds", "2"]
    main(argv, "mjlab-dist verify")
    assert len(runs.launched) == 4
    printed = capsys.readouterr()
    assert "7, 9" in printed.out, "seconds until the return, of both rounds with two ranks"
    assert "2 ranks are 2.00 times as fast as one, 100% of the ideal: good" in printed.out
    assert "up to 150 iterations" in printed.err, "the task's own number"
    runs.faulty.add((2, 64))
    with pytest.raises(SystemExit) as ended:
        main(argv, "mjlab-dist verify")
    assert ended.value.code == Exit.FAILED
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("returns", "goal", "reached_at", "stopped_at"),
    [
        ([None, 0.0, 5.0, 5.0, 5.0], -0.1, 2, verification.MIN_ITERATIONS),
        ([0.0, 0.0, 0.0, 0.0, 5.0], 0.1, 5, 5),
        ([-0.2, -0.2, -0.2, -0.2, -0.2], -0.1, None, None),
        ([5.0, 5.0, 5.0, 5.0, 5.0], None, None, None),
    ],
)
def test_a_run_stops_when_it_has_reached_the_return_and_has_been_timed(
    returns: list[float | None],
    goal: float | None,
    reached_at: int | None,
    stopped_at: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stops: list[int] = []

    def run_ranks(*_: Any, listen: Any, control: Any) -> list[Evidence]:
        for iteration, mean_return in enumerate(returns, 1):
            row = {"iteration": iteration, "mean_return": mean_return, "elapsed_s": 0.5 * iteration}
            listen({"kind": "iteration", "row": {**row, "total_steps": 10 * iteration}})
            if control.stop_requested:
                stops.append(iteration)
        return []

    monkeypatch.setattr(ranks, "run_ranks", run_ranks)
    hosts = verification._hosts(config(1), [])
    (case,) = verification._cases(config(1), hosts, 120, [], scaling=False)["weak"]
    _, reached = verification._run(case, goal)
    assert stops[:1] == ([stopped_at] if stopped_at else [])
    expected = None if reached_at is None else Reached(seconds=0.5 * reached_at, steps=10 * reached_at)
    assert reached == expected
