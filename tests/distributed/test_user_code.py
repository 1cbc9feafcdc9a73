"""User code in ranks changes the settings of its process. The run goes on, and still obeys its launcher."""

from __future__ import annotations

import os
import re
import signal
import textwrap
from collections.abc import Callable

import pytest
from configs import changed
from conftest import Command
from run_files import only_run

from mjlab_dist.config import RewardConfig, registry
from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import find_checkpoint, read_metrics, to_yaml

WaitFor = Callable[[Callable[[], bool]], None]

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
CLOSED = {
    "closed": "sys.stdout.close(); sys.stderr.close(); print('a'); print('b', file=sys.stderr)",
    "descriptors": "os.close(1); os.close(2)",
    "none": "sys.stdout = sys.stderr = None",
}

CHANGED = """
logging.basicConfig(force=True)
os.chdir(os.environ["ELSEWHERE"])
"""

# Only in ranks whose output goes to their log
ODD = r"""
os.write(1, b'\xff\xfe\n')
sys.stdout.buffer.write(b'\xfd')
sys.stdout.flush()
print('\udcff')
for each in (signal.SIGTERM, signal.SIGINT):
    signal.signal(each, signal.SIG_IGN)
"""


@pytest.fixture
def train(command: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, ...]]:
    """Function that writes a task whose reward term runs some code when it is imported, and returns its command."""
    monkeypatch.setenv("PYTHONPATH", str(command.cwd))

    def write(code: str, *flags: str) -> tuple[str, ...]:
        (command.cwd / "own_terms.py").write_text(TERM.format(code=textwrap.indent(code, "    ")))
        config = registry.task_config("cartpole-balance")
        config = changed(config, "env.rewards.extra", RewardConfig(func="own_terms:speak", weight=1.0))
        (command.cwd / "config.yaml").write_text(to_yaml(config))
        return ("train", "--config", "config.yaml", "--gpu-ids", "None", "--num-envs", "8", *flags)

    return write


@pytest.mark.parametrize(
    ("code", "ranks"), [(CHANGED + ODD, ("--cpu-ranks", "2")), (CHANGED, ())], ids=["2 ranks", "1 rank"]
)
def test_a_run_whose_terms_change_everything_trains_and_can_be_stopped(
    command: Command, train: Callable[..., tuple[str, ...]], wait_for: WaitFor, code: str, ranks: tuple[str, ...]
) -> None:
    elsewhere = command.cwd / "elsewhere"
    elsewhere.mkdir()
    flags = ("--max-iterations", "100000", "--checkpoint.interval", "2", *ranks)
    process = command.start(*train(code, *flags), env={"ELSEWHERE": str(elsewhere)})
    wait_for(lambda: any(path.stat().st_size > 3000 for path in command.cwd.rglob("metrics.jsonl")))
    os.kill(process.pid, signal.SIGTERM)
    stopped = command.finish(process)
    assert stopped.code == Exit.RESUMABLE, stopped.out + stopped.err
    assert not command.leftovers()
    # The files of the run are those of any other run, and in its directory
    run = only_run(command.cwd)
    rows = [row["iteration"] for row in read_metrics(run)]
    assert rows == list(range(1, len(rows) + 1))
    assert find_checkpoint(run).name == f"model_{rows[-1]}.pt"
    assert f"logs/cartpole-balance/{run.name}" in stopped.out
    assert not list(elsewhere.iterdir())
    # The logs have what each rank printed
    logs = list((run / "torchrunx").rglob("localhost[[][01]].log"))
    assert len(logs) == (2 if ranks else 0)
    for log in logs:
        assert b"\xff\xfe\n\xfd" in log.read_bytes()
        assert log.read_bytes().count(b"spoken\n") >= 32 * len(rows)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "ranks"), [*((name, ("--cpu-ranks", "2")) for name in SETTINGS), ("force", ("--max-restarts", "1"))]
)
def test_settings_of_logging_do_not_matter(
    command: Command, train: Callable[..., tuple[str, ...]], name: str, ranks: tuple[str, ...]
) -> None:
    done = command(*train(SETTINGS[name], "--max-iterations", "3", *ranks))
    assert done.code == Exit.DONE, done.out + done.err
    assert "iteration 3/3" in done.out
    assert [row["iteration"] for row in read_metrics(only_run(command.cwd))] == [1, 2, 3]
    (log,) = only_run(command.cwd).rglob("localhost[[]0].log")
    assert log.read_bytes().count(b"spoken\n") >= 96
    assert len(log.read_bytes()) < 100_000


@pytest.mark.long
@pytest.mark.parametrize("name", CLOSED)
def test_a_print_never_ends_training(command: Command, train: Callable[..., tuple[str, ...]], name: str) -> None:
    done = command(*train(CLOSED[name], "--max-iterations", "2", "--cpu-ranks", "2"))
    assert done.code == Exit.DONE, done.out + done.err


def test_an_error_is_reported_although_logging_is_disabled(
    command: Command, train: Callable[..., tuple[str, ...]]
) -> None:
    code = "logging.disable(logging.CRITICAL)\nsys.stderr = None\nraise RuntimeError('no')"
    done = command(*train(code, "--max-iterations", "2", "--cpu-ranks", "2"))
    assert done.code == Exit.USAGE
    assert re.search(r"^train: .*own_terms.*no", done.err, re.MULTILINE)
