"""The tasks in examples/tasks are installed as another package, train, and reach their goals."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from conftest import Command

from mjlab_dist.runs.run_dir import read_metrics

PACKAGE = Path(__file__).parents[2] / "examples" / "tasks"

PROJECT = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]

TASKS: dict[str, str] = PROJECT["entry-points"]["mjlab_dist.tasks"]


@pytest.fixture
def installed(command: Command) -> Command:
    """Runs commands in an environment in which the package is installed."""
    info = command.cwd / f"{PROJECT['name'].replace('-', '_')}-{PROJECT['version']}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n"
    )
    entries = "".join(f"{name} = {function}\n" for name, function in TASKS.items())
    info.joinpath("entry_points.txt").write_text(f"[mjlab_dist.tasks]\n{entries}")
    return command


def environ(command: Command) -> dict[str, str]:
    return {"PYTHONPATH": f"{command.cwd}:{PACKAGE}"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["example-hop", *(pytest.param(name, marks=pytest.mark.long) for name in TASKS if name != "example-hop")]
)
def test_an_example_passes_all_checks(installed: Command, task: str) -> None:
    done = installed("mjlab-dist", "check", task, env=environ(installed), timeout_s=600)
    assert done.code == 0, done.out + done.err


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("task", "metric", "low", "high"),
    [
        ("example-hop", "metric/followed", 0.7, 1.0),
        ("example-push", "metric/success", 0.8, 1.0),
        ("example-finger", "metric/distance_m", 0.0, 0.03),
    ],
)
def test_an_example_learns_what_it_is_for(installed: Command, task: str, metric: str, low: float, high: float) -> None:
    flags = ("--gpu-ids", "None", "--cpu-ranks", "2", "--seed", "1")
    done = installed("train", task, *flags, env=environ(installed), timeout_s=3000)
    assert done.code == 0, done.err
    (run,) = (installed.cwd / "logs" / task).iterdir()
    assert low <= read_metrics(run)[-1][metric] <= high
