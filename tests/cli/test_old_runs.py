"""Runs of older versions can be resumed and played."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import Command

from mjlab_dist.config.references import resolve
from mjlab_dist.config.serialization import MOVED_MODULES, MOVED_PARAMETERS, to_plain
from mjlab_dist.run_dir import CONFIG_FILE, read_config_file, read_metrics

DATA = Path(__file__).parent.parent / "data"

OLD_RUNS = ("quadruped_run_before_mdp",)
"""Run directories of quadruped-velocity-flat with two envs and two iterations. The config names modules in
mjlab_dist.env that have moved since."""


@pytest.fixture(params=OLD_RUNS)
def old_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of an old run directory."""
    return Path(shutil.copytree(DATA / request.param, tmp_path / "logs" / "quadruped-velocity-flat" / "old"))


def test_an_old_run_names_no_module_that_has_moved(old_run: Path) -> None:
    assert any(module in (old_run / CONFIG_FILE).read_text() for module in MOVED_MODULES)
    plain = json.dumps(to_plain(read_config_file(old_run)))
    assert not [module for module in MOVED_MODULES if f'"{module}:' in plain]


def test_an_old_run_names_no_parameter_that_has_moved(old_run: Path) -> None:
    before = yaml.safe_load((old_run / CONFIG_FILE).read_text())["env"]
    assert before["terminations"]["tilt"]["params"]["most_rad"] == 1.0
    env = read_config_file(old_run).env
    assert env.terminations["tilt"].params["max_rad"] == 1.0
    assert env.rewards["feet_air_time"].params["min_s"] == before["rewards"]["feet_air_time"]["params"]["least_s"]


@pytest.mark.parametrize("func", MOVED_PARAMETERS)
def test_parameters_that_have_moved_are_parameters_now(func: str) -> None:
    parameters = inspect.signature(resolve(func)).parameters
    for old, new in MOVED_PARAMETERS[func].items():
        assert old not in parameters
        assert new in parameters


@pytest.mark.slow
def test_an_old_run_resumes_with_its_envs(command: Command, old_run: Path) -> None:
    done = command("train", "--resume", str(old_run), "--max-iterations", "3")
    assert done.code == 0, done.err
    assert "from iteration 2." in done.out  # the sentence ends here; it is longer if env states are sampled again
    rows = read_metrics(old_run)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    added = {"termination/time_limit", "num_termination/time_limit", "command/velocity/error_m_s"}
    assert added - rows[1].keys() == added
    assert added <= rows[2].keys()


@pytest.mark.slow
def test_an_old_run_plays(command: Command, old_run: Path) -> None:
    done = command("play", "quadruped-velocity-flat", "--run", str(old_run), "--num-envs", "2")
    assert done.code == 0, done.err
    assert "command/velocity/error_m_s" in done.out
