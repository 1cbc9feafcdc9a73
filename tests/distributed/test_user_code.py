"""User code in ranks changes the settings of its process. The run goes on, and still obeys its launcher."""

from __future__ import annotations

import os
import re
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from configs import changed
from conftest import Command
from run_files import only_run

from mjlab_dist import registry
from mjlab_dist.config import RewardConfig
from mjlab_dist.errors import Exit
from mjlab_dist.run_dir import find_checkpoint, read_metrics, to_yaml

pytestmark = pytest.mark.slow

TERM = """
import logging, logging.config, os, signal, sys, threading

def once():
{code}

once()

def speak(env):
    print("spoken", flush=True)
    return env.sim.qpos[:, 0] * 0
"""

SETTINGS = {
    "force": "logging.basicConfig(force=True)",
    "dict": "logging.config.dictConfig({'version': 1, 'disable_existing_loggers': True})",
    "clear": "logging.getLogger().handlers.clear()",
    "level": "logging.getLogger().setLevel(logging.CRITICAL)",
    "disable": "logging.disable(logging.CRITICAL)",
    "stream": "logging.getLogger().addHandler(logging.StreamHandler())",
    "factory": "logging.setLogRecordFactory(None)",
}
PRINTS = {
    "bytes": r"os.write(1, b'\xff\xfe\n'); sys.stdout.buffer.write(b'\xfd'); sys.stdout.flush(); print('\udcff')",
    "closed": "sys.stdout.close(); sys.stderr.close(); print('a'); print('b', file=sys.stderr)",
    "descriptors": "os.close(1); os.close(2)",
    "none": "sys.stdout = sys.stderr = None",
}


@pytest.fixture
def train(command: Command) -> Callable[..., tuple[str, ...]]:
    """Function that writes a task whose reward term runs some code when it is imported, and returns its command."""

    def write(code: str, *flags: str) -> tuple[str, ...]:
        (command.cwd / "own_terms.py").write_text(TERM.format(code=textwrap.indent(code, "    ")))
        config = registry.task_config("cartpole-balance")
        config = changed(config, "env.rewards.extra", RewardConfig(func="own_terms:speak", weight=1.0))
        (command.cwd / "config.yaml").write_text(to_yaml(config))
        devices = ("--gpu-ids", "None", "--num-envs", "8")
        return ("train", "--config", "config.yaml", *devices, *flags)

    return write


def environ(command: Command) -> dict[str, str]:
    return {"PYTHONPATH": str(command.cwd)}


def log_of(run: Path, rank: int) -> bytes:
    (file,) = (run / "torchrunx").rglob(f"localhost[[]{rank}].log")
    return file.read_bytes()


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("force", ("--cpu-ranks", "2")),
        *(pytest.param(name, ("--cpu-ranks", "2"), marks=pytest.mark.long) for name in SETTINGS if name != "force"),
        pytest.param("force", ("--max-restarts", "1"), marks=pytest.mark.long),
    ],
)
def test_settings_of_logging_do_not_matter(
    command: Command, train: Callable[..., tuple[str, ...]], name: str, flags: tuple[str, ...]
):
    done = command(*train(SETTINGS[name], "--max-iterations", "3", *flags), env=environ(command))
    assert done.code == Exit.DONE, done.out + done.err
    assert "iteration 3/3" in done.out
    run = only_run(command.cwd)
    assert [row["iteration"] for row in read_metrics(run)] == [1, 2, 3]
    assert log_of(run, 0).count(b"spoken\n") >= 96
    assert len(log_of(run, 0)) < 100_000


@pytest.mark.parametrize(
    "name", [name if name == "bytes" else pytest.param(name, marks=pytest.mark.long) for name in PRINTS]
)
def test_a_print_never_ends_training(command: Command, train: Callable[..., tuple[str, ...]], name: str):
    done = command(*train(PRINTS[name], "--max-iterations", "2", "--cpu-ranks", "2"), env=environ(command))
    assert done.code == Exit.DONE, done.out + done.err
    if name == "bytes":
        assert b"\xff\xfe\n\xfd" in log_of(only_run(command.cwd), 1)


def test_a_run_whose_signal_handlers_are_replaced_can_be_stopped(
    command: Command, train: Callable[..., tuple[str, ...]], wait_for: Callable[[Callable[[], bool]], None]
):
    code = "for each in (signal.SIGTERM, signal.SIGINT):\n    signal.signal(each, signal.SIG_IGN)"
    process = command.start(*train(code, "--max-iterations", "100000", "--cpu-ranks", "2"), env=environ(command))
    wait_for(lambda: any(path.stat().st_size > 3000 for path in command.cwd.rglob("metrics.jsonl")))
    os.kill(process.pid, signal.SIGTERM)
    stopped = command.finish(process)
    assert stopped.code == Exit.RESUMABLE, stopped.out + stopped.err
    run = only_run(command.cwd)
    assert find_checkpoint(run).name == f"model_{read_metrics(run)[-1]['iteration']}.pt"
    assert not command.leftovers()


def test_an_error_is_reported_although_logging_is_disabled(command: Command, train: Callable[..., tuple[str, ...]]):
    code = "logging.disable(logging.CRITICAL)\nsys.stderr = None\nraise RuntimeError('no')"
    done = command(*train(code, "--max-iterations", "2", "--cpu-ranks", "2"), env=environ(command))
    assert done.code == Exit.USAGE
    assert re.search(r"^train: .*own_terms.*no", done.err, re.MULTILINE)


@pytest.mark.parametrize("devices", [pytest.param(("--cpu-ranks", "2"), marks=pytest.mark.long), ()])
def test_a_term_may_change_the_working_directory(
    command: Command, train: Callable[..., tuple[str, ...]], devices: tuple[str, ...]
):
    (command.cwd / "elsewhere").mkdir()
    flags = ("--max-iterations", "4", "--checkpoint.interval", "2", *devices)
    done = command(*train(f"os.chdir({str(command.cwd / 'elsewhere')!r})", *flags), env=environ(command))
    assert done.code == Exit.DONE, done.out + done.err
    run = only_run(command.cwd)
    assert find_checkpoint(run).name == "model_4.pt"
    assert len(read_metrics(run)) == 4
    assert not list((command.cwd / "elsewhere").iterdir())
    assert f"Run:  logs/cartpole-balance/{run.name}" in done.out
