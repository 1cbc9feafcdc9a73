"""scripts/try_robots.py runs new-task on the robots in installed packages."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "try_robots.py"

PACKAGES = {
    "gymnasium": ["**/*.xml"],
    # Leave out copies of gymnasium's robots, and the variants of hands that have touch sensors
    "gymnasium_robotics": [
        *(f"envs/assets/{place}" for place in ("adroit_hand/*.xml", "fetch/*.xml", "kitchen_franka/*/*.xml")),
        *(f"envs/assets/hand/{name}.xml" for name in ("reach", "manipulate_block", "manipulate_egg", "manipulate_pen")),
        "envs/assets/point/*.xml",
    ],
    "dm_control": ["**/*.xml"],
    "robosuite": ["**/*.xml"],
    # All 43 scenes have the same arm: try only the arm itself and two scenes
    "metaworld": [
        "assets/objects/xyz_base.xml",
        *(f"assets/sawyer_xyz/{name}.xml" for name in ("sawyer_drawer", "sawyer_reach_v3")),
    ],
}
"""Packages with robots, and the patterns of the MJCFs to try in each package."""

PENDULUM = """
<mujoco model="pendulum">
  <worldbody><body><joint name="hinge" axis="0 1 0"/><geom type="capsule" size=".02" fromto="0 0 0 0 0 -.5"/></body>
  </worldbody>
  <actuator><motor joint="hinge" ctrlrange="-1 1"/></actuator>
</mujoco>
"""

BALLS = '<mujoco><worldbody><body><joint name="b" type="ball"/><geom size=".1"/></body></worldbody></mujoco>'


def tried(work: Path) -> list[dict[str, str]]:
    return [json.loads(file.read_text()) for file in sorted(work.glob("*/result.json"))]


@pytest.mark.slow
@pytest.mark.long
def test_robots_are_tried_once_and_listed_with_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robots = tmp_path / "robots"
    (robots / "deep").mkdir(parents=True)
    (robots / "deep" / "pendulum.xml").write_text(PENDULUM)
    (robots / "balls.xml").write_text(BALLS)  # a ball joint cannot be driven, so this is no robot
    (robots / "broken.xml").write_text("<mujoco>")
    monkeypatch.chdir(tmp_path)  # the paths in the command are relative to this directory
    command = [sys.executable, str(SCRIPT), "robots", "--work", "work", "--processes", "1"]
    command += ["--output", "page/robots.md"]
    first = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "1 of 1 robots train" in first
    (result,) = tried(tmp_path / "work")
    assert result["problem"] == ""
    assert "driven joint" in result["kind"]
    page = tmp_path / "page" / "robots.md"
    assert "deep/pendulum.xml" in page.read_text()
    assert (tmp_path / "page" / "pictures" / "robots-robots.png").is_file()
    # Robots with a known result are not tried again, and stay on the page
    again = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "pendulum.xml" not in again
    page.unlink()
    none = subprocess.run([*command, "--only", "flat/*.xml"], check=True, capture_output=True, text=True).stdout
    assert "0 of 0 robots train" in none
    assert "deep/pendulum.xml" in page.read_text()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("package", PACKAGES)
def test_nine_of_ten_robots_of_a_package_train(tmp_path: Path, package: str) -> None:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    work = tmp_path / "work"
    command = [sys.executable, str(SCRIPT), str(Path(found.origin).parent), "--work", str(work), "--only"]
    subprocess.run([*command, *PACKAGES[package]], check=True)
    results = tried(work)
    shutil.rmtree(work)
    problems = [result["problem"] for result in results if result["problem"]]
    assert len(problems) <= 0.1 * len(results), problems
    assert not [problem for problem in problems if "Error:" in problem or "\n" in problem], (
        "each problem must be one line of a UserError"
    )
