"""Training on hosts that are network namespaces, each with its own SSH server, addresses, processes and files.

scripts/hosts_lab.sh makes the hosts. If this script lacks permission, these tests are skipped.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import BIN, Command
from host_lab import HOSTS, SCRIPT, Lab, running_lab
from run_files import SMALL, assert_equal, final, only_run, untimed

from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import read_metrics

pytestmark = pytest.mark.slow

WaitFor = Callable[[Callable[[], bool]], None]

TRAIN = ("train", "cartpole-balance", "--gpu-ids", "None", *SMALL)
RESTARTS = ("--max-restarts", "30", "--checkpoint.interval", "1")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Lab]:
    with running_lab() as made:
        yield made


@pytest.fixture
def lab(hosts: Lab) -> Iterator[Lab]:
    """The hosts, reset after the test."""
    yield hosts
    hosts.clear()


class Run:
    """A run on the hosts."""

    def __init__(self, lab: Lab, path: Path, *flags: str, **options: Any) -> None:
        self.lab = lab
        self.path = path
        command = (*TRAIN, "--ssh-config", str(lab.ssh_config), *flags)
        with path.open("w") as file:
            self._number = lab.start("a", *command, output=file, **options)

    @property
    def output(self) -> str:
        """Return the output of the command, without lines of progress."""
        lines = self.path.read_text().splitlines()
        return "\n".join(line for line in lines if not line.startswith("iteration"))

    def wait(self) -> int:
        """Wait until the run ends, and return its exit code."""
        return self.lab.wait(self._number)

    def wait_until(self, condition: Callable[[], bool], wait_for: WaitFor) -> None:
        """Wait until a condition holds. Fail if the command ends earlier."""
        wait_for(lambda: condition() or not self.lab.is_running(self._number))
        assert self.lab.is_running(self._number), self.output

    def advances(self, wait_for: WaitFor, num_rows: int = 3) -> None:
        """Wait until the run has trained more iterations."""
        before = self.lab.num_rows()
        self.wait_until(lambda: self.lab.num_rows() >= before + num_rows, wait_for)


Start = Callable[..., Run]


@pytest.fixture
def start(lab: Lab, tmp_path: Path, wait_for: WaitFor) -> Start:
    """Start a long run on some of the hosts, and wait until it has trained some iterations."""

    def begin(*flags: str) -> Run:
        run = Run(lab, tmp_path / "output", "--max-iterations", "100000", *flags)
        run.advances(wait_for)
        return run

    return begin


def test_a_host_has_its_own_network_processes_and_files(lab: Lab):
    (lab.files("b") / "own").touch()
    show = "hostname; ls; ls /tmp /dev/shm; echo $$; ps ax | wc -l"
    ssh = ("ssh", "-F", str(lab.ssh_config))
    name, *rest = lab("exec", "a", *ssh, "b6", f"cd {lab.work} && touch /tmp/of_b && {show}").split()
    assert name == "b"
    assert {"own", "of_b"} <= set(rest)
    assert int(rest[-1]) < 15
    assert not lab.temporary_files("a")
    assert not (lab.files("a") / "own").exists()
    # The name c4 has only an IPv4 address, and c6 only an IPv6 address. The host keys of both names are known
    for name, family in (("c4", "192.0.2.3"), ("c6", "fd00::3")):
        assert lab("exec", "b", *ssh, name, "echo $SSH_CONNECTION").split()[2] == family
    assert "192.0.2.2" not in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}


def test_a_cable_can_be_unplugged_and_a_host_switched_off(lab: Lab):
    reach = ("exec", "a", "bash", "-c", "ssh -F $0 -o ConnectTimeout=1 b true; echo $?", str(lab.ssh_config))
    assert lab(*reach) == "0\n"
    for cut, repair in (("link b down", "link b up"), ("link b silent", "link b up"), ("kill b", "start b")):
        lab(*cut.split())
        assert lab(*reach) == "255\n", cut
        lab(*repair.split())
        assert lab(*reach) == "0\n", repair
    # Commands without the name of a host
    for name in ("start", "kill", "link", "exec"):
        environ = {**os.environ, "HOSTS_LAB": str(lab.directory)}
        done = subprocess.run([SCRIPT, name], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "there is no host ''" in done.stderr
    assert [line.split()[-1] for line in lab("status").splitlines()] == ["on"] * len(HOSTS)


def test_a_command_runs_on_one_core_of_a_host_and_ends_with_its_signal(lab: Lab, tmp_path: Path):
    program = "import os; print(os.sched_getaffinity(0), flush=True); os.kill(os.getpid(), 9)"
    (lab.files("a") / "script.py").write_text(program)
    with (tmp_path / "output").open("w") as output:
        number = lab.start("a", "python", str(lab.work / "script.py"), output=output)
    assert lab.wait(number) == -signal.SIGKILL
    core = min(os.sched_getaffinity(0))
    assert (tmp_path / "output").read_text() == f"{ {core} }\n"


def local_ranks(command: Command, number: int) -> Path:
    """Train with ranks on this machine that sum their gradients through gloo, as ranks on several hosts do."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # ranks inherit this one core, and thus use one thread
    try:
        ranks = [
            command.start(
                *(*TRAIN, "--max-iterations", "4"),
                env={
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(number),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
            )
            for rank in range(number)
        ]
    finally:
        os.sched_setaffinity(0, cores)
    for rank in ranks:
        done = command.finish(rank)
        assert done.code == Exit.DONE, done.err
    return only_run(command.cwd)


def assert_same_run(one: Path, other: Path) -> None:
    assert_equal(final(one), final(other))
    assert untimed(one) == untimed(other)


def test_different_numbers_of_ranks_on_ipv6_hosts_equal_local_ranks(command: Command, lab: Lab, tmp_path: Path):
    # Remove IPv4 addresses, so that nothing can connect over IPv4
    for host in HOSTS:
        number = HOSTS.index(host) + 1
        lab("exec", host, "ip", "address", "del", f"192.0.2.{number}/24", "dev", f"eth_{host}")
    run = Run(lab, tmp_path / "output", "--hosts", "a:2", "[fd00::2]:1", "--max-iterations", "4")
    assert run.wait() == Exit.DONE, run.output
    assert not lab.leftovers()
    for host in HOSTS:
        number = HOSTS.index(host) + 1
        lab("exec", host, "ip", "address", "add", f"192.0.2.{number}/24", "dev", f"eth_{host}")
    assert " 3 ranks" in run.output
    assert not list(lab.files("b").iterdir()), "only the first host has files of the run"
    assert_same_run(only_run(lab.files("a")), local_ranks(command, 3))


@pytest.mark.long
def test_a_run_continues_without_a_lost_host_and_uses_it_again_later(lab: Lab, start: Start, wait_for: WaitFor):
    run = start("--hosts", "a", "b", "c", "--min-hosts", "2", *RESTARTS, "--hang-timeout", "15")
    lab("kill", "c")
    run.wait_until(lambda: "Continuing on 2 of 3 hosts, with 2 ranks" in run.output, wait_for)
    run.advances(wait_for)
    # The next restart uses host c again
    lab("start", "c")
    lab.rank(1).kill()
    run.wait_until(lambda: "Continuing on 3 of 3 hosts, with 3 ranks" in run.output, wait_for)
    run.advances(wait_for)
    lab.launcher().terminate()
    assert run.wait() == Exit.RESUMABLE, run.output
    lab.wait_until_clear(wait_for)
    rows = read_metrics(only_run(lab.files("a")))
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1))
    per_iteration = {b["total_steps"] - a["total_steps"] for a, b in itertools.pairwise(rows)}
    assert per_iteration == {2 * 32 * 8, 3 * 32 * 8}


@pytest.mark.long
@pytest.mark.parametrize("number", [2, 3])
def test_hosts_equal_local_ranks(number: int, command: Command, lab: Lab, tmp_path: Path):
    run = Run(lab, tmp_path / "output", "--hosts", *HOSTS[:number], "--max-iterations", "4")
    assert run.wait() == Exit.DONE, run.output
    assert not lab.leftovers()
    assert_same_run(only_run(lab.files("a")), local_ranks(command, number))


@pytest.mark.long
def test_scaling_over_hosts_is_measured(lab: Lab, tmp_path: Path):
    flags = ("--scaling", "--max-iterations", "4", "--json", "--hosts", "a:1", "b:2")
    command = ("mjlab-dist", "verify", *TRAIN[1:], "--num-envs", "48", *flags)
    with (tmp_path / "output").open("w") as output:
        number = lab.start("a", *command, "--ssh-config", str(lab.ssh_config), output=output)
    assert lab.wait(number) == Exit.DONE, (tmp_path / "output").read_text()
    rows = json.loads((tmp_path / "output").read_text().splitlines()[-1])["speeds"]["strong"]["rows"]
    assert [(row["num_ranks"], row["num_envs"]) for row in rows] == [(1, 48), (2, 24), (3, 16)]
    assert not lab.leftovers()


@pytest.mark.long
def test_a_host_with_another_task_is_refused(lab: Lab, tmp_path: Path):
    flags = ("--env.rewards.smooth.func", "own_rewards:bonus", "--hosts", "a", "b", "--max-iterations", "2")
    lab.write_reward("a", 1.0)
    lab.write_reward("b", 1.0)
    run = Run(lab, tmp_path / "same", *flags, env={"PYTHONPATH": "."})
    assert run.wait() == Exit.DONE, run.output
    lab.write_reward("b", 1.5)
    run = Run(lab, tmp_path / "other", *flags, env={"PYTHONPATH": "."})
    assert run.wait() == Exit.PREFLIGHT, run.output
    (line,) = run.output.splitlines()[-1:]
    assert "rank 1 (b)" in line
    assert "own_rewards" in line
    assert not lab.leftovers()


@pytest.mark.long
def test_a_run_survives_faults_on_all_hosts(lab: Lab, start: Start, wait_for: WaitFor):
    run = start("--hosts", "a", "b", "c:2", *RESTARTS, "--hang-timeout", "15")
    faults: dict[str, tuple[Callable[[], psutil.Process], signal.Signals]] = {
        "rank of the launcher's host killed": (lambda: lab.rank(0), signal.SIGKILL),
        "rank of another host killed": (lambda: lab.rank(3), signal.SIGKILL),
        "rank of the launcher's host stopped": (lambda: lab.rank(0), signal.SIGSTOP),
        "rank of another host stopped": (lambda: lab.rank(1), signal.SIGSTOP),
        "rank of another host terminated": (lambda: lab.rank(2), signal.SIGTERM),
        "agent of the launcher's host killed": (lambda: lab.agent("a"), signal.SIGKILL),
        "agent of another host killed": (lambda: lab.agent("b"), signal.SIGKILL),
        "agent of another host stopped": (lambda: lab.agent("c"), signal.SIGSTOP),
    }
    for number, (fault, (find, sent)) in enumerate(faults.items(), 1):
        find().send_signal(sent)
        run.wait_until(lambda number=number: f"({number} of 30)" in run.output, wait_for)
        run.advances(wait_for)
        assert lab.rank(3).is_running(), fault
    lab.launcher().terminate()
    assert run.wait() == Exit.RESUMABLE, run.output
    lab.wait_until_clear(wait_for)
    rows = read_metrics(only_run(lab.files("a")))
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1))


@pytest.mark.long
@pytest.mark.parametrize("cut", ["down", "silent"])
def test_a_link_that_is_cut_for_ten_seconds_delays_a_run(lab: Lab, start: Start, wait_for: WaitFor, cut: str):
    run = start("--hosts", "a", "b", "--hang-timeout", "60")
    lab("link", "b", cut)
    done = lab.num_rows()
    time.sleep(10)  # the length of the fault
    assert lab.num_rows() <= done + 1
    lab("link", "b", "up")
    run.advances(wait_for, 10)
    # While the launcher is stopped, training continues
    launcher = lab.launcher()
    launcher.suspend()
    run.advances(wait_for, 10)
    for process in (launcher, launcher.parent()):  # nsenter stops itself if its child is stopped
        assert process is not None
        process.resume()
    run.advances(wait_for)
    launcher.terminate()
    assert run.wait() == Exit.RESUMABLE, run.output
    assert "Restarting" not in run.output
    lab.wait_until_clear(wait_for)


@pytest.mark.long
def test_a_link_that_stays_cut_ends_the_run_on_both_sides(lab: Lab, start: Start, wait_for: WaitFor):
    run = start("--hosts", "a", "b", *RESTARTS, "--hang-timeout", "15")
    lab("link", "b", "silent")
    assert run.wait() == Exit.INFRASTRUCTURE
    assert "Not restarting: host b: " in run.output
    # The host without a network ends its own processes
    lab.wait_until_clear(wait_for)
    # The run can be resumed on the remaining host
    length = ("--max-iterations", str(lab.num_rows() + 3))
    resumed = Run(lab, Path(f"{run.path}_resumed"), "--resume", "latest", "--hosts", "a", *length)
    assert resumed.wait() == Exit.DONE, resumed.output
    assert " 1 rank" in resumed.output


@pytest.mark.long
def test_a_killed_launcher_leaves_nothing_on_any_host(lab: Lab, start: Start, wait_for: WaitFor):
    start("--hosts", "a", "b", "c:2", *RESTARTS)
    lab.launcher().kill()
    lab.wait_until_clear(wait_for)


@pytest.mark.long
def test_the_documented_lines_work(tmp_path: Path, hosts: Lab):
    page = (SCRIPT.parents[1] / "CONTRIBUTING.md").read_text()
    block = page.partition("## Hosts on one machine\n")[2].split("```")[1]
    for documented, here in (("sudo ", ""), ("~/mjlab_dist/scripts", SCRIPT.parent), ("~/mjlab_dist/.venv/bin", BIN)):
        assert documented in block
        block = block.replace(documented, str(here))
    directory = hosts.directory.with_name(f"{hosts.directory.name}-documented")
    environ = {**os.environ, "HOSTS_LAB": str(directory)}
    with (tmp_path / "output").open("w+") as output:
        command = ["bash", "-euxc", block]
        done = subprocess.run(command, env=environ, cwd=SCRIPT.parents[1], stdout=output, stderr=output, check=False)
        output.seek(0)
        printed = output.read()
    assert done.returncode == 0, printed
    assert "Training cartpole-balance with 4 ranks" in printed
    assert not directory.exists()
