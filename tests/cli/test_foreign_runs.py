"""No command executes code that other people's runs and config files name, unless the user allows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from configs import changed
from conftest import Command
from fault_injection import faults
from run_files import write_checkpoint

import mjlab_dist
from mjlab_dist.config import RewardConfig, TrainConfig, registry
from mjlab_dist.errors import Exit, UserError
from mjlab_dist.runs.run_dir import CONFIG_FILE, checkpoint_path, read_metrics, to_yaml

TASK = "cartpole-balance"


def write_run(root: Path, config: TrainConfig) -> Path:
    run_dir = root / "logs" / TASK / "foreign"
    write_checkpoint(checkpoint_path(run_dir, 1))
    (run_dir / CONFIG_FILE).write_text(to_yaml(config))
    return run_dir


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A run directory with a harmful config: its `model` is a function of the standard library that runs a program."""
    config = changed(registry.task_config(TASK), "env.sim.model", "pydoc:pipepager")
    params = {"text": "", "cmd": f"touch {tmp_path}/ran"}
    return write_run(tmp_path, changed(config, "env.sim.model_params", params))


COMMANDS = (
    "train --config {run}",
    "train --resume {run}",
    "train cartpole-balance --resume latest",
    "train --config {run} --help-all",
    "play cartpole-balance --run {run}",
    "play cartpole-balance",
    "play cartpole-balance --checkpoint {run}/checkpoints/model_1.pt",
    "play cartpole-balance --nan-dump {run}/checkpoints/model_1.pt",
    "mjlab-dist check --config {run}",
    "mjlab-dist verify --config {run}",
    "mjlab-dist size-buffers --config {run}",
)


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_refuses_a_foreign_config(line: str, command: Command, foreign: Path):
    done = command.here(*line.format(run=foreign).split())
    assert done.code == Exit.USAGE
    (message,) = done.err.splitlines()
    assert f"/{CONFIG_FILE}: env.sim.model pydoc:pipepager: " in message
    assert "--trust" in message
    assert not (command.cwd / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("line", [COMMANDS[0], COMMANDS[5]])
def test_the_user_can_trust_a_foreign_config(line: str, command: Command, foreign: Path):
    done = command.here(*line.format(run=foreign).split(), "--trust")
    assert "--trust" not in done.err
    assert (command.cwd / "ran").exists()


@pytest.mark.slow
def test_python_refuses_a_foreign_config_too(foreign: Path):
    with pytest.raises(UserError, match="pydoc:pipepager"):
        mjlab_dist.train(TASK, resume=str(foreign))
    with pytest.raises(UserError, match=r"gone\.xml"):  # the check passes, but this model does not exist
        mjlab_dist.train(
            TASK, resume=str(foreign), trust=True, **{"env.sim.model": "gone.xml", "env.sim.model_params": {}}
        )


def test_flags_that_the_user_types_are_trusted(command: Command):
    flags = ("--env.rewards.smooth.func", "os.path:exists", "--print-config")
    done = command.here("train", TASK, *flags)
    assert done.code == 0, done.err
    assert "func: os.path:exists" in done.out
    (command.cwd / CONFIG_FILE).write_text(to_yaml(registry.task_config(TASK)))
    assert command.here("train", "--config", CONFIG_FILE, *flags).code == 0


@pytest.mark.slow
@pytest.mark.long
def test_restarts_and_ranks_of_an_allowed_run_do_not_ask_again(command: Command, tmp_path: Path):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "library.py").write_text("def one(env):\n    return env.sim.qpos[:, 0] * 0 + 1\n")
    config = registry.task_config(TASK)
    config = changed(config, "env.rewards.extra", RewardConfig(func="library:one", weight=1.0))
    config = changed(changed(config, "env.sim.on_overflow", "grow"), "checkpoint.interval", 1)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    flags = ("--gpu-ids", "None", "--cpu-ranks", "2", "--num-envs", "8", "--max-iterations", "4", "--max-restarts", "1")
    flags += faults(tmp_path, "1:2:raise")
    env = {"PYTHONPATH": os.pathsep.join([str(installed), os.environ["PYTHONPATH"]])}
    assert command("train", "--config", "config.yaml", *flags, env=env).code == Exit.USAGE
    done = command("train", "--config", "config.yaml", "--trust", *flags, env=env)
    assert done.code == Exit.DONE, done.out + done.err
    assert "(1 of 1)" in done.out
    (run,) = (tmp_path / "logs" / TASK).iterdir()
    assert [row["iteration"] for row in read_metrics(run)] == [1, 2, 3, 4]


@pytest.fixture
def foreign_ssh(tmp_path: Path) -> Path:
    """A run directory with an SSH config file. Such a file can run any program."""
    return write_run(tmp_path, changed(registry.task_config(TASK), "ssh_config", str(tmp_path / "ssh_config")))


@pytest.mark.parametrize("line", ["train --resume {run}", "train --config {run}"])
def test_an_ssh_config_file_is_refused_unless_the_command_names_it(line: str, command: Command, foreign_ssh: Path):
    args = (*line.format(run=foreign_ssh).split(), "--print-config")
    assert command.here(*args).code == Exit.USAGE
    assert command.here(*args, "--ssh-config", str(foreign_ssh.parent / "own")).code == Exit.DONE


def test_an_ssh_config_file_is_refused_from_python_unless_the_call_names_it(foreign_ssh: Path):
    with pytest.raises(UserError, match="ssh_config"):
        mjlab_dist.train(TASK, resume=str(foreign_ssh), max_iterations=0)
    with pytest.raises(UserError, match="max-iterations"):
        mjlab_dist.train(TASK, resume=str(foreign_ssh), ssh_config=str(foreign_ssh.parent / "own"), max_iterations=0)


@pytest.mark.slow
def test_play_ignores_an_ssh_config_file(command: Command, foreign_ssh: Path):
    done = command.here("play", TASK, "--run", str(foreign_ssh))
    assert "ssh_config" not in done.err
    assert str(checkpoint_path(foreign_ssh, 1)) in done.err


def test_machines_and_directories_that_a_config_chooses_are_named(command: Command, tmp_path: Path):
    config = changed(changed(registry.task_config(TASK), "hosts", ("localhost", "node7")), "log_root", "/elsewhere")
    run = write_run(tmp_path, config)
    done = command.here("train", "--config", str(run / CONFIG_FILE), "--print-config")
    assert f"{CONFIG_FILE} sets --hosts localhost node7 --log-root /elsewhere" in done.err
    done = command.here("train", "--config", str(run / CONFIG_FILE), "--log-root", "logs", "--print-config")
    assert "--log-root" not in done.err
    done = command.here("train", "--resume", str(run), "--hosts", "localhost", "--print-config")
    assert done.err == "", "a resumed run stays in its directory"
