"""The wheel works without the checkout: all files that the package needs are in the wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import gymnasium
import imageio.v3 as imageio
import pytest
from conftest import BIN

ANT = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "ant.xml"
ROOT = Path(__file__).parents[2]

CHECK = """
from pathlib import Path
import mjlab_dist, mjlab_dist_tasks
from mjlab_dist.config import registry
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


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel.

    Its dependencies come from the environment of the tests: this environment is added to the end of the path.

    The tests' environment contains the editable checkout through a .pth file. Python does not find the checkout,
    because it does not read .pth files in a directory that another .pth file adds to the path.
    """
    root = tmp_path_factory.mktemp("wheel")
    run("uv", "build", "--wheel", "--quiet", "--out-dir", root / "dist", ROOT)
    (wheel,) = (root / "dist").glob("*.whl")
    venv = root / "venv"
    run("uv", "venv", "--quiet", venv, "--python", sysconfig.get_path("scripts") + "/python")
    run("uv", "pip", "install", "--quiet", "--no-deps", "--python", venv / "bin" / "python", wheel)
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return venv


@pytest.mark.slow
def test_the_wheel_contains_commands_tasks_and_models(venv: Path) -> None:
    listed = run(venv / "bin" / "list-tasks")
    loaded = run(venv / "bin" / "python", "-c", CHECK.format(here=str(venv)))
    tasks = [line.split()[0] for line in listed.splitlines()]
    assert tasks == loaded.split()
    assert "cartpole-balance" in tasks


@pytest.mark.slow
def test_the_demo_works_from_the_wheel(venv: Path, tmp_path: Path) -> None:
    video = tmp_path / "demo.mp4"
    shown = run(venv / "bin" / "mjlab-dist", "demo", "--video", video, "--seconds", "0.2")
    assert str(venv) in shown, "the policy is in the wheel"
    assert len(imageio.imread(video)) == 5


@pytest.mark.slow
def test_training_works_from_the_wheel(venv: Path, tmp_path: Path) -> None:
    flags = ("--max-iterations", "1", "--total-num-envs", "32", "--log-root", tmp_path / "logs")
    run(venv / "bin" / "train", "quadruped-velocity-flat", *flags)
    assert list(tmp_path.glob("logs/quadruped-velocity-flat/*/checkpoints/model_1.pt"))


def type_errors(venv: Path, project: Path, *files: str) -> list[str]:
    """Return the problems that basedpyright finds in a project that uses the wheel, each in the form "file: rule"."""
    (project / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "recommended"}))
    command = [BIN / "basedpyright", "--pythonpath", venv / "bin" / "python", "--outputjson", *files]
    done = subprocess.run([str(a) for a in command], capture_output=True, text=True, check=False, cwd=project)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(files)
    return [f"{Path(one['file']).relative_to(project)}: {one['rule']}" for one in report["generalDiagnostics"]]


def check_as_standard(file: Path) -> None:
    """Let the type checker report about a file only the errors that it reports by default in an editor."""
    file.write_text("# pyright: standard\n" + file.read_text())


@pytest.mark.slow
def test_type_checkers_report_only_errors_that_a_new_package_makes_itself(venv: Path, tmp_path: Path) -> None:
    run(venv / "bin" / "mjlab-dist", "new-task", "my-ant", "--mjcf", ANT, "--dir", tmp_path)
    project = tmp_path / "my_ant"
    assert {path.name for path in (project / "my_ant").glob("*.py")} == {
        *("__init__.py", "config.py", "terms.py"),
        "model.py",  # imports mujoco, which has no type hints
    }
    check_as_standard(project / "my_ant" / "model.py")

    # A copy of the package with errors
    shutil.copytree(project / "my_ant", project / "wrong")
    config, terms = (project / "wrong" / f"{name}.py" for name in ("config", "terms"))
    text = config.read_text()
    config.write_text(text.replace("joint=", "joinnt=", 1))
    assert config.read_text() != text
    terms.write_text(terms.read_text() + "\n\ndef wrong(env: Env) -> torch.Tensor:\n    return env.sim.qposs[:, 0]\n")
    for file in (config, terms):
        check_as_standard(file)

    assert sorted(type_errors(venv, project, "my_ant", "wrong")) == [
        "wrong/config.py: reportCallIssue",
        "wrong/terms.py: reportAttributeAccessIssue",
    ]
