"""On two CPU ranks, the quadruped learns to follow commands on flat ground within the iterations of its task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import BIN, Command

SCRIPT = Path(__file__).parents[2] / "scripts" / "follow_velocity.py"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_quadruped_follows_commands_and_lifts_its_feet(command: Command) -> None:
    flags = ("--gpu-ids", "None", "--cpu-ranks", "2", "--seed", "1")
    done = command("train", "quadruped-velocity-flat", *flags, timeout_s=1800)
    assert done.code == 0, done.err
    (run,) = (command.cwd / "logs" / "quadruped-velocity-flat").iterdir()
    followed = command(str(BIN / "python"), str(SCRIPT), str(run), "--json", timeout_s=600)
    figures = json.loads(followed.out.splitlines()[-1])
    assert figures["error_m_s"] <= 0.15, figures
    assert figures["fell"] <= 0.05, figures  # 0 to 0.022 in four runs
    forward = figures["commands"]["forward"]
    assert forward["lift_cm"] >= 3
    assert 1.5 <= forward["strides_hz"] <= 3.5
    assert forward["tilt_deg"] <= 5
