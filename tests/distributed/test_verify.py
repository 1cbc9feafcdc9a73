"""mjlab-dist verify: the installed command with and without a fault, and the evaluation of its measurements."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Command
from processes import AGENT_MODULE, with_argument

from mjlab_dist import registry
from mjlab_dist.config import SyncConfig, TrainConfig
from mjlab_dist.distributed.rank_info import RankInfo
from mjlab_dist.verify.evidence import Evidence
from mjlab_dist.verify.judge import Check, judge

VERIFY = ("mjlab-dist", "verify", "cartpole-balance")

LAZY = """
class Lazy:
    keeps_equal = True

    def reduce(self, buffer):
        pass

    def due(self, iteration):
        return False
"""


@pytest.mark.slow
def test_two_ranks_pass_and_leave_no_files(command: Command) -> None:
    (command.cwd / "tmp").mkdir()
    done = command(*VERIFY, "--cpu-ranks", "2", "--seed", "5", "--json", env={"TMPDIR": "tmp"})
    report = json.loads(done.out)
    # Only the check of the scaling may fail: the speed of ranks depends on other programs on this machine.
    assert {check["name"] for check in report["checks"] if not check["passed"]} <= {"scaling against one rank"}, report
    assert done.code == (0 if report["passed"] else 1)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert [rank["seed"] for rank in report["ranks"]] == [5, 6]
    figures = {check["name"]: check["figure"] for check in report["checks"]}
    assert list(figures) == [
        "parameters equal", "env streams different", "gradient average", "files by rank 0 alone", "collectives",
        "scaling against one rank",
    ]  # fmt: skip
    num_envs = registry.task_config("cartpole-balance").num_envs
    assert re.findall(r"[\d,]+", figures["env streams different"]) == [f"{2 * num_envs:,}"] * 2
    assert figures["files by rank 0 alone"].endswith("rank 1: 0")
    assert figures["collectives"].startswith("1 ")
    assert re.match(r"[\d.]+ times as fast with 2 ranks", figures["scaling against one rank"])
    assert {p.name for p in command.cwd.iterdir()} == {"tmp"}
    assert not list((command.cwd / "tmp").glob("mjlab-dist-verify-*"))


@pytest.mark.slow
def test_a_synchronizer_that_does_not_average_fails(command: Command) -> None:
    (command.cwd / "own.py").write_text(LAZY)
    done = command(
        *VERIFY, "--cpu-ranks", "2", "--num-envs", "64", "--sync.synchronizer", "own:Lazy", env={"PYTHONPATH": "."}
    )
    assert done.code == 1, done.err
    lines = done.out.splitlines()
    failed = {line.split("│")[1].strip() for line in lines if "FAIL" in line}
    assert {"parameters equal", "gradient average"} <= failed
    assert not {"env streams different", "files by rank 0 alone"} & failed
    assert any(" actor." in line for line in lines)
    assert any(
        line.split("│")[1].strip() == "1" and re.search(r"\b64 .*\b127\b", line) for line in lines if "│" in line
    )


@pytest.mark.slow
@pytest.mark.long
def test_the_error_of_a_rank_names_no_file_that_is_removed(command: Command) -> None:
    (command.cwd / "own.py").write_text(LAZY.replace("pass", 'raise ValueError("broken")'))
    done = command(*VERIFY, "--cpu-ranks", "2", "--sync.synchronizer", "own:Lazy", env={"PYTHONPATH": "."})
    assert done.code == 1
    assert "ValueError: broken" in done.err
    assert "mjlab-dist-verify-" not in done.err


@pytest.mark.slow
def test_a_single_rank_passes_and_a_single_iteration_is_refused(command: Command) -> None:
    done = command(*VERIFY, "--gpu-ids", "None", "--num-envs", "64", "--json")
    report = json.loads(done.out)
    assert done.code == 0, report
    figures = {check["name"]: check["figure"] for check in report["checks"]}
    assert re.findall(r"\d+", figures["collectives"]) == ["0", "0"]
    assert "times as fast" not in figures["scaling against one rank"]
    refused = command(*VERIFY, "--gpu-ids", "None", "--max-iterations", "1")
    assert refused.code == 2
    assert "--max-iterations 1: " in refused.err


def test_a_signal_ends_verify_and_leaves_no_files(
    command: Command, wait_for: Callable[[Callable[[], bool]], None], assert_within: Callable[[float, float], None]
) -> None:
    (command.cwd / "tmp").mkdir()
    process = command.start(*VERIFY, "--cpu-ranks", "2", env={"TMPDIR": "tmp"})
    wait_for(lambda: bool(with_argument(psutil.Process(process.pid).children(recursive=True), AGENT_MODULE)))
    process.terminate()
    done = command.finish(process)
    assert done.code == 143
    assert_within(done.took_s, 30)
    assert "Traceback" not in done.err
    assert not list((command.cwd / "tmp").glob("mjlab-dist-verify-*"))


def evidence(rank: int, **changed: Any) -> Evidence:
    """Return measurements of a rank without faults."""
    info = RankInfo(
        pid=100,
        rank=rank, host="here", device="cpu", name="CPU", memory_gb=8, capability=None,
        first_env_id=2 * rank, num_envs=2, seed=rank, egl_device=None,
    )  # fmt: skip
    well: dict[str, Any] = {
        "info": info,
        "first_observations": [f"{rank}/0", f"{rank}/1"],
        "digests": {"actor.mean": "a", "critic.mean": "b"},
        "difference": 1e-7,
        "written": [] if rank else ["metrics.jsonl"],
        "per_mini_batch": 1.0,
        "per_iteration": 2.0,
        "own_s": 0.1,
    }
    return Evidence(**{**well, **changed})


def checks(config: TrainConfig, second: Evidence, speed: float = 180.0) -> dict[str, Check]:
    return {check.name: check for check in judge(config, [evidence(0), second], speed, 100.0).checks}


@pytest.fixture
def config() -> TrainConfig:
    return registry.task_config("cartpole-balance")


def test_good_evidence_passes_every_check(config: TrainConfig) -> None:
    report = judge(config, [evidence(0), evidence(1)], 180.0, 100.0)
    assert report.passed
    assert not any(check.why for check in report.checks)
    assert [row.env_ids for row in report.ranks] == ["0 to 1", "2 to 3"]
    assert report.checks[-1].figure == "1.80 times as fast with 2 ranks: 180 instead of 100 steps/s"


@pytest.mark.parametrize(
    ("changed", "name", "part"),
    [
        ({"digests": {"actor.mean": "a", "critic.mean": "c"}}, "parameters equal", "critic.mean"),
        ({"first_observations": ["0/0", "1/1"]}, "env streams different", "same random numbers"),
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


def test_slow_scaling_fails(config: TrainConfig) -> None:
    assert not checks(config, evidence(1), speed=90.0)["scaling against one rank"].passed


def test_compressed_gradients_may_differ_more(config: TrainConfig) -> None:
    config = dataclasses.replace(config, sync=SyncConfig(compression="bf16"))
    assert checks(config, evidence(1, difference=1e-3))["gradient average"].passed
    assert not checks(config, evidence(1, difference=1e-1))["gradient average"].passed


def test_local_gradients_are_not_checked_for_their_average(config: TrainConfig) -> None:
    config = dataclasses.replace(config, sync=SyncConfig(period=4))
    local = [evidence(rank, difference=None, per_mini_batch=0.0) for rank in (0, 1)]
    report = judge(config, local, 180.0, 100.0)
    assert report.passed
    (figure,) = [check.figure for check in report.checks if check.name == "gradient average"]
    assert "period 4" in figure


def test_new_files_are_recorded_with_their_final_names(tmp_path: Path) -> None:
    from mjlab_dist.verify.evidence import _Written

    (tmp_path / "old").write_text("")
    with _Written(tmp_path) as written:
        (tmp_path / "old").read_text()
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "part").write_text("")
        (tmp_path / "made" / "part").rename(tmp_path / "made" / "whole")
        (tmp_path.parent / "elsewhere").write_text("")
    (tmp_path / "late").write_text("")
    assert written.names == {"made", "made/whole"}
