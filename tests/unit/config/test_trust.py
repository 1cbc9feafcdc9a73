"""A config from a file can run only code of this package, of task packages, and of the user."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from configs import LEGGED, changed
from every_task import NAMES, config_of

from mjlab_dist.config import EntityConfig, ParamValue, TermConfig, TerminationConfig, TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.runs.run_dir import CONFIG_FILE, read_config_file, to_yaml

TERM = "def reached(env):\n    return env\n\n\nclass Reached:\n    def __init__(self, env):\n        pass\n"

OWN_TERMS = """
import functools, os, subprocess
import mjlab_dist.env.term as ours
from mjlab_dist.learn.loggers import Logger
from mjlab_dist.mdp import actions
from os import system
from torch import load as read
from .shared import reached as again
from . import shared
from ...far import beyond
copy = system
made = functools.partial(again, x=1)
bound = functools.partial(again, 1)
wrapped = functools.partial(shared.reached)
short = lambda env: env
program = functools.partial(subprocess.run)
quick = lambda cmd: cmd
called = reached(1)
class Lift(actions.ActuatorInput):
    pass
class Goal(ours.Command):
    pass
class Curves(Logger):
    def log(self, row, step):
        pass
class Mean:
    def reduce(self, buffer):
        pass
    def due(self, iteration):
        pass
class Rewards:
    @staticmethod
    def high(env):
        pass
    def run(self, cmd):
        pass
def typed(_: "Env"):
    pass
def execute(cmd):
    pass
def _hidden(env):
    pass
def scene(cmd) -> mujoco.MjSpec:
    pass
def make(cmd):
    pass
try:
    from .shared import Reached as Other
except ImportError:
    pass
"""

Read = Callable[..., TrainConfig]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Function that writes a config into a run directory, and reads it."""

    def read(config: TrainConfig, **kwargs: Any) -> TrainConfig:
        run_dir = tmp_path / "logs" / "task" / "run"
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / CONFIG_FILE).write_text(to_yaml(config))
        return read_config_file(run_dir, **kwargs)

    return read


def with_term(reference: str) -> TrainConfig:
    return changed(LEGGED, "env.terminations.extra", TerminationConfig(func=reference))


def refusal(read: Read, config: TrainConfig) -> str:
    with pytest.raises(UserError) as caught:
        read(config)
    message = str(caught.value)
    assert message.startswith("--config ")
    assert f"/{CONFIG_FILE}: " in message
    assert "--trust" in message
    return message


@pytest.mark.parametrize("task", NAMES)
def test_tasks_are_trusted(task: str, read: Read):
    config = config_of(task)
    assert read(config) == config


@pytest.mark.parametrize(
    "reference",
    [
        *("os:system", "posix:system", "torch:load", "six.moves:reload_module"),
        "mjlab_dist.machine.processes:run_program",
        "mjlab_dist.config.terms:resolve",
        "mjlab_dist.mdp.motors:torch.load",
        "mjlab_dist.mdp.rewards:tilt.__globals__.clear",
        "mjlab_dist.mdp.rewards:no_such_name",
        "mjlab_dist.mdp_of_others:run",
        "mjlab_dist.mdp.rewards:tilt\n",
        "no_such_module:run",
        ":run",
        "os:",
    ],
)
def test_other_functions_are_refused(reference: str, read: Read):
    config = with_term(reference)
    message = refusal(read, config)
    assert f"env.terminations.extra.func {reference.splitlines()[0]}" in message
    assert read(config, trust=True) == config  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("env.rewards.params", TermConfig(func="os:system")),
        ("env.sim.model", "os:system"),
        ("env.sim.entities.model_params", EntityConfig(model="os:system")),
        ("sync.synchronizer", "os:system"),
        ("ssh_config", "cluster/ssh_config"),
        ("ssh_config", "~nobody_at_all/.ssh/config"),
    ],
)
def test_every_field_counts(path: str, value: Any, read: Read):
    if path == "env.rewards.params":  # "params" is the name of a reward here, not its parameters
        value = next(iter(LEGGED.env.rewards.values())).__class__(func="os:system", weight=1.0)
    message = refusal(read, changed(LEGGED, path, value))
    assert (path if isinstance(value, str) else f"{path}.") in message


def test_every_logger_counts(read: Read):
    config = changed(LEGGED, "logger", ("tensorboard", "wandb", "os:system"))
    assert "logger os:system" in refusal(read, config)
    assert read(config, trust=True) == config  # pyright: ignore[reportCallIssue]
    config = changed(LEGGED, "logger", ("tensorboard", "wandb", "trackio"))
    assert read(config) == config


@pytest.mark.parametrize("file", ["~/.ssh/config", "/etc/ssh/cluster"])
def test_ssh_s_own_files_are_trusted(file: str, read: Read):
    config = changed(LEGGED, "ssh_config", file)
    assert read(config) == config


def test_a_file_of_ssh_that_is_not_used_is_not_refused(read: Read):
    config = changed(LEGGED, "ssh_config", "cluster/ssh_config")
    assert read(config, uses_ssh=False) == config


def test_values_of_parameters_name_no_functions(read: Read):
    params: dict[str, ParamValue] = {"func": "os:system", "model": "os:system"}
    term = TerminationConfig(func="mjlab_dist.mdp.rewards:tilt", params=params)
    config = changed(LEGGED, "env.terminations.extra", term)
    assert read(config) == config


def test_nothing_is_imported(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch):
    installed = tmp_path / "site-packages"
    (installed / "evil").mkdir(parents=True)
    for name in ("__init__.py", "terms.py"):
        (installed / "evil" / name).write_text(f"raise AssertionError\n{TERM}")
    monkeypatch.syspath_prepend(str(installed))
    refusal(read, with_term("evil.terms:reached"))
    assert read(changed(LEGGED, "env.sim.model", "evil.terms:robot.xml"))
    from mjlab_dist.sim.scene import find_file

    with pytest.raises(UserError, match="there is no file"):
        find_file("--env.sim.model", "evil.terms:robot.xml")
    assert "evil" not in sys.modules


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with modules of the user, outside the working directory."""
    folder = tmp_path / "project"
    package = folder / "own_robot"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "shared.py").write_text(TERM)
    (package / "terms.py").write_text(OWN_TERMS + TERM)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    "name",
    ["reached", "Reached", "again", "made", "wrapped", "short", "Lift", "Goal", "Rewards.high", "typed", "Other"],
)
@pytest.mark.usefixtures("project")
def test_the_user_s_own_modules_are_trusted(name: str, read: Read):
    config = with_term(f"own_robot.terms:{name}")
    assert read(config) == config


@pytest.mark.parametrize(
    "name",
    ["system", "read", "os.system", "copy", "program", "beyond", "Reached.__init__", "shared.reached", "nothing"],
)
@pytest.mark.usefixtures("project")
def test_functions_that_the_user_s_own_modules_import_are_not_trusted(name: str, read: Read):
    refusal(read, with_term(f"own_robot.terms:{name}"))


@pytest.mark.parametrize(
    ("path", "reference"),
    [
        ("env.sim.model", "mjlab_dist.distributed.synchronizer:find_synchronizer"),
        ("env.sim.model", "mjlab_dist.mdp.motion:read_motions"),
        ("env.sim.model", "mjlab_dist.mdp.rewards:tilt"),
        *(("env.sim.model", f"own_robot.terms:{name}") for name in ("make", "Reached")),
        ("sync.synchronizer", "mjlab_dist.distributed.synchronizer:find_synchronizer"),
        ("sync.synchronizer", "own_robot.terms:execute"),
        ("logger", ("mjlab_dist.mdp.rewards:tilt",)),
        ("logger", ("own_robot.terms:Mean",)),
        ("term", "mjlab_dist.distributed.synchronizer:AllReduce"),
        *(("term", f"mjlab_dist.mdp.{name}") for name in ("data_files:read_layers", "rotation:heading")),
        *(("term", f"own_robot.terms:{name}") for name in ("execute", "bound", "quick", "called", "scene", "Mean")),
        *(("term", f"own_robot.terms:{name}") for name in ("Rewards", "Rewards.run", "reached.high", "_hidden")),
    ],
)
@pytest.mark.usefixtures("project")
def test_only_public_functions_of_the_kind_that_the_field_needs_are_trusted(path: str, reference: str, read: Read):
    refusal(read, with_term(reference) if path == "term" else changed(LEGGED, path, reference))


@pytest.mark.parametrize(
    ("path", "reference"),
    [
        ("env.sim.model", "own_robot.terms:scene"),
        ("sync.synchronizer", "own_robot.terms:Mean"),
        ("sync.synchronizer", "mjlab_dist.distributed.synchronizer:AllReduce"),
        ("logger", ("own_robot.terms:Curves",)),
    ],
)
@pytest.mark.usefixtures("project")
def test_every_kind_can_be_the_user_s_own(path: str, reference: str, read: Read):
    assert read(changed(LEGGED, path, reference))


def test_code_beside_a_link_to_a_config_is_not_the_user_s_own(
    tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    run_dir = tmp_path / "logs" / "task" / "run"
    targets = [run_dir, run_dir / "first", run_dir / "second"]
    for folder in targets:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "brought.py").write_text(TERM)
    # config.yaml is a link to a link
    (run_dir / CONFIG_FILE).symlink_to("first/there.yaml")
    (run_dir / "first" / "there.yaml").symlink_to("../second/config.yaml")
    importlib.invalidate_caches()
    for module in ("brought", "first.brought", "second.brought"):
        refusal(read, with_term(f"logs.task.run.{module}:reached"))
    # Links between directories that are not inside each other
    (run_dir / CONFIG_FILE).unlink()
    (run_dir / CONFIG_FILE).symlink_to(tmp_path / "elsewhere" / "config.yaml")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "brought.py").write_text(TERM)
    importlib.invalidate_caches()
    for module in ("logs.task.run.brought", "elsewhere.brought"):
        refusal(read, with_term(f"{module}:reached"))
    # A directory on the import path is the user's own; the other one still is not
    monkeypatch.setattr(sys, "path", [str(tmp_path / "elsewhere"), *sys.path])
    assert read(with_term("elsewhere.brought:reached"))
    refusal(read, with_term("logs.task.run.brought:reached"))


def test_modules_in_a_run_directory_are_not_the_user_s_own(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    read(LEGGED)
    (tmp_path / "logs" / "task" / "run" / "brought.py").write_text(TERM)
    (tmp_path / "logs" / "task" / "beside.py").write_text(TERM)
    refusal(read, with_term("logs.task.run.brought:reached"))
    assert read(with_term("logs.task.beside:reached"))
    monkeypatch.chdir(tmp_path / "logs" / "task" / "run")
    importlib.invalidate_caches()
    assert read(with_term("brought:reached")), "the user has put the directory on the import path"


@pytest.mark.slow
def test_a_distribution_of_tasks_is_trusted_as_a_whole(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch):
    installed = tmp_path / "lib" / "site-packages"
    for name in ("two_robots", "two_sensors", "two_others"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text(TERM)
        info = installed / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "top_level.txt").write_text(f"{name}\n")
    robots = installed / "two_robots-1.0.dist-info"
    (robots / "entry_points.txt").write_text("[mjlab_dist.tasks]\ntwo = two_robots.config:two\n")
    (robots / "top_level.txt").write_text("two_robots\ntwo_sensors\n")
    monkeypatch.syspath_prepend(str(installed))
    assert read(with_term("two_robots:reached"))
    assert read(with_term("two_sensors:reached"))
    refusal(read, with_term("two_others:reached"))


def test_installed_modules_that_are_links_are_not_the_user_s_own(
    tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "linked.py").write_text(TERM)
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "linked.py").symlink_to(tmp_path / "cache" / "linked.py")
    monkeypatch.syspath_prepend(str(installed))
    refusal(read, with_term("linked:reached"))
