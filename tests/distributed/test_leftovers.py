"""A launch leaves no files in directories that all programs on a machine share."""

from __future__ import annotations

import pytest
from conftest import Command
from fault_injection import faults
from mounts import mounted

from mjlab_dist.errors import Exit

TRAIN = (
    *("cartpole-balance", "--gpu-ids", "None", "--num-envs", "32", "--agent.num-steps-per-env", "8"),
    *("--max-iterations", "3"),
)

SHARED = ("/dev/shm", "/var/tmp")
"""Directories that are empty before the commands."""

OWN = "temporary_files_of_all_programs"
"""Another empty directory. If TMPDIR is this long path, ranks are spawned."""


@pytest.mark.parametrize(("size", "used"), [("4k", 4096), ("64k", 0)])
def test_full_shared_memory_is_found_before_the_start(command: Command, size: str, used: int) -> None:
    with mounted(command, f"mount -t tmpfs -o size={size} none /dev/shm") as full:
        (full.root / "dev" / "shm" / "full").write_bytes(bytes(used))
        done = full("train", *TRAIN, "--cpu-ranks", "2")
    assert done.code == Exit.PREFLIGHT
    assert "/dev/shm" in done.err
    assert not (command.cwd / "logs").exists()


@pytest.mark.slow
def test_runs_and_restarts_leave_no_semaphore_and_no_temporary_file(command: Command) -> None:
    mounts = " && ".join([f"mkdir {OWN}", *(f"mount -t tmpfs none {each}" for each in (*SHARED, OWN))])
    two = (*TRAIN, "--cpu-ranks", "2")
    fault = faults(command.cwd, "1:2:sigkill")
    with mounted(command, mounts) as here:
        long = {"TMPDIR": str(command.cwd / OWN)}
        runs = [
            here("train", *two, env=long),  # ranks are spawned
            here("train", *two, "--max-restarts", "1", *fault, env={"TMPDIR": SHARED[1]}),
            here("train", *TRAIN, env=long),
        ]
        left = [each for folder in SHARED for each in (here.root / folder[1:]).iterdir()]
        left += (here.cwd / OWN).iterdir()
    for run in runs:
        assert run.code == Exit.DONE, run.out + run.err
    assert "Restarting" in runs[1].out
    assert not left
