"""A run that is disturbed many times equals a run without faults, and leaves nothing behind.

At random times, also while ranks start or save, a random process of the run receives a signal. If the command itself is
killed or ends, it is started again with ``--resume``.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import BIN
from processes import AGENT_MODULE, command_line, with_argument
from run_files import assert_equal, final, untimed

from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import CHECKPOINTS_DIR, CONFIG_FILE, METRICS_FILE

MARK = "MJLAB_DIST_SOAK"  # all processes of the run inherit this variable, so that those left behind are found
# Relative frequency of each fault
FAULTS = {
    "rank killed": 8,
    "rank stopped": 1,
    "rank terminated": 2,
    "agent killed": 3,
    "log server killed": 3,
    "launcher paused": 2,
    "launcher killed": 2,
    "launcher terminated": 2,
    "launcher interrupted twice": 1,
}
MEAN_PAUSE_S = 2.0
HANG_TIMEOUT_S = 10
PATIENCE_S = 180.0  # without a new row of metrics, the test then fails


class Soak:
    """A run in which faults occur."""

    def __init__(self, flags: list[str], log_root: Path, temporary: Path) -> None:
        self._flags = flags
        self._log_root = log_root
        self._draw = random.Random(1)
        self._environ = {**os.environ, MARK: "1", "TMPDIR": str(temporary)}
        self._command = self._start()

    def run(self, num_faults: int) -> Path:
        """Train with faults, then stop the run, which saves a checkpoint. Return the run directory."""
        counts: collections.Counter[str] = collections.Counter()
        while counts.total() < num_faults:
            # Half of the faults follow a new row of metrics; many of the others occur while ranks start
            if self._draw.random() < 0.5:
                self._wait_for_a_row()
            until = time.monotonic() + self._draw.expovariate(1 / MEAN_PAUSE_S)
            self._wait_until(lambda until=until: time.monotonic() >= until)
            (kind,) = self._draw.choices(list(FAULTS), weights=list(FAULTS.values()))
            counts[kind] += self._cause(kind)
        assert {"rank killed", "agent killed", "log server killed", "launcher killed"} <= (+counts).keys()
        for _ in range(2):  # a command that was just killed may still have written one row
            self._wait_for_a_row()
        self._command.send_signal(signal.SIGTERM)
        assert self._command.wait() == Exit.RESUMABLE
        return self._run_dir()

    def _start(self) -> subprocess.Popen[bytes]:
        started = any(self._log_root.rglob(CONFIG_FILE))
        if not started:  # a command that was killed before it wrote the config has no run to resume
            shutil.rmtree(self._log_root, ignore_errors=True)
        how = ["--resume", str(self._run_dir())] if started else ["cartpole-balance", "--log-root", str(self._log_root)]
        return subprocess.Popen([str(BIN / "train"), *how, *self._flags], env=self._environ, stdout=subprocess.DEVNULL)

    def _cause(self, kind: str) -> bool:
        """Cause a fault; return False if the run has no process for this fault at the moment."""
        try:
            return self._signal(kind)
        except psutil.NoSuchProcess:
            return False

    def _signal(self, kind: str) -> bool:
        launcher = psutil.Process(self._command.pid)
        ranks, agents, log_servers = self._processes()
        match kind:
            case "rank killed" | "rank stopped" | "rank terminated" if ranks:
                number = {"rank killed": signal.SIGKILL, "rank stopped": signal.SIGSTOP}.get(kind, signal.SIGTERM)
                self._draw.choice(ranks).send_signal(number)
            case "agent killed" if agents:
                agents[0].kill()
            case "log server killed" if log_servers:
                log_servers[0].kill()
            case "launcher paused":
                launcher.suspend()
                time.sleep(self._draw.uniform(0.1, 1.5 * HANG_TIMEOUT_S))
                launcher.resume()
            case "launcher killed":
                launcher.kill()
            case "launcher terminated":
                launcher.terminate()
            case "launcher interrupted twice":
                launcher.send_signal(signal.SIGINT)
                launcher.send_signal(signal.SIGINT)
            case _:
                return False
        return True

    def _wait_for_a_row(self) -> None:
        before = self._num_rows()
        self._wait_until(lambda: self._num_rows() > before)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true. Start the command again whenever it ends in the meantime."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self._command.poll() is not None:
                code = self._command.returncode
                expected = {Exit.RESUMABLE, Exit.INFRASTRUCTURE, Exit.FAILED, 128 + signal.SIGINT, 128 + signal.SIGTERM}
                assert code < 0 or code in expected
                self._command = self._start()
            assert time.monotonic() < deadline, "the run does not continue"
            time.sleep(0.02)

    def _num_rows(self) -> int:
        files = list(self._log_root.rglob(METRICS_FILE))
        return files[0].read_bytes().count(b"\n") if files else 0

    def _run_dir(self) -> Path:
        (run_dir,) = (self._log_root / "cartpole-balance").iterdir()
        return run_dir

    def _processes(self) -> tuple[list[psutil.Process], list[psutil.Process], list[psutil.Process]]:
        """Return the ranks, the agents (processes that start ranks) and the log servers."""
        ranks: list[psutil.Process] = []
        log_servers: list[psutil.Process] = []
        found = psutil.Process(self._command.pid).children(recursive=True)
        for process in found:
            own, parents = command_line(process), command_line(psutil.Process(process.ppid()))
            if all("multiprocessing.forkserver" in " ".join(each) for each in (own, parents)):
                ranks.append(process)
            elif own and own == parents:
                log_servers.append(process)
        return ranks, with_argument(found, AGENT_MODULE), log_servers


def marked_processes() -> list[str]:
    """Return the processes of the run that are still running."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK):
                found.append(f"{process.pid} ({process.name()})")
        except psutil.Error:
            continue
    return found


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_run_with_many_faults_equals_a_run_without(
    short_tmp: Path, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    flags = ["--gpu-ids", "None", "--cpu-ranks", "3", "--num-envs", "64", "--seed", "1"]
    disturbed = ["--checkpoint.interval", "1", "--max-restarts", "1000", "--hang-timeout", str(HANG_TIMEOUT_S)]
    temporary = short_tmp / "t"
    temporary.mkdir()
    semaphores = set(Path("/dev/shm").iterdir())
    soak = Soak([*flags, *disturbed, "--max-iterations", "1000000"], short_tmp / "disturbed", temporary)
    run_dir = soak.run(60)

    wait_for(lambda: not marked_processes())
    assert not [file for file in (run_dir / CHECKPOINTS_DIR).iterdir() if file.name.endswith(".tmp")]
    assert set(Path("/dev/shm").iterdir()) <= semaphores
    rows = untimed(run_dir)

    root = short_tmp / "undisturbed"
    command = [str(BIN / "train"), "cartpole-balance", "--log-root", str(root), *flags]
    command += ["--max-iterations", str(len(rows))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(temporary)})
    assert not list(temporary.iterdir()), "the launch removes what killed commands left"
    (undisturbed,) = (root / "cartpole-balance").iterdir()
    assert rows == untimed(undisturbed)
    assert_equal(final(run_dir), final(undisturbed))
