"""Training on other machines. If ranks cannot start on a machine, the command soon ends and names the machine.

The SSH server belongs to the test and runs commands on this machine. Its clients are those of a real launch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import psutil
import pytest
from conftest import HANG_S, Command
from fault_injection import faults
from processes import AGENT_MODULE, with_argument
from run_files import only_run
from ssh_server import Add, SshServer, host_entry

from mjlab_dist import registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import Exit, PreflightError, RankError, UserError
from mjlab_dist.launch.agent import OWN_DIRECTORY
from mjlab_dist.launch.agents import waiting_agents
from mjlab_dist.launch.handshake import SECRET
from mjlab_dist.launch.host_checks import check_hosts, choose_hosts
from mjlab_dist.launch.hosts import end_on_hosts, is_this_machine, own_address
from mjlab_dist.run_dir import METRICS_FILE, PROVENANCE_FILE, RANKS_FILE, find_checkpoint, read_metrics

NODE7, NODE8 = "192.0.2.7", "192.0.2.8"
"""Addresses that no machine has."""

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def refusal_of(ssh_config: Path, assert_within: Callable[[float, float], None]) -> Callable[..., str]:
    def refusal(*hosts: str, timeout_s: float = 12.0) -> str:
        start = time.monotonic()
        with pytest.raises(PreflightError) as caught:
            check_hosts(hosts, str(ssh_config), timeout_s)
        assert_within(time.monotonic() - start, 15)
        message = str(caught.value)
        assert "\n" not in message
        return message

    return refusal


@pytest.fixture
def web(ssh_config: Path, key_file: Path) -> Iterator[str]:
    """Address of a host whose SSH port belongs to an HTTP server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connections.append(server.accept()[0])
                    connections[-1].sendall(b"HTTP/1.1 400 Bad Request\r\n" * 100)

        threading.Thread(target=answer, daemon=True).start()
        with ssh_config.open("a") as file:
            file.write(host_entry("192.0.2.80", server.getsockname()[1], key_file))
        yield "192.0.2.80"
        server.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.close()


def program(file: Path, *lines: str) -> str:
    """Write a shell script that replaces the Python interpreter on a host."""
    file.write_text("\n".join(("#!/bin/sh", *lines, "")))
    file.chmod(0o755)
    return str(file)


def with_package(directory: Path, name: str, version: str) -> str:
    """Write a replacement of Python that finds a different version of a package."""
    info = directory / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return program(directory / "python", f'PYTHONPATH="{directory}:$PYTHONPATH" exec {sys.executable} "$@"')


def test_a_host_with_the_same_environment_passes(add_host: Add, ssh_config: Path):
    server = add_host(NODE7)
    check_hosts([NODE7], str(ssh_config))
    assert any(sys.executable in command for command in server.commands)


def test_torchrunx_runs_commands_on_a_host_that_passes(add_host: Add, ssh_config: Path):
    from torchrunx.utils.environment import execute_command

    server = add_host(NODE7, environ={"WHERE": "node7"})
    check_hosts([NODE7], str(ssh_config))
    said, _ = execute_command("echo $WHERE", NODE7, ssh_config_file=str(ssh_config), return_stdout_stderr=True)
    assert said == "node7\n"
    assert server.commands[-1] == "echo $WHERE"


def test_the_users_own_config_file_is_read_by_default(add_host: Add, ssh_config: Path, home: Path):
    server = add_host(NODE7)
    (home / ".ssh" / "config").write_text(ssh_config.read_text())
    check_hosts([NODE7], None)
    assert server.commands


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "::1", socket.gethostname()])
def test_this_machine_needs_no_ssh(host: str, ssh_config: Path):
    ssh_config.write_text(f"Host {host}\n  Port 1\n")
    assert is_this_machine(host)
    check_hosts([host], str(ssh_config))


def test_a_host_without_the_interpreter_is_refused(add_host: Add, refusal_of: Callable[..., str]):
    add_host(NODE7, paths={sys.executable: "/nowhere/bin/python"})
    assert refusal_of(NODE7) == (
        f"host {NODE7}: has no {sys.executable}; install the same environment there, under the same path"
    )


def test_a_host_without_the_packages_is_refused(add_host: Add, refusal_of: Callable[..., str], tmp_path: Path):
    python = program(tmp_path / "python", f'PYTHONPATH= exec {sys.executable} -S "$@"')
    add_host(NODE7, paths={sys.executable: python})
    assert refusal_of(NODE7) == (
        f"host {NODE7}: {sys.executable} failed there (ModuleNotFoundError: No module named 'mjlab_dist'); "
        "install the same environment there, under the same path"
    )


def test_a_host_with_other_versions_is_refused(add_host: Add, refusal_of: Callable[..., str], tmp_path: Path):
    from importlib.metadata import version

    add_host(NODE7, paths={sys.executable: with_package(tmp_path / "there", "torchrunx", "0.3.0")})
    with_package(tmp_path / "there_too", "torch", "2.9.0+other")
    add_host(NODE8, paths={sys.executable: with_package(tmp_path / "there_too", "mjlab_dist", "0.0.1")})
    first, second = refusal_of(NODE7, NODE8).split(f"; host {NODE8}: ")
    assert first.startswith(f"host {NODE7}: ")
    assert all(part in first for part in ("torchrunx 0.3.0", version("torchrunx")))
    versions = ("mjlab-dist 0.0.1", "torch 2.9.0+other", version("mjlab-dist"), version("torch"))
    assert all(part in second for part in versions)


def with_python(directory: Path, version: str) -> str:
    """Write a replacement of Python that reports a different version."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(f"import platform\nplatform.python_version = lambda: '{version}'\n")
    return program(directory / "python", f'PYTHONPATH="{directory}:$PYTHONPATH" exec {sys.executable} "$@"')


def test_a_host_with_another_python_is_refused_and_with_another_patch_release_is_not(
    add_host: Add, ssh_config: Path, refusal_of: Callable[..., str], tmp_path: Path
):
    major, minor, patch = sys.version_info[:3]
    add_host(NODE7, paths={sys.executable: with_python(tmp_path / "older", f"{major}.{minor - 1}.{patch}")})
    assert {f"{major}.{minor - 1}.{patch}", f"{major}.{minor}.{patch}"} <= set(re.findall(r"[\d.]+", refusal_of(NODE7)))
    add_host(NODE8, paths={sys.executable: with_python(tmp_path / "patched", f"{major}.{minor}.{patch + 1}")})
    check_hosts([NODE8], str(ssh_config))


def test_a_host_that_finds_the_standard_library_of_another_patch_release_is_refused(
    add_host: Add, refusal_of: Callable[..., str], tmp_path: Path
):
    name = "python{}.{}".format(*sys.version_info)
    pythons = [other for folder in ("/usr/bin", "/usr/local/bin") if (other := shutil.which(name, path=folder))]
    show = ["-c", "import platform; print(platform.python_version())"]
    versions = {subprocess.check_output([other, *show], text=True).strip(): other for other in pythons}
    versions.pop(platform.python_version(), None)
    if not versions:
        pytest.skip("there is no other patch release of this Python")
    version, other = next(iter(versions.items()))
    add_host(NODE7, paths={sys.executable: program(tmp_path / "python", f'exec {other} "$@"')})
    refusal = refusal_of(NODE7)
    assert {version, platform.python_version()} <= set(re.findall(r"[\d.]+\d", refusal))
    assert sysconfig.get_path("stdlib") in refusal


def test_output_of_a_starting_shell_is_ignored(add_host: Add, ssh_config: Path, tmp_path: Path):
    add_host(NODE7, paths={sys.executable: program(tmp_path / "python", "echo Welcome", f'exec {sys.executable} "$@"')})
    check_hosts([NODE7], str(ssh_config))


def test_a_host_without_the_working_directory_is_refused(
    add_host: Add, refusal_of: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    directory = tmp_path / "my project"
    directory.mkdir()
    monkeypatch.chdir(directory)
    add_host(NODE7)
    add_host(NODE8, paths={str(directory): "/nowhere"})
    message = refusal_of(NODE7, NODE8)
    assert message.startswith(f"host {NODE8}: ")
    assert f" {directory};" in message


def test_a_host_that_refuses_connections_is_refused(ssh_config: Path, key_file: Path, refusal_of: Callable[..., str]):
    with socket.socket() as taken:  # the port is bound, but nothing listens on it
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        ssh_config.write_text(host_entry(NODE7, port, key_file))
        message = refusal_of(NODE7)
    assert message.startswith(f"host {NODE7}: ")
    assert f"connection refused on port {port}" in message


def test_a_name_that_does_not_resolve_is_refused(refusal_of: Callable[..., str]):
    for name in ("node7.invalid", "node..7"):
        message = refusal_of(name)
        assert message.startswith(f"host {name}: ")
        assert "/etc/hosts" in message


def test_a_name_that_only_ssh_resolves_is_refused(add_host: Add, ssh_config: Path, refusal_of: Callable[..., str]):
    from torchrunx.utils.environment import execute_command

    add_host("node7.invalid")
    with pytest.raises(socket.gaierror):
        execute_command("true", "node7.invalid", ssh_config_file=str(ssh_config))
    assert "/etc/hosts" in refusal_of("node7.invalid")


def test_a_host_that_does_not_respond_is_refused(ssh_config: Path, key_file: Path, refusal_of: Callable[..., str]):
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel accepts connections, and nobody answers
        port = mute.getsockname()[1]
        ssh_config.write_text(host_entry(NODE7, port, key_file))
        message = refusal_of(NODE7)
    assert message.startswith(f"host {NODE7}: ")
    assert f" 5 s on port {port};" in message


def test_a_host_whose_programs_hang_times_out(add_host: Add, refusal_of: Callable[..., str], tmp_path: Path):
    add_host(NODE7, paths={sys.executable: program(tmp_path / "python", "exec sleep 600")})
    message = refusal_of(NODE7, timeout_s=1.5)
    assert message.startswith(f"host {NODE7}: ")
    assert " 1.5 s; " in message
    assert f"`ssh {NODE7}`" in message


def test_a_host_that_accepts_no_key_is_refused(add_host: Add, refusal_of: Callable[..., str]):
    add_host(NODE7, user_key=paramiko.ECDSAKey.generate())
    message = refusal_of(NODE7)
    assert message.startswith(f"host {NODE7}: ")
    assert f" user {getpass.getuser()}; `ssh {NODE7}`" in message


def test_a_key_with_a_passphrase_is_refused(add_host: Add, key_file: Path, refusal_of: Callable[..., str]):
    add_host(NODE7)
    paramiko.ECDSAKey.from_private_key_file(str(key_file)).write_private_key_file(str(key_file), password="secret")
    assert f" user {getpass.getuser()}; `ssh {NODE7}`" in refusal_of(NODE7)


def test_without_any_key_the_host_is_refused(
    add_host: Add, ssh_config: Path, key_file: Path, refusal_of: Callable[..., str]
):
    add_host(NODE7)
    key_file.unlink()
    assert f"({key_file}: No such file or directory)" in refusal_of(NODE7)
    ssh_config.write_text(ssh_config.read_text().replace("IdentityFile", "# IdentityFile"))
    assert f" user {getpass.getuser()}; `ssh {NODE7}`" in refusal_of(NODE7)


def test_a_host_without_an_ssh_server_is_refused(web: str, refusal_of: Callable[..., str]):
    message = refusal_of(web)
    assert message.startswith(f"host {web}: ")
    assert '"HTTP/1.1 400 Bad Request"' in message
    assert f"`ssh {web}`" in message


def test_all_bad_hosts_are_named_at_once(add_host: Add, refusal_of: Callable[..., str]):
    add_host(NODE7)
    add_host(NODE8, paths={sys.executable: "/nowhere/bin/python"})
    add_host("192.0.2.9", paths={sys.executable: "/elsewhere/bin/python"})
    message = refusal_of("localhost", "node7.invalid", NODE7, NODE8, "192.0.2.9")
    assert message.startswith("host node7.invalid: ")
    assert re.search(f"; hosts {NODE8}, 192.0.2.9: [^;]*{sys.executable};", message)
    assert "localhost" not in message
    assert NODE7 not in message


@pytest.mark.parametrize("text", [None, "Match nonsense\n", "Host *\n  Port ssh\n"])
def test_a_config_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str | None):
    file = tmp_path / "another_ssh_config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=f"^--ssh-config {file}: ") as caught:
        check_hosts([NODE7], str(file))
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, PreflightError)


def test_the_check_of_hosts_imports_no_torch_prints_nothing_and_leaves_no_thread(
    add_host: Add, web: str, ssh_config: Path, tmp_path: Path
):
    code = """
import sys
import sysconfig
from mjlab_dist.errors import PreflightError
from mjlab_dist.launch.host_checks import check_hosts

ssh_config, good, *bad = sys.argv[1:]
check_hosts([good], ssh_config)
try:
    check_hosts(bad, ssh_config, timeout_s=1)
    sys.exit("must be refused")
except PreflightError as error:
    print("torch" in sys.modules, *(host in str(error) for host in bad))
"""
    add_host(NODE7)
    add_host(NODE8, paths={sys.executable: program(tmp_path / "python", "exec sleep 600")})
    command = [sys.executable, "-c", code, str(ssh_config), NODE7, NODE8, web]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False True True\n", "")


CPU = RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo")


def chosen(ssh_config: Path, *hosts: str) -> tuple[str, ...]:
    config = dataclasses.replace(registry.task_config("cartpole-balance"), hosts=hosts, ssh_config=str(ssh_config))
    made = choose_hosts(config, {}, (CPU,))
    return tuple(host.name for host in made)


def test_this_machine_comes_first(add_host: Add, ssh_config: Path):
    add_host(NODE7)
    assert chosen(ssh_config) == ("localhost",)
    assert chosen(ssh_config, "127.0.0.1") == ("localhost",)
    assert chosen(ssh_config, "127.0.0.1", NODE7) == ("localhost", NODE7)
    for hosts in [(NODE7,), (NODE7, "localhost"), ("node7.invalid",)]:
        with pytest.raises(UserError, match=rf"^--hosts {' '.join(hosts)}: .* localhost "):
            chosen(ssh_config, *hosts)
    with pytest.raises(UserError, match=r": localhost and 127\.0\.0\.1 "):
        chosen(ssh_config, "localhost", NODE7, "127.0.0.1")


def test_a_host_that_cannot_call_back_is_refused(add_host: Add, refusal_of: Callable[..., str], tmp_path: Path):
    python = program(
        tmp_path / "python", f'case "$*" in *create_connection*) exit 1;; esac; exec {sys.executable} "$@"'
    )
    add_host(NODE7, paths={sys.executable: python})
    message = refusal_of(NODE7)
    assert message.startswith(f"host {NODE7}: ")
    assert f" {own_address(('localhost', NODE7))};" in message


def test_leftover_processes_of_a_launch_on_a_host_are_killed(add_host: Add, ssh_config: Path):
    add_host(NODE7)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with ssh_config.open("a") as file:
            file.write(host_entry(NODE8, closed.getsockname()[1], ssh_config))
        ours, other = (
            subprocess.Popen(["sleep", "600"], env={"MJLAB_DIST_LAUNCH": launch}) for launch in ("ours", "ours too")
        )
        ours.send_signal(signal.SIGSTOP)
        try:
            assert end_on_hosts(("localhost", NODE7, NODE8), str(ssh_config), "ours") == [NODE8]
            assert ours.wait(HANG_S) == -signal.SIGKILL
            assert other.poll() is None
        finally:
            for process in (ours, other):
                process.kill()
                process.wait()


def test_a_host_that_is_lost_after_its_check_fails_the_launch_and_leaves_no_agent(
    add_host: Add, ssh_config: Path, key_file: Path, tmp_path: Path, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    add_host(NODE7)
    with socket.socket() as closed, ssh_config.open("a") as file:
        closed.bind(("127.0.0.1", 0))
        file.write(host_entry(NODE8, closed.getsockname()[1], key_file))
        file.flush()
        with (
            (tmp_path / "errors").open("w") as errors,
            pytest.raises(RankError, match=re.escape(NODE8)) as caught,
            waiting_agents(
                ("localhost", NODE7, NODE8), str(ssh_config), [], here=os.environ, there={}, silence_s=60, errors=errors
            ),
        ):
            pass
    assert caught.value.exit_code is Exit.INFRASTRUCTURE
    # The agent of the other host ends shortly after its connection is closed
    wait_for(lambda: not with_argument(psutil.Process().children(), AGENT_MODULE))


@pytest.fixture
def node7(add_host: Add) -> SshServer:
    """A second machine for training."""
    return add_host(NODE7)


@pytest.fixture
def train(node7: SshServer, ssh_config: Path) -> tuple[str, ...]:  # noqa: ARG001
    """Command line that trains on this machine and on node7."""
    small = ("--num-envs", "32", "--agent.num-steps-per-env", "8", "--env.episode-length-s", "0.1")
    hosts = ("--hosts", "localhost", NODE7, "--ssh-config", str(ssh_config))
    return ("train", "cartpole-balance", "--gpu-ids", "None", "--cpu-ranks", "1", *small, *hosts)


@pytest.mark.slow
def test_two_machines_train(command: Command, train: tuple[str, ...], node7: SshServer):
    ports = ("--port-range", "29510", "29550")
    done = command(*train, *ports, "--max-iterations", "3", env={"WANDB_NOTES": "unlike any other"})
    assert done.code == Exit.DONE, done.out + done.err
    assert done.err == ""
    assert not command.leftovers()
    assert " 2 ranks" in done.out.splitlines()[0]
    run = only_run(command.cwd)
    assert [rank["rank"] for rank in json.loads((run / RANKS_FILE).read_text())] == [0, 1]
    assert json.loads((run / PROVENANCE_FILE).read_text())["devices"] == ["cpu", "cpu"]
    assert read_metrics(run)[-1]["total_steps"] == 2 * 32 * 8 * 3
    # Data is sent through standard input, because every user of a machine can read command lines
    assert any(OWN_DIRECTORY in line for line in node7.input)
    assert any("unlike any other" in line for line in node7.input)
    assert not any("unlike any other" in each or SECRET in each for each in node7.commands)
    agents, ranks = ("localhost.log", f"{NODE7}.log"), ("localhost[0].log", f"{NODE7}[0].log")
    logs = {file.name: file.stat().st_size for file in (run / "torchrunx").rglob("*.log")}
    assert logs.keys() == {*agents, *ranks}
    assert all(logs[name] for name in agents)


@pytest.mark.slow
def test_a_rank_killed_on_another_machine_is_restarted(command: Command, train: tuple[str, ...]):
    flags = ("--max-iterations", "6", "--checkpoint.interval", "1", "--max-restarts", "1")
    done = command(*train, *flags, *faults(command.cwd, "1:3:sigkill"))
    assert done.code == Exit.DONE, done.out + done.err
    assert not command.leftovers()
    assert re.search(rf"\brank 1 .*{re.escape(NODE7)}\[0\]\.log\b.*\(1 of 1\)", done.out)
    assert " iteration 2." in done.out
    assert [row["iteration"] for row in read_metrics(only_run(command.cwd))] == list(range(1, 7))


@pytest.fixture
def training(
    command: Command,
    slow_training: Path,  # noqa: ARG001
    train: tuple[str, ...],
    wait_for: Callable[[Callable[[], bool]], None],
) -> subprocess.Popen[str]:
    """A long run that has trained some iterations."""
    process = command.start(*train, "--max-iterations", "100000", "--logger", "slow_logger:Slow")
    wait_for(
        lambda: process.poll() is not None or any(f.stat().st_size > 3000 for f in command.cwd.rglob(METRICS_FILE))
    )
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.slow
def test_sigterm_stops_all_machines_cleanly(
    command: Command, training: subprocess.Popen[str], assert_within: Callable[[float, float], None]
):
    # Suspend the agent of the other machine, so that it cannot react to messages. The run must end this agent, too.
    (agent,) = with_argument(command.processes(), OWN_DIRECTORY)
    agent.suspend()
    training.terminate()
    done = command.finish(training)
    assert done.code == Exit.RESUMABLE, done.out + done.err
    assert_within(done.took_s, 30)
    assert not command.leftovers()
    run = only_run(command.cwd)
    assert find_checkpoint(run).name == f"model_{read_metrics(run)[-1]['iteration']}.pt"


@pytest.mark.slow
def test_a_killed_launcher_leaves_nothing_on_another_machine(
    command: Command, training: subprocess.Popen[str], wait_for: Callable[[Callable[[], bool]], None]
):
    training.kill()
    command.finish(training)
    wait_for(lambda: not command.leftovers())


@pytest.mark.slow
def test_ranks_that_another_process_stops_count_as_failed(
    command: Command, training: subprocess.Popen[str], assert_within: Callable[[float, float], None]
):
    psutil.Process(json.loads((only_run(command.cwd) / RANKS_FILE).read_text())[1]["pid"]).terminate()
    done = command.finish(training)
    assert done.code == Exit.INFRASTRUCTURE, done.out + done.err
    assert_within(done.took_s, 30)
    assert re.search("^train: .*SIGTERM", done.err, re.MULTILINE)
    assert not command.leftovers()


def test_an_unreachable_host_starts_nothing(
    command: Command, train: tuple[str, ...], ssh_config: Path, assert_within: Callable[[float, float], None]
):
    ssh_config.write_text(host_entry(NODE7, 1, ssh_config))
    done = command(*train)
    assert done.code == Exit.PREFLIGHT
    assert_within(done.took_s, 15)
    (line,) = done.err.splitlines()
    assert line.startswith(f"train: host {NODE7}: ")
    assert "connection refused on port 1" in line
    assert done.out == ""
    assert not (command.cwd / "logs").exists()


def test_ranks_of_another_launcher_need_no_hosts(command: Command, train: tuple[str, ...]):
    torchrun = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    done = command(*train, env=torchrun)
    assert done.code == Exit.USAGE
    (line,) = done.err.splitlines()
    assert line.startswith(f"train: --hosts localhost {NODE7}: torchrun ")


@pytest.mark.slow
def test_doctor_checks_every_machine(command: Command, node7: SshServer, ssh_config: Path, tmp_path: Path):
    hosts = ("--hosts", "localhost", NODE7, "--ssh-config", str(ssh_config))
    done = command("mjlab-dist", "doctor", *hosts, "--json")
    report = json.loads(done.out)
    assert report["passed"] == (done.code == Exit.DONE), done.err
    here, there = report["hosts"]["localhost"], report["hosts"][NODE7]
    assert {check["name"] for check in here} - {check["name"] for check in there} == {"log root", "--logger wandb"}
    assert any(" doctor --json" in sent for sent in node7.commands)
    # A machine on which a check fails
    failing = program(tmp_path / "python", f'case "$*" in *doctor*) ulimit -n 60;; esac; exec {sys.executable} "$@"')
    node7.paths[sys.executable] = failing
    done = command("mjlab-dist", "doctor", *hosts)
    assert done.code == Exit.PREFLIGHT
    assert NODE7 in done.out
    (line,) = [line for line in done.out.splitlines() if "FAIL" in line]
    assert "open files" in line
    assert done.out.splitlines()[-1].startswith("1 check ")
    # A machine on which the doctor cannot run
    node7.paths[sys.executable] = program(
        tmp_path / "other", f'case "$*" in *doctor*) exit 9;; esac; exec {sys.executable} "$@"'
    )
    done = command("mjlab-dist", "doctor", *hosts, "--json")
    (finding,) = json.loads(done.out)["hosts"][NODE7]
    assert (done.code, finding["status"]) == (Exit.PREFLIGHT, "fail")
    assert f"ssh {NODE7}" in finding["fix"]


@pytest.mark.slow
@pytest.mark.long
def test_verify_checks_ranks_of_two_machines(command: Command, train: tuple[str, ...]):
    _, task, *flags = train
    done = command("mjlab-dist", "verify", task, *flags, "--max-iterations", "2", "--json")
    report = json.loads(done.out)
    # Only the check of the scaling may fail: the speed of ranks depends on other programs on this machine
    assert {check["name"] for check in report["checks"] if not check["passed"]} <= {"scaling against one rank"}, report
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert not command.leftovers()
