"""Processes of a launch: the log records of the agent, the fork server, and what END removes from a host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command

from mjlab_dist.launch.hosts import END, program
from mjlab_dist.machine.processes import TEMPORARY

REPORT = """
import logging
import sys

from torch.distributed.elastic.multiprocessing import api

from mjlab_dist.launch import agent

assert api.logger.name == agent.REPORTS_FAILURES
api.logger.addFilter(agent.format_error)
try:
    1 / 0
except ZeroDivisionError:
    api.logger.exception("a rank failed")
print("torch._dynamo" in sys.modules)
"""


def test_a_failed_rank_is_reported_with_its_error_without_the_compiler_of_torch(command: Command) -> None:
    done = command(command.script(REPORT))
    assert done.out == "False\n", done.err
    first, *_, last = (line.partition("] ")[2] for line in done.err.splitlines())
    assert first == "a rank failed"
    assert last.startswith("ZeroDivisionError: ")


FORK_SERVER = """
import sys
from pathlib import Path
import mjlab_dist.launch.fork_server
assert {"torch", "mujoco_warp", "rsl_rl", "torchrunx"} <= sys.modules.keys()
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
