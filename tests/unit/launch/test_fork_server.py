"""The process from which CPU ranks are forked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_ranks_are_forked_from_a_process_without_threads_and_devices() -> None:
    code = """
import sys
from pathlib import Path
import mjlab_dist.launch.fork_server
assert {"torch", "mujoco_warp", "rsl_rl", "torchrunx"} <= sys.modules.keys()
import torch, warp
assert not torch.cuda.is_initialized()
assert warp._src.context.runtime is None
print(len(list(Path("/proc/self/task").iterdir())))
"""
    # OpenBLAS has threads too, but ends them before a fork. Disable them, because the program counts threads.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"
