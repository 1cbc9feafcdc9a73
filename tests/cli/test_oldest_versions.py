"""The package works with the oldest versions of its dependencies that pyproject.toml allows."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "jsonschema", "playwright", "basedpyright")
"""Packages that the tests need, in the versions of this environment."""

TESTS = ("tests/unit", "tests/cuda", "tests/cli/test_viewer.py", "tests/cli/test_watch.py", "tests/cli/test_export.py")

LEFT_OUT = (
    *("-k", "not two_ranks and not gradients_are_compressed and not gymnasiums_checks"),
    *("--deselect", "tests/cuda/test_fake_cuda.py::test_an_update_stays_on_the_device[intrinsic reward]"),
)
"""Excludes tests with fake tensors that torch before 2.12 cannot pickle or gives a wrong shape, and a test that needs
Gymnasium 1.4."""


def run(*argv: str | Path) -> str:
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in argv], env=variables, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(0)
def test_training_and_tests_pass_with_the_oldest_versions(tmp_path: Path) -> None:
    # Install them
    venv = tmp_path / "venv"
    python = venv / "bin" / "python"
    run("uv", "venv", "--quiet", venv, "--python", sys.executable)
    install = ("uv", "pip", "install", "--quiet", "--python", python)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    run(*install, "--resolution", "lowest-direct", "--editable", f"{ROOT}[{','.join(extras)}]")
    run(*install, *(f"{name}=={metadata.version(name)}" for name in TOOLS))
    listed = json.loads(run("uv", "pip", "list", "--python", python, "--format", "json"))
    installed = {package["name"]: package["version"] for package in listed}
    for each in map(Requirement, [*project["dependencies"], *itertools.chain(*extras.values())]):
        (lower,) = (one.version for one in each.specifier if one.operator == ">=")
        assert f"{installed[canonicalize_name(each.name)]}.".startswith(f"{lower}."), each

    # Check them, train on two ranks, and run tests
    assert json.loads(run(venv / "bin" / "mjlab-dist", "doctor", "--json"))["passed"]
    flags = ["--gpu-ids", "None", "--cpu-ranks", "2", "--num-envs", "16", "--max-iterations", "2"]
    run(venv / "bin" / "train", "cartpole-balance", *flags, "--log-root", tmp_path)
    (run_dir,) = (tmp_path / "cartpole-balance").iterdir()
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 2
    run(python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *LEFT_OUT, *TESTS)
