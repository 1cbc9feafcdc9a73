"""Training on other machines. If ranks cannot start on a machine, the command soon ends and names the machine.

OpenSSH's server runs the commands on this machine.
"""

from __future__ import annotations

import dataclasses
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
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import HANG_S, Command
from fault_injection import faults
from processes import AGENT_MODULE, with_argument
from run_files import only_run
from ssh_server import Add, SshServer, host_entry

from mjlab_dist.config import registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import Exit, PreflightError, UserError
from mjlab_dist.launch.channel import SECRET
from mjlab_dist.launch.hosts.host_checks import check_hosts, choose_hosts
from mjlab_dist.launch.hosts.ssh import end_on_hosts, is_this_machine, own_address
from mjlab_dist.launch.preparation import waiting_agents
from mjlab_dist.launch.supervision import Ended
from mjlab_dist.launch.torchrunx_agent import OWN_DIRECTORY
from mjlab_dist.runs.run_dir import METRICS_FILE, PROVENANCE_FILE, RANKS_FILE, find_checkpoint, read_metrics

NODE7, NODE8 = "192.0.2.7", "192.0.2.8"
"""Addresses that no machine has."""


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


def test_settings_for_terminals_do_no_harm(add_host: Add, ssh_config: Path, tmp_path: Path):
    server = add_host(NODE7)
    settings = (
        f"ControlMaster auto\nControlPath {tmp_path}/shared\nControlPersist 60\n"
        f"LocalForward 127.0.0.1:{server.port} localhost:1\nExitOnForwardFailure yes\n"  # the port is in use
        "RequestTTY force\nRemoteCommand exit 1\n"
    )
    ssh_config.write_text(settings + ssh_config.read_text())
    check_hosts([NODE7], str(ssh_config))
    assert not (tmp_path / "shared").exists()


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


def with_startup(directory: Path, code: str) -> str:
    """Write a replacement of Python that runs code when it starts."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(code)
    return program(directory / "python", f'PYTHONPATH="{directory}:$PYTHONPATH" exec {sys.executable} "$@"')


def with_python(directory: Path, version: str) -> str:
    """Write a replacement of Python that reports a different version."""
    return with_startup(directory, f"import platform\nplatform.python_version = lambda: '{version}'\n")


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


def test_names_that_only_ssh_resolves_are_refused(add_host: Add, refusal_of: Callable[..., str]):
    add_host("node7.invalid")
    for name in ("node7.invalid", "node..7"):
        message = refusal_of(name)
        assert message.startswith(f"host {name}: ")
        assert "/etc/hosts" in message


def test_a_host_whose_programs_hang_times_out(add_host: Add, refusal_of: Callable[..., str], tmp_path: Path):
    add_host(NODE7, paths={sys.executable: program(tmp_path / "python", "exec sleep 600")})
    message = refusal_of(NODE7, timeout_s=1.5)
    assert message.startswith(f"host {NODE7}: ")
    assert " 1.5 s; " in message
    assert f"`ssh {NODE7}`" in message


@pytest.mark.parametrize("fault", ["closed", "mute", "key", "passphrase", "no key", "unknown", "changed", "config"])
def test_if_ssh_fails_its_reason_and_the_command_to_try_are_named(
    fault: str, add_host: Add, refusal_of: Callable[..., str], ssh_config: Path, key_file: Path, known_hosts: Path
):
    server = add_host(NODE7)
    config = ssh_config.read_text()
    reason = "Permission denied"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # bound, but nobody listens
        match fault:
            case "closed":
                ssh_config.write_text(config.replace(str(server.port), str(other.getsockname()[1])))
                reason = f"port {other.getsockname()[1]}: Connection refused"
            case "mute":
                other.listen()  # the kernel accepts connections, and nobody answers
                ssh_config.write_text(config.replace(str(server.port), str(other.getsockname()[1])))
                reason = "timed out"
            case "key":
                Path(f"{key_file}.pub").write_text(server.public_key)
            case "passphrase":
                subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key_file)], check=True)
            case "no key":
                key_file.unlink()
            case "unknown":
                known_hosts.write_text("")
                reason = "Host key verification failed"
            case "changed":
                known_hosts.write_text(f"[127.0.0.1]:{server.port} {Path(f'{key_file}.pub').read_text()}")
                reason = "Host key verification failed"
            case _:
                ssh_config.write_text(f"{config}Nonsense 1\n")
                reason = "1 bad configuration options"
        message = refusal_of(NODE7)
        assert end_on_hosts(("localhost", NODE7), str(ssh_config), "launch") == [NODE7]
    assert message.startswith(f"host {NODE7}: SSH failed (")
    assert reason in message
    assert f"`ssh -F {ssh_config} {NODE7}`" in message
    assert not server.commands


def test_all_bad_hosts_are_named_at_once(add_host: Add, refusal_of: Callable[..., str]):
    add_host(NODE7)
    add_host(NODE8, paths={sys.executable: "/nowhere/bin/python"})
    add_host("192.0.2.9", paths={sys.executable: "/elsewhere/bin/python"})
    message = refusal_of("localhost", "node7.invalid", NODE7, NODE8, "192.0.2.9")
    assert message.startswith("host node7.invalid: ")
    assert re.search(f"; hosts {NODE8}, 192.0.2.9: [^;]*{sys.executable};", message)
    assert "localhost" not in message
    assert NODE7 not in message


def test_the_check_of_hosts_imports_no_torch_prints_nothing_and_leaves_no_thread(
    add_host: Add, ssh_config: Path, tmp_path: Path
):
    code = """
import sys
import sysconfig
from mjlab_dist.errors import PreflightError
from mjlab_dist.launch.hosts.host_checks import check_hosts

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
    add_host("192.0.2.9", is_known=False)
    command = [sys.executable, "-c", code, str(ssh_config), NODE7, NODE8, "192.0.2.9"]
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
    python = with_startup(
        tmp_path / "there",
        "import socket\ndef create_connection(*_): raise OSError\nsocket.create_connection = create_connection",
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


def test_a_host_that_is_lost_after_its_check_is_noticed(
    ssh_config: Path, tmp_path: Path, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    ssh_config.write_text(host_entry(NODE7, 1, ssh_config))
    with (tmp_path / "errors").open("w") as errors:
        hosts, environ = ("localhost", NODE7), dict(os.environ)
        with waiting_agents(hosts, str(ssh_config), [], here=environ, there={}, silence_s=60, errors=errors) as agents:
            wait_for(lambda: agents[1].ended() is not None)
            assert agents[0].ended() is None
    assert agents[1].ended() == Ended(f"torchrunx's agent on {NODE7}", -1)
    assert "port 1: Connection refused" in (tmp_path / "errors").read_text()
    assert not with_argument(psutil.Process().children(), AGENT_MODULE)


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
    # The environment is sent through standard input, because every user of a machine can read command lines
    assert not any("unlike any other" in each or SECRET in each for each in node7.commands)
    logs = {file.name for file in (run / "torchrunx").rglob("*.log")}
    assert logs == {"localhost[0].log", f"{NODE7}[0].log"}


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
    assert "port 1: Connection refused" in line
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
    node7.set_paths({sys.executable: failing})
    done = command("mjlab-dist", "doctor", *hosts)
    assert done.code == Exit.PREFLIGHT
    assert NODE7 in done.out
    (line,) = [line for line in done.out.splitlines() if "FAIL" in line]
    assert "open files" in line
    assert done.out.splitlines()[-1].startswith("1 check ")
    # A machine on which the doctor cannot run
    other = program(tmp_path / "other", f'case "$*" in *doctor*) exit 9;; esac; exec {sys.executable} "$@"')
    node7.set_paths({sys.executable: other})
    done = command("mjlab-dist", "doctor", *hosts, "--json")
    (finding,) = json.loads(done.out)["hosts"][NODE7]
    assert (done.code, finding["status"]) == (Exit.PREFLIGHT, "fail")
    assert f"ssh {NODE7}" in finding["fix"]


@pytest.mark.slow
@pytest.mark.long
def test_verify_checks_ranks_of_two_machines(command: Command, train: tuple[str, ...]):
    _, task, *flags = train
    done = command("mjlab-dist", "verify", task, *flags, "--max-iterations", "4", "--json")
    report = json.loads(done.out)
    assert report["passed"], report
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert not command.leftovers()
