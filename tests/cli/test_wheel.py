"""The wheel, built, installed elsewhere and asked for its tasks: nothing may be found in the checkout only."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CHECK = """
from pathlib import Path
import mjlab_dist, mjlab_dist_tasks
from mjlab_dist import registry
from mjlab_dist.sim import build_model
here = Path({here!r})
assert Path(mjlab_dist.__file__).is_relative_to(here), mjlab_dist.__file__
for task in registry.task_names():
    config = registry.task_config(task)
    assert build_model(config.env.sim).nu > 0
    print(task)
"""


def run(*argv: str | Path, **env: str) -> str:
    done = subprocess.run(
        [str(a) for a in argv], env={**os.environ, **env}, capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_wheel_contains_commands_tasks_and_models(tmp_path: Path) -> None:
    run("uv", "build", "--wheel", "--quiet", "--out-dir", tmp_path / "dist", ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    venv = tmp_path / "venv"
    run("uv", "venv", "--quiet", venv, "--python", sysconfig.get_path("scripts") + "/python")
    run("uv", "pip", "install", "--quiet", "--no-deps", "--python", venv / "bin" / "python", wheel)
    # Dependencies come from the test's own environment, behind the new one's packages; a path there is not read for
    # .pth files, so that the editable checkout stays out.
    (site,) = (venv / "lib").glob("python*/site-packages")
    path = f"{site}:{sysconfig.get_path('purelib')}"
    assert "complete -F" in run(venv / "bin" / "mjlab-dist", "completion", "bash", PYTHONPATH=path)
    listed = run(venv / "bin" / "list-tasks", PYTHONPATH=path)
    loaded = run(venv / "bin" / "python", "-c", CHECK.format(here=str(venv)), PYTHONPATH=path)
    tasks = [line.split()[0] for line in listed.splitlines()]
    assert tasks == loaded.split()
    assert "cartpole-balance" in tasks
