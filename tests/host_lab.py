"""Run commands on hosts that scripts/hosts_lab.sh makes from network namespaces, send signals, and unplug cables."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest
from conftest import BIN, HANG_S, NOT_INHERITED
from processes import AGENT_MODULE, command_line, send_all, with_argument

from mjlab_dist.runs.run_dir import METRICS_FILE, RANKS_FILE

SCRIPT = Path(__file__).parents[1] / "scripts" / "hosts_lab.sh"

REFUSED = 77
"""Exit code of the script if it cannot make hosts."""

HOSTS = "abc"

REWARD = """
import torch

def bonus(env) -> torch.Tensor:
    return torch.full((env.num_envs,), {value}, device=env.device)
"""


class Lab:
    """Three hosts; each may use one core.

    Args:
        directory: Directory of the hosts.

    Attributes:
        ssh_config: SSH's config file for all hosts.
        work: Directory that exists on all hosts, with different content on each.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ssh_config = directory / "ssh_config"
        self.work = directory / "work"
        self._environ = {**os.environ, "HOSTS_LAB": str(directory)}
        self._running: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str) -> str:
        """Run a command of the script, and return its output."""
        done = subprocess.run([SCRIPT, *arguments], env=self._environ, capture_output=True, text=True, check=False)
        if done.returncode == REFUSED:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self) -> None:
        """Make the hosts."""
        self("up", str(len(HOSTS)))
        for host in HOSTS:
            self.pin(host)

    def pin(self, host: str) -> None:
        """Restrict processes that are started on a host through SSH to one core."""
        for process in self._own(host):
            process.cpu_affinity([self._core(host)])

    def files(self, host: str) -> Path:
        """Return the path by which this machine reaches the working directory of a host."""
        return self.directory / host / "work"

    def write_reward(self, host: str, value: float) -> None:
        """Write a reward, ``own_rewards:bonus``, that has a constant value, to a host's directory."""
        (self.files(host) / "own_rewards.py").write_text(REWARD.format(value=value))

    def temporary_files(self, host: str) -> list[Path]:
        """Return the files in /tmp of a host, without a checkout that is there."""
        checkout = SCRIPT.resolve().parents[1]
        ours = {checkout, *checkout.parents}
        return [file for file in (self.directory / host / "tmp").iterdir() if Path("/tmp", file.name) not in ours]

    def start(
        self, host: str, *command: str, output: IO[str], folder: str = ".", env: dict[str, str] | None = None
    ) -> int:
        """Start an installed command on a host, as from a terminal of this host. Return a number for :meth:`wait`.

        The command's directory is inside the working directory of the host.
        """
        inherited = {k: v for k, v in self._environ.items() if k not in NOT_INHERITED}
        core = ("taskset", "--cpu-list", str(self._core(host)), "env", "--chdir", folder)
        process = subprocess.Popen(
            [SCRIPT, "exec", host, *core, str(BIN / command[0]), *command[1:]],
            env={**inherited, "OMP_WAIT_POLICY": "passive", "COLUMNS": "200", **(env or {})},
            cwd=self.work,
            text=True,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._running.append(process)
        return len(self._running) - 1

    def wait(self, number: int) -> int:
        """Wait until a command ends, and return its exit code."""
        return self._running[number].wait(HANG_S)

    def is_running(self, number: int) -> bool:
        """Return whether a command is still running."""
        return self._running[number].poll() is None

    def processes(self, host: str) -> Iterator[psutil.Process]:
        """Yield the processes of a host, except the host's first process and its SSH server.

        Processes of the SSH server are left out because they run for hours after a connection has been cut.
        """
        own = {process.pid for process in self._own(host)}
        namespace = self._namespace(self._first(host))
        for process in psutil.process_iter():
            try:
                is_there = self._namespace(process.pid) == namespace and process.pid not in own
                if is_there and process.name() != "sshd" and process.status() != psutil.STATUS_ZOMBIE:
                    yield process
            except (OSError, psutil.Error):
                pass

    def launcher(self) -> psutil.Process:
        """Return the launcher on the first host: the oldest process of the command train."""
        return with_argument(self.processes("a"), str(BIN / "train"))[0]

    def agent(self, host: str) -> psutil.Process:
        """Return the agent of the ranks."""
        return with_argument(self.processes(host), AGENT_MODULE)[0]

    def rank(self, number: int) -> psutil.Process:
        """Return the process of a rank."""
        (run,) = (self.files("a") / "logs" / "cartpole-balance").iterdir()
        own = json.loads((run / RANKS_FILE).read_text())[number]
        (found,) = (process for process in self.processes(own["host"]) if _pid_inside(process.pid) == own["pid"])
        return found

    def num_rows(self) -> int:
        """Return the number of rows in the metrics of the only run."""
        return sum(file.read_bytes().count(b"\n") for file in self.files("a").rglob(METRICS_FILE))

    def leftovers(self) -> list[str]:
        """Return the processes, shared memory and temporary files that a run left on hosts that are switched on."""
        left: list[str] = []
        for host in filter(self._is_on, HOSTS):
            left += [f"{host}: {command_line(process)}" for process in self.processes(host)]
            memory = Path(f"/proc/{self._first(host)}/root/dev/shm")
            left += map(str, [*self.temporary_files(host), *memory.iterdir()])
        return left

    def wait_until_clear(self, wait_for: Callable[[Callable[[], bool]], None]) -> None:
        """Wait until nothing is left. If this takes too long, fail with a list of what is left."""
        try:
            wait_for(lambda: not self.leftovers())
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}; left: {self.leftovers()}")

    def clear(self) -> None:
        """End processes that a test left, plug in all cables, switch on all hosts, and remove the hosts' files."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
        for host in HOSTS:
            if not self._is_on(host):
                self("start", host)
                self.pin(host)
            self("link", host, "up")
            send_all(self.processes(host), signal.SIGKILL)
            files = [*self.files(host).iterdir(), *self.temporary_files(host)]
            subprocess.run(["rm", "-rf", *files], check=True)

    def _core(self, host: str) -> int:
        cores = sorted(os.sched_getaffinity(0))
        return cores[HOSTS.index(host) % len(cores)]

    def _first(self, host: str) -> int:
        return int((self.directory / host / "pid").read_text())

    def _is_on(self, host: str) -> bool:
        return psutil.pid_exists(self._first(host))

    def _own(self, host: str) -> list[psutil.Process]:
        first = psutil.Process(self._first(host))
        return [first, *(child for child in first.children() if child.name() in {"sshd", "sleep"})]

    def _namespace(self, pid: int) -> str:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())


def _pid_inside(pid: int) -> int | None:
    """Return the ID that a process has in its innermost PID namespace; None if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])


@contextlib.contextmanager
def running_lab() -> Iterator[Lab]:
    """Make hosts, and remove them when the context ends. Skip the tests if hosts cannot be made."""
    lab = Lab(Path(f"/var/tmp/hosts_lab-{os.getpid()}"))
    lab("check")
    try:
        lab.up()
        yield lab
    finally:
        lab("down")
