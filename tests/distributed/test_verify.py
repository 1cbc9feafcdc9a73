"""mjlab-dist verify: the installed command with and without a fault, and flags that it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Command
from processes import AGENT_MODULE, with_argument

from mjlab_dist.cli import verify
from mjlab_dist.config import registry
from mjlab_dist.errors import UserError

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
    assert done.code == 0, done.out + done.err
    report = json.loads(done.out)
    assert (report["task"], report["passed"]) == ("cartpole-balance", True)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert [rank["seed"] for rank in report["ranks"]] == [5, 6]
    total = registry.task_config("cartpole-balance").total_num_envs
    assert total is not None
    num_envs = total // 2
    assert [rank["first_env_id"] for rank in report["ranks"]] == [0, num_envs]
    figures = {check["name"]: check["figure"] for check in report["checks"]}
    assert list(figures) == [
        "parameters equal", "env streams different", "gradient average", "files by rank 0 alone", "collectives",
    ]  # fmt: skip
    assert re.findall(r"[\d,]+", figures["env streams different"]) == [f"{2 * num_envs:,}"] * 2
    assert figures["files by rank 0 alone"].endswith("rank 1: 0")
    assert figures["collectives"].startswith("1 ")
    (speeds,) = report["speeds"].values()
    assert [row["num_ranks"] for row in speeds["rows"]] == [1, 2]
    assert speeds["verdict"].startswith(f"2 ranks are {speeds['rows'][1]['speed_up']:.2f} times as fast as one")
    assert {p.name for p in command.cwd.iterdir()} == {"tmp"}
    assert not list((command.cwd / "tmp").glob("mjlab-dist-verify-*"))


@pytest.mark.slow
def test_scaling_is_measured_until_a_return(command: Command, short_tmp: Path) -> None:
    command.cwd = short_tmp
    # Episodes have 50 steps, so that some have ended after two iterations of 32 steps each
    flags = ("--until-return", "1", "--max-iterations", "60", "--json", "--plot", "scaling.png")
    flags += ("--env.episode-length-s", "0.5", "--cpu-ranks", "2", "--num-envs", "64", "--scaling")
    done = command(*VERIFY, *flags)
    assert done.code == 0, done.err
    speeds: dict[str, Any] = json.loads(done.out)["speeds"]
    assert [row["num_envs"] for row in speeds["weak"]["rows"]] == [64, 64]
    assert [row["num_envs"] for row in speeds["strong"]["rows"]] == [64, 32]
    for found in speeds.values():
        rows = found["rows"]
        assert [row["num_ranks"] for row in rows] == [1, 2]
        assert rows[1]["efficiency"] == pytest.approx(rows[1]["steps_per_s"] / rows[0]["steps_per_s"] / 2)
        for row in rows:
            shares = row["shares"]
            assert sum(shares.values()) == pytest.approx(1)
            assert min(shares[name] for name in ("physics", "env", "policy", "update")) > 0
            (one,) = row["rounds"]
            assert len(one["computing_s"]) == row["num_ranks"]
            assert one["reached"]["seconds"] > 0
            assert one["reached"]["steps"] < 10 * 32 * row["num_envs"] * row["num_ranks"]
        assert rows[0]["shares"]["waiting"] < 0.01 < rows[1]["shares"]["waiting"] + rows[1]["shares"]["communication"]
    assert (command.cwd / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in command.cwd.iterdir()} == {"scaling.png"}


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
def test_a_single_rank_passes(command: Command) -> None:
    done = command(*VERIFY, "--cpu-ranks", "1", "--num-envs", "64", "--json")
    report = json.loads(done.out)
    assert done.code == 0, report
    figures = {check["name"]: check["figure"] for check in report["checks"]}
    assert re.findall(r"\d+", figures["collectives"]) == ["0", "0"]
    assert "only one rank" in report["speeds"]["weak"]["verdict"]


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


@pytest.mark.parametrize(
    "flags",
    [
        ("--rounds", "0"),
        ("--until-return", "nan"),
        ("--plot", "scaling.jpg"),
        ("--num-envs", "auto"),
        ("--num-envs", "63", "--scaling"),
        ("--max-iterations", "3"),
        ("--total-timesteps", "8192"),
        ("--total-num-envs", "33", "--scaling"),
        ("--hosts", "localhost localhost"),
        ("--cpu-ranks", "0"),
        ("--gpu-ids", "0"),
        ("--gpu-ids", "all"),
    ],
    ids=" ".join,
)
def test_flags_that_cannot_be_verified_are_refused_in_one_line(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = () if flags[0] == "--total-num-envs" else ("--num-envs", "64")  # a total excludes --num-envs
    ranks = () if flags[0] == "--gpu-ids" else ("--cpu-ranks", "2")
    with pytest.raises(UserError) as refused:
        verify.main(["cartpole-balance", *ranks, *few, *flags], "mjlab-dist verify")
    assert str(refused.value).startswith(" ".join(flags[:2]))
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())
