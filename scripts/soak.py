"""Disturb a training run many times with signals, and compare it with an undisturbed run.

    uv run python scripts/soak.py

The script trains cartpole-balance on several CPU ranks, with ``--max-restarts``. At random times, even while ranks
start or save, a random process of the run receives a signal. If the command itself is killed or ends, it is started
again with ``--resume``. The final checkpoint must equal that of a run without faults, and no process, port, semaphore
or temporary file may be left.

With ``--hosts``, ranks run on several machines. Only processes of the machine that runs this script receive signals.
"""

from __future__ import annotations

import argparse
import collections
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch

from mjlab_dist.errors import Exit
from mjlab_dist.learn import checkpoint
from mjlab_dist.run_dir import CHECKPOINTS_DIR, CONFIG_FILE, METRICS_FILE, find_checkpoint, read_metrics

MARK = "MJLAB_DIST_SOAK"
"""Environment variable that all processes of the soak test inherit. With it, the script finds those left behind."""

FAULTS = {
    "rank killed": 8,
    "rank stopped": 1,
    "rank terminated": 2,
    "agent killed": 3,
    "log server killed": 3,
    "spare killed": 1,
    "launcher paused": 2,
    "launcher killed": 2,
    "launcher terminated": 2,
    "launcher interrupted twice": 1,
    "rank raises an error": 2,
}
"""Relative frequency of each fault."""

MEAN_PAUSE_S = 2.0
"""Mean of the random pause before each fault, in s. Before half of the pauses, the script waits for a new row of
metrics."""

HANG_TIMEOUT_S = 10
"""Value of --hang-timeout: seconds without progress after which `train` considers a rank hung."""

PATIENCE_S = 180.0
"""Seconds without a new row of metrics after which the test fails."""


class Soak:
    """A run in which this script causes faults.

    Attributes:
        counts: Number of faults of each kind.
        recoveries: For each killed rank, the seconds until the next row of metrics, and the warnings until then.
    """

    def __init__(self, flags: list[str], log_root: Path, temporary: str, draw: random.Random) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.recoveries: list[tuple[float, list[str]]] = []
        self._flags = flags
        self._log_root = log_root
        self._draw = draw
        self._output = log_root.with_name(f"{log_root.name}.txt")
        self._environ = {**os.environ, MARK: "1", "TMPDIR": temporary}
        self._command: subprocess.Popen[bytes] | None = None

    def run(self, num_faults: int) -> Path:
        """Train with faults, then stop the run, which saves a checkpoint. Return the run directory."""
        self._start()
        while sum(self.counts.values()) < num_faults:
            # Wait for a new row of metrics before half of the faults, so that these occur during training. Many of the
            # others occur while the ranks start.
            if self._draw.random() < 0.5:
                before = self._num_rows()
                self._wait_until(lambda before=before: self._num_rows() > before)
            self._wait(self._draw.expovariate(1 / MEAN_PAUSE_S))
            (kind,) = self._draw.choices(list(FAULTS), weights=list(FAULTS.values()))
            if self._cause(kind):
                self.counts[kind] += 1
        # Stop the run after a new row of metrics
        before = self._num_rows()
        self._wait_until(lambda: self._num_rows() > before)
        assert self._command is not None
        self._command.send_signal(signal.SIGTERM)
        code = self._command.wait()
        assert code == Exit.RESUMABLE, f"exit code {code}"
        return self._run_dir()

    def _start(self) -> None:
        """Start the command, or start it again. In some of the starts, a fault is set to raise an error in rank 1."""
        started = any(self._log_root.rglob(CONFIG_FILE))
        if not started:
            # If the command was killed before it wrote the config, its run cannot be resumed
            shutil.rmtree(self._log_root, ignore_errors=True)
        how = ["--resume", str(self._run_dir())] if started else ["cartpole-balance", "--log-root", str(self._log_root)]
        environ = dict(self._environ)
        if self._draw.random() < FAULTS["rank raises an error"] / sum(FAULTS.values()):
            environ["MJLAB_DIST_FAULT"] = f"1:{self._num_rows() + self._draw.randrange(2, 30)}:raise"
            self.counts["rank raises an error"] += 1
        with self._output.open("ab") as output:
            self._command = subprocess.Popen(["train", *how, *self._flags], env=environ, stdout=output)

    def _cause(self, kind: str) -> bool:
        """Cause a fault; return False if the run has no process for this fault at the moment."""
        assert self._command is not None
        launcher = psutil.Process(self._command.pid)
        ranks, agents, log_servers = self._processes()
        match kind:
            case "rank killed" | "rank stopped" | "rank terminated" if ranks:
                number = {"rank killed": signal.SIGKILL, "rank stopped": signal.SIGSTOP}.get(kind, signal.SIGTERM)
                os.kill(self._draw.choice(ranks).pid, number)
                if kind == "rank killed":
                    self._measure_recovery()
            case "agent killed" if agents:
                agents[0].kill()
            case "spare killed" if len(agents) > 1:
                agents[-1].kill()
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

    def _measure_recovery(self) -> None:
        """Record the time from the kill of a rank to the next row of metrics, or nothing if the command ends first."""
        assert self._command is not None
        before = self._output.stat().st_size
        # Wait for rows that were already being written when the rank was killed
        self._wait(0.5)
        rows, start = self._num_rows(), time.monotonic() - 0.5
        command = self._command
        self._wait_until(lambda: self._num_rows() != rows or self._command is not command)
        if self._command is command:
            took_s = time.monotonic() - start
            lines = self._output.read_bytes()[before:].decode(errors="replace").splitlines()
            self.recoveries.append((took_s, [line for line in lines if line.startswith("Warning: ")]))

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._wait_until(lambda: time.monotonic() >= until)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true. Start the command again whenever it ends in the meantime."""
        assert self._command is not None
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self._command.poll() is not None:
                code = self._command.returncode
                expected = {Exit.RESUMABLE, Exit.INFRASTRUCTURE, Exit.FAILED, 128 + signal.SIGINT, 128 + signal.SIGTERM}
                assert code < 0 or code in expected, f"exit code {code}"
                self._start()
            assert time.monotonic() < deadline, f"the run has not continued within {PATIENCE_S:.0f} s"
            time.sleep(0.02)

    def _num_rows(self) -> int:
        files = list(self._log_root.rglob(METRICS_FILE))
        return files[0].read_bytes().count(b"\n") if files else 0

    def _run_dir(self) -> Path:
        (run_dir,) = (self._log_root / "cartpole-balance").iterdir()
        return run_dir

    def _processes(self) -> tuple[list[psutil.Process], list[psutil.Process], list[psutil.Process]]:
        """Return the ranks, the agents (processes that start ranks) and the log servers of the run.

        The oldest agent is first. If there are several, the last one waits until it is needed for the next restart.
        """
        assert self._command is not None
        ranks: list[psutil.Process] = []
        agents: list[psutil.Process] = []
        log_servers: list[psutil.Process] = []
        for process, parent, command in descendants(self._command.pid):
            if "mjlab_dist.launch.agent" in command:
                agents.append(process)
            elif "multiprocessing.forkserver" in command and "multiprocessing.forkserver" in parent:
                ranks.append(process)
            elif parent == command:
                log_servers.append(process)
        return ranks, sorted(agents, key=lambda agent: agent.create_time()), log_servers


def descendants(pid: int) -> Iterator[tuple[psutil.Process, str, str]]:
    """Yield the descendants of a process, each with its parent's command and its own command."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in found:
        try:
            yield process, " ".join(psutil.Process(process.ppid()).cmdline()), " ".join(process.cmdline())
        except psutil.Error:
            continue


def leftovers() -> list[str]:
    """Return descriptions of the processes that a soak test left running, and of the ports that they listen on."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK):
                found.append(f"process {process.pid} ({process.name()})")
                found += [f"port {c.laddr.port}" for c in process.net_connections("tcp") if c.status == "LISTEN"]
        except psutil.Error:
            continue
    return found


def differences(a: object, b: object, where: str = "") -> list[str]:
    """Return where two checkpoints differ."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if torch.equal(a.nan_to_num(), b.nan_to_num()) else [where]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [found for key in a for found in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [found for i, (x, y) in pairs for found in differences(x, y, f"{where}[{i}]")]
    same = a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))
    return [] if same else [where]


def main() -> None:
    """Run the soak test and print the results. Exit with 1 if the checkpoints differ or anything is left behind."""
    parser = argparse.ArgumentParser(description="Disturb a run many times, and compare it with an undisturbed one")
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", nargs="*", default=[])
    parser.add_argument("--ssh-config")
    args = parser.parse_args()
    flags = [
        *("--gpu-ids", "None", "--cpu-ranks", str(args.ranks), "--num-envs", "64", "--seed", str(args.seed)),
        *(["--hosts", *args.hosts] if args.hosts else []),
        *(["--ssh-config", args.ssh_config] if args.ssh_config else []),
    ]
    disturbed = ["--checkpoint.interval", "1", "--max-restarts", "1000", "--hang-timeout", str(HANG_TIMEOUT_S)]
    temporary, log_root = tempfile.mkdtemp(prefix="soak-"), Path(tempfile.mkdtemp(prefix="soak-logs-"))
    semaphores = set(Path("/dev/shm").iterdir())
    # Train with faults
    start = time.monotonic()
    soak = Soak(
        [*flags, *disturbed, "--max-iterations", "1000000"], log_root / "disturbed", temporary, random.Random(args.seed)
    )
    run_dir = soak.run(args.faults)
    took_s = time.monotonic() - start
    # Find processes and files that the run left behind
    time.sleep(2)  # processes of killed commands need some time to end
    unfinished = [p.name for p in (run_dir / CHECKPOINTS_DIR).iterdir() if p.name.endswith(".tmp")]
    new_semaphores = [p.name for p in set(Path("/dev/shm").iterdir()) - semaphores]
    left = [*leftovers(), *unfinished, *new_semaphores]
    # Train for the same number of iterations without faults, and compare the checkpoints
    rows = read_metrics(run_dir)
    num_iterations = rows[-1]["iteration"]
    reference = log_root / "undisturbed"
    subprocess.run(
        ["train", "cartpole-balance", "--log-root", str(reference), *flags, "--max-iterations", str(num_iterations)],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": temporary},
    )
    (undisturbed,) = (reference / "cartpole-balance").iterdir()
    final, expected = (checkpoint.load(find_checkpoint(each), "cpu") for each in (run_dir, undisturbed))
    del final["counters"]["elapsed_s"], expected["counters"]["elapsed_s"]
    differing = differences(final, expected)
    # Find temporary files of killed commands, which the next start of the command should have removed
    left += [p.name for p in Path(temporary).iterdir()]
    # Print the results
    in_order = [row["iteration"] for row in rows] == list(range(1, num_iterations + 1))
    print(f"{sum(soak.counts.values())} faults in {took_s / 60:.0f} minutes, {num_iterations} iterations")
    print(f"faults: {dict(soak.counts.most_common())}")
    if soak.recoveries:
        middle = statistics.median(took_s for took_s, _ in soak.recoveries)
        worst, warnings = max(soak.recoveries)
        print(f"from a killed rank to the next row: median {middle:.1f} s, maximum {worst:.1f} s")
        print(*warnings, sep="\n")
    print(f"rows of metrics: {'complete' if in_order else 'NOT complete'}")
    print(f"tensors that differ: {', '.join(differing) or 'none'}")
    print(f"left behind: {', '.join(left) or 'nothing'}")
    for path in (temporary, log_root):
        shutil.rmtree(path)
    sys.exit(0 if in_order and not differing and not left else 1)


if __name__ == "__main__":
    main()
