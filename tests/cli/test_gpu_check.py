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
@pytest.mark.parametrize("stages", [["learner"], pytest.param(STAGES, marks=pytest.mark.long)], ids=" ".join)
def test_stages_that_need_no_gpu_pass(tmp_path: Path, stages: list[str]) -> None:
    code, printed, results = check(tmp_path, "--device", "cpu", "--stages", *stages)
    assert code == 0, printed
    assert list(results) == stages
    assert all(result["figures"] for result in results.values())


@pytest.mark.slow
def test_a_stage_that_fails_is_named(tmp_path: Path) -> None:
    """Without a GPU, stages on a GPU fail."""
    code, printed, results = check(tmp_path, "--device", "cuda:99", "--stages", "machine")
    assert code == 1
    assert results["machine"]["result"] == "failed (1)"
    assert re.search(r"^machine +failed", printed, re.MULTILINE)
