"""Processes of a launch: the fork server, and what END removes from a host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mjlab_dist.launch.hosts.ssh import END, program
from mjlab_dist.machine.processes import TEMPORARY

FORK_SERVER = """
import sys
from pathlib import Path
import mjlab_dist.launch.fork_server
assert {"torch", "mujoco_warp", "rsl_rl", "torchrunx", "mjlab_dist.learn.runner"} <= sys.modules.keys()
import torch, warp
assert not torch.cuda.is_initialized()
assert warp._src.context.runtime is None
print(len(list(Path("/proc/self/task").iterdir())))
"""


@pytest.mark.slow
def test_ranks_are_forked_from_a_process_without_threads_and_devices() -> None:
    # OpenBLAS has threads too, but ends them before a fork. Disable them, because the program counts threads.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", FORK_SERVER], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


def test_temporary_directories_are_removed_from_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "with [brackets]"
    left, other = folder / f"{TEMPORARY}one-a", folder / f"{TEMPORARY}two-a"
    for each in (left, other):
        each.mkdir(parents=True)
    command = program(END, "MJLAB_DIST_OF_THIS_TEST=one", TEMPORARY)
    subprocess.run(command, shell=True, check=True, env=os.environ | {"TMPDIR": str(folder)})
    assert not left.exists()
    assert other.exists()
