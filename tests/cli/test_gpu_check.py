"""scripts/gpu_check.py without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


def check(out: Path, *flags: str) -> tuple[int, str, dict[str, Any]]:
    """Run the script. Return its exit code, what it printed, and its results."""
    args = [sys.executable, str(SCRIPT), str(out), *flags]
    done = subprocess.run(args, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout, json.loads((out / "gpu_check.json").read_text())


@pytest.mark.slow
@pytest.mark.long
def test_training_is_measured(tmp_path: Path) -> None:
    code, printed, results = check(tmp_path, "--cpu", "--stages", "speed", "walk")
    assert code == 0, printed
    (speed,) = results["speed"]["figures"].values()
    assert speed["steps/s"] > 0
    walk = results["walk"]["figures"]
    assert walk["env-steps"] == 8 * 24 * 2
    assert walk["robots"] == 10 * 8


@pytest.mark.slow
def test_a_stage_that_fails_is_named(tmp_path: Path) -> None:
    """Without a GPU, training on a GPU fails."""
    code, printed, results = check(tmp_path, "--stages", "walk")
    assert code == 1
    assert results["walk"]["result"] == "failed"
    assert "walk: failed" in printed
