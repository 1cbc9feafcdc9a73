"""Runs of two ranks whose buffers are too small."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import Command
from fault_injection import faults
from run_files import only_run, untimed

from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import list_checkpoints, read_config_file, read_metrics

TASK = "gym-ant"
# The ants fall. After some iterations, they touch the ground, and the small buffers overflow.
RUN = (
    TASK, "--gpu-ids", "None", "--num-envs", "8", "--max-iterations", "6", "--checkpoint.interval", "1",
    "--agent.num-steps-per-env", "2", "--agent.num-mini-batches", "1", "--env.sim.njmax", "20",
    "--env.sim.engine", "warp",
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("launcher", ["train", pytest.param("torchrun", marks=pytest.mark.long)])
def test_growing_equals_a_run_with_large_buffers(command: Command, tmp_path: Path, launcher: str) -> None:
    start = (
        ("train", *RUN, "--cpu-ranks", "2")
        if launcher == "train"
        else ("torchrun", "--nproc-per-node", "2", "--no-python", command.program("train"), *RUN)
    )
    done = command(*start, "--env.sim.nconmax", "1", "--env.sim.on-overflow", "grow")
    assert done.code == 0, done.err
    run = only_run(tmp_path, TASK)
    # One line reports the new buffer size, and the run's files contain it.
    (line,) = (line for line in (done.out + done.err).splitlines() if "is too small" in line)
    grown = re.search(
        r"iteration (\d+): --env\.sim\.nconmax 1 is too small for (\d+) contacts .*; "
        r"restarting from iteration (\d+) with --env\.sim\.nconmax (\d+)$",
        line,
    )
    assert grown, line
    failed, needed, resumed, size = map(int, grown.groups())
    assert 1 <= resumed == failed - 1
    assert size > needed > 1
    assert read_config_file(run).env.sim.nconmax == size
    (record,) = json.loads((run / "provenance.json").read_text())["grown"]
    assert (record["nconmax"], record["restarted_from"]) == (size, resumed)
    # Every iteration equals the same iteration of a run that had this buffer size from the start.
    other = Command(command.mark, tmp_path / "large")
    other.cwd.mkdir()
    large = other("train", *RUN, "--cpu-ranks", "2", "--env.sim.nconmax", str(size))
    assert large.code == 0, large.err
    assert [row["iteration"] for row in untimed(run)] == [1, 2, 3, 4, 5, 6]
    assert untimed(run) == untimed(only_run(other.cwd, TASK))
    assert untimed(run)[-1]["overflowed_envs"] == 0


def test_stopping_names_the_flags_to_resume_with(command: Command, tmp_path: Path) -> None:
    done = command("train", *RUN, "--cpu-ranks", "2", "--env.sim.nconmax", "1", "--env.sim.on-overflow", "stop")
    assert done.code == Exit.NUMERICS
    assert "Traceback" not in done.err
    (line,) = (line for line in done.err.splitlines() if "is too small" in line)
    stopped = re.match(
        r"train: iteration (\d+): --env\.sim\.nconmax 1 is .*; resume with (--env\.sim\.nconmax \d+), ", line
    )
    assert stopped, line
    run = only_run(tmp_path, TASK)
    assert max(list_checkpoints(run)) == int(stopped[1]) == len(read_metrics(run))
    # Resume with the flags that the message suggests
    resumed = command("train", "--resume", str(run), "--cpu-ranks", "2", *stopped[2].split())
    assert resumed.code == 0, resumed.err
    assert [row["iteration"] for row in read_metrics(run)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_ranks_that_restart_keep_the_larger_buffers(command: Command, tmp_path: Path) -> None:
    done = command(
        "train", *RUN, "--cpu-ranks", "2", "--max-restarts", "1",
        "--env.sim.nconmax", "1", "--env.sim.on-overflow", "grow", *faults(command.cwd, "1:6:raise"),
    )  # fmt: skip
    assert done.code == 0, done.err
    lines = (done.out + done.err).splitlines()
    assert len([line for line in lines if "Restarting (1 of 1)" in line]) == 1
    assert len([line for line in lines if "is too small" in line]) == 1
    assert untimed(only_run(tmp_path, TASK))[-1]["iteration"] == 6
    assert untimed(only_run(tmp_path, TASK))[-1]["overflowed_envs"] == 0
