"""Runs whose terminal is closed, whose output nobody reads, that Ctrl-Z stops, or whose agent is killed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import Command
from processes import AGENT_MODULE, with_argument
from run_files import only_run

from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import METRICS_FILE, find_checkpoint, read_metrics

SMALL = (
    *("--gpu-ids", "None", "--num-envs", "32", "--agent.num-steps-per-env", "8"),
    *("--agent.num-learning-epochs", "1", "--agent.num-mini-batches", "1"),
)
TRAIN = ("train", "cartpole-balance", *SMALL)
ENDLESS = ("--max-iterations", "100000", "--logger", "slow_logger:Slow")

PIPE_BYTES = 65536
"""Capacity of a pipe in bytes."""

Within = Callable[[float, float], None]
WaitFor = Callable[[Callable[[], bool]], None]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slow_training")]


def num_rows(command: Command) -> int:
    files = (command.cwd / "logs").rglob(METRICS_FILE)
    return sum(file.read_bytes().count(b"\n") for file in files)


@pytest.mark.parametrize("num_ranks", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_a_run_ends_normally_although_its_output_is_not_read(command: Command, num_ranks: str) -> None:
    flags = ("--cpu-ranks", num_ranks, "--max-iterations", "12")
    process = command.start(*TRAIN, *flags, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == Exit.DONE
    assert len(read_metrics(only_run(command.cwd))) == 12


IN_TERMINAL = """
import fcntl
import signal
import sys
import termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if sys.argv.pop(1) == "ignore":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
from mjlab_dist.cli.entry import train

sys.argv[0] = "train"
train()
"""
"""Program that makes its standard input the terminal of its session, and trains."""


def start_in_terminal(command: Command, *flags: str, ignores_hangup: bool) -> tuple[subprocess.Popen[str], int]:
    """Start a run in a terminal. Return the run's process, and the other end of the terminal."""
    screen, terminal = pty.openpty()
    hangups = "ignore" if ignores_hangup else "default"
    script = command.script(IN_TERMINAL)
    process = command.start(script, hangups, *TRAIN[1:], *flags, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    return process, screen


@pytest.mark.parametrize("num_ranks", [pytest.param("1", marks=pytest.mark.long), "2"])
def test_a_run_whose_terminal_closes_saves_a_checkpoint_and_stops(
    command: Command, num_ranks: str, wait_for: WaitFor
) -> None:
    process, screen = start_in_terminal(command, "--cpu-ranks", num_ranks, *ENDLESS, ignores_hangup=False)
    wait_for(lambda: num_rows(command) > 2)
    os.close(screen)
    assert process.wait(timeout=60) == Exit.RESUMABLE
    done = read_metrics(only_run(command.cwd))[-1]["iteration"]
    assert find_checkpoint(only_run(command.cwd)).name == f"model_{done}.pt"


def test_a_run_that_ignores_hangups_continues_without_a_terminal(command: Command, wait_for: WaitFor) -> None:
    flags = ("--cpu-ranks", "2", "--max-iterations", "20")
    process, screen = start_in_terminal(command, *flags, ignores_hangup=True)
    wait_for(lambda: num_rows(command) > 2)
    os.close(screen)
    assert process.wait(timeout=120) == Exit.DONE
    assert len(read_metrics(only_run(command.cwd))) == 20


def test_a_launcher_that_was_stopped_for_long_continues(
    command: Command, slow_training: Path, wait_for: WaitFor
) -> None:
    slow_training.write_text("0.1")
    process = command.start(*TRAIN, "--cpu-ranks", "2", *ENDLESS, "--hang-timeout", "2")
    wait_for(lambda: num_rows(command) > 2)
    # Ctrl-Z stops the launcher's process group, but not the ranks
    os.killpg(process.pid, signal.SIGSTOP)
    # Wait for longer than the hang timeout plus the launcher's margin, and for more events than two pipes can hold
    rows = only_run(command.cwd) / METRICS_FILE
    until, full = time.monotonic() + 15, rows.stat().st_size + 2 * PIPE_BYTES
    wait_for(lambda: time.monotonic() > until and rows.stat().st_size > full)
    before = num_rows(command)
    os.killpg(process.pid, signal.SIGCONT)
    wait_for(lambda: num_rows(command) > before + 5)
    process.send_signal(signal.SIGTERM)
    stopped = command.finish(process)
    assert stopped.code == Exit.RESUMABLE, stopped.out + stopped.err
    assert stopped.err == ""


@pytest.mark.long
def test_a_run_whose_processes_were_all_stopped_for_long_continues(
    command: Command, slow_training: Path, wait_for: WaitFor
) -> None:
    slow_training.write_text("0.1")
    process = command.start(*TRAIN, "--cpu-ranks", "2", *ENDLESS, "--hang-timeout", "2", "--max-restarts", "1")
    wait_for(lambda: num_rows(command) > 2)
    # As for a container that is paused, or a machine that is suspended
    stopped = command.processes()
    for each in stopped:
        each.suspend()
    until, before = time.monotonic() + 5, num_rows(command)
    wait_for(lambda: time.monotonic() > until)
    for each in stopped:
        each.resume()
    wait_for(lambda: num_rows(command) > before + 30)  # for longer than the timeout
    process.send_signal(signal.SIGTERM)
    done = command.finish(process)
    assert done.code == Exit.RESUMABLE, done.out + done.err
    assert "Restarting" not in done.out


def test_a_lost_agent_is_noticed_and_named(command: Command, wait_for: WaitFor, assert_within: Within) -> None:
    process = command.start(*TRAIN, "--cpu-ranks", "2", *ENDLESS)
    wait_for(lambda: num_rows(command) > 2)
    (agent,) = agents_of(process)
    agent.kill()
    done = command.finish(process)
    assert done.code == Exit.INFRASTRUCTURE
    assert "agent" in done.err
    assert_within(done.took_s, 5)


def agents_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the agents that a launcher has started, the oldest first."""
    return with_argument(psutil.Process(process.pid).children(), AGENT_MODULE)


def test_an_agent_that_ends_at_its_start_is_noticed_and_named(
    command: Command, wait_for: WaitFor, assert_within: Within
) -> None:
    process = command.start(*TRAIN, "--cpu-ranks", "2", *ENDLESS)
    wait_for(lambda: bool(agents_of(process)))
    agents_of(process)[0].kill()
    done = command.finish(process)
    assert done.code == Exit.INFRASTRUCTURE
    assert "agent" in done.err
    assert_within(done.took_s, 5)
