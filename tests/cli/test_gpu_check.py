"""scripts/gpu_check.py on the CPU: its stages that need no GPU, and a stage that fails."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"

STAGES = ["machine", "physics", "learner", "two_ranks", "walk"]
"""Stages that need no GPU, except those that do the same as other tests on a CPU."""


def check(out: Path, *flags: str) -> tuple[int, str, dict[str, dict[str, object]]]:
    """Run the script. Return its exit code, what it printed, and its results."""
    args = [sys.executable, str(SCRIPT), str(out), *flags]
    done = subprocess.run(args, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout, json.loads((out / "gpu_check.json").read_text())


@pytest.mark.slow
def test_stages_that_need_no_gpu_pass(tmp_path: Path) -> None:
    code, printed, results = check(tmp_path, "--device", "cpu", "--stages", *STAGES)
    assert code == 0, printed
    assert list(results) == STAGES
    assert all(result["figures"] for result in results.values())


@pytest.mark.slow
def test_a_stage_that_fails_is_named(tmp_path: Path) -> None:
    """Without a GPU, stages on a GPU fail."""
    code, printed, results = check(tmp_path, "--device", "cuda:99", "--stages", "tasks", "machine")
    assert code == 1
    for stage in ("tasks", "machine"):
        assert results[stage]["result"] == "failed (1)"
        assert re.search(rf"^{stage} +failed", printed, re.MULTILINE)
