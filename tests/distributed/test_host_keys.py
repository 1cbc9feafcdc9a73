"""Host keys are verified as OpenSSH verifies them, in the checks before a run and when agents are started."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko
import pytest
from conftest import HANG_S, Command
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from ssh_server import Add, host_entry, known_host

from mjlab_dist.errors import Exit, PreflightError, UserError
from mjlab_dist.launch.host_checks import check_hosts
from mjlab_dist.launch.hosts import end_on_hosts

NODE7, NODE8 = "192.0.2.7", "192.0.2.8"
"""Addresses that no machine has."""

pytestmark = pytest.mark.usefixtures("home")

Check = Callable[[], str | None]


def ed25519() -> paramiko.PKey:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return paramiko.Ed25519Key.from_private_key(io.StringIO(pem.decode()))


@pytest.fixture
def check(ssh_config: Path) -> Check:
    """Check the host. Return the message if the host is refused, and None otherwise."""

    def check() -> str | None:
        try:
            check_hosts([NODE7], str(ssh_config))
        except PreflightError as error:
            return str(error)
        return None

    return check


def option(ssh_config: Path, line: str) -> None:
    ssh_config.write_text(f"{line}\n{ssh_config.read_text()}")


@pytest.mark.parametrize("strict", [None, "yes", "ask"])
def test_an_unknown_key_is_refused_with_the_command_that_adds_it(
    strict: str | None, add_host: Add, check: Check, ssh_config: Path, known_hosts: Path
):
    server = add_host(NODE7, is_known=False)
    if strict:
        option(ssh_config, f"StrictHostKeyChecking {strict}")
    message = check()
    assert message
    assert message.startswith(f"host {NODE7}: ")
    assert server.host_keys[0].fingerprint in message
    asks = "-o StrictHostKeyChecking=ask " if strict == "yes" else ""
    assert f"`ssh -F {ssh_config} {asks}{NODE7}`" in message
    assert not server.commands
    assert not known_hosts.read_text()


@pytest.mark.parametrize("strict", ["yes", "ask", "accept-new"])
def test_a_changed_key_is_refused(strict: str, add_host: Add, check: Check, ssh_config: Path, known_hosts: Path):
    server = add_host(NODE7)
    option(ssh_config, f"StrictHostKeyChecking {strict}")
    assert check() is None
    known = known_hosts.read_text()
    server.host_keys = [paramiko.ECDSAKey.generate()]
    message = check()
    assert message
    assert "has changed" in message
    assert f"{known_hosts} line 1" in message
    assert f"`ssh-keygen -f {known_hosts} -R '[127.0.0.1]:{server.port}'`" in message
    assert known_hosts.read_text() == known


@pytest.mark.parametrize("strict", ["no", "off"])
def test_any_key_is_accepted_if_the_config_file_allows_it(strict: str, add_host: Add, check: Check, ssh_config: Path):
    server = add_host(NODE7, is_known=False)
    option(ssh_config, f"StrictHostKeyChecking {strict}")
    assert check() is None
    server.host_keys = [paramiko.ECDSAKey.generate()]
    assert check() is None


@pytest.mark.parametrize("before", [None, "", "# no newline at the end"])
def test_a_new_key_is_remembered(
    before: str | None, add_host: Add, check: Check, ssh_config: Path, home: Path, known_hosts: Path
):
    server = add_host(NODE7, is_known=False)
    option(ssh_config, "StrictHostKeyChecking accept-new")
    if before is None:
        shutil.rmtree(home / ".ssh")
    else:
        known_hosts.write_text(before)
    assert check() is None
    assert known_hosts.read_text().splitlines()[-1] == known_host(server.port, server.host_keys[0]).strip()
    remembered = known_hosts.read_text()
    assert check() is None
    assert known_hosts.read_text() == remembered
    if before is None:
        assert (known_hosts.parent.stat().st_mode & 0o777, known_hosts.stat().st_mode & 0o777) == (0o700, 0o600)
    server.host_keys = [paramiko.ECDSAKey.generate()]
    assert "has changed" in (check() or "")


def test_names_can_be_hashed(add_host: Add, check: Check, ssh_config: Path, known_hosts: Path):
    server = add_host(NODE7)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known_hosts)], check=True, capture_output=True)
    assert known_hosts.read_text().startswith("|1|")
    assert check() is None
    known_hosts.write_text("")
    option(ssh_config, "StrictHostKeyChecking accept-new\nHashKnownHosts yes")
    assert check() is None
    assert known_hosts.read_text().startswith("|1|")
    server.host_keys = [paramiko.ECDSAKey.generate()]
    assert "has changed" in (check() or "")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH's client")
def test_a_key_that_openssh_has_added_is_known(add_host: Add, check: Check, ssh_config: Path, tmp_path: Path):
    add_host(NODE7, is_known=False, host_keys=[paramiko.ECDSAKey.generate(), ed25519(), paramiko.RSAKey.generate(2048)])
    option(ssh_config, f"UserKnownHostsFile {tmp_path}/known-%k-%p")
    assert check()
    accepts = ("-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes")
    subprocess.run(["ssh", "-F", str(ssh_config), *accepts, NODE7, "true"], check=True, timeout=HANG_S)
    assert check() is None


@pytest.mark.parametrize("index", range(3))
def test_a_key_of_a_known_type_is_requested(index: int, add_host: Add, check: Check, known_hosts: Path):
    server = add_host(
        NODE7,
        is_known=False,
        host_keys=[ed25519(), paramiko.ECDSAKey.generate(), paramiko.RSAKey.generate(2048)],
    )
    known_hosts.write_text(known_host(server.port, server.host_keys[index]))
    assert check() is None
    server.host_keys.pop(index)  # the host now has only keys of other types, and none of them is known
    assert "has changed" in (check() or "")


@pytest.mark.parametrize(
    ("names", "is_known"),
    [
        ("[127.0.0.1]:{port}", True),
        ("other,[127.0.0.?]:{port}", True),
        ("[127.0.*]:{port},![127.0.0.1]:{port}", False),
        ("127.0.0.1", True),  # OpenSSH also searches for the name without the port
        ("[127.0.0.1]:1", False),
        (NODE7, False),  # a name of the config file; OpenSSH searches only for the address behind the name
        ("|1|c2FsdA==|bm8=", False),
        ("|1|no", False),
    ],
)
def test_patterns_name_hosts(names: str, is_known: bool, add_host: Add, check: Check, known_hosts: Path):
    server = add_host(NODE7, is_known=False)
    key = known_host(server.port, server.host_keys[0]).split(maxsplit=1)[1]
    known_hosts.write_text(f"# comment\n\nbroken line\n{names.format(port=server.port)} {key}")
    assert (check() is None) == is_known


def test_a_host_can_have_an_alias(add_host: Add, check: Check, ssh_config: Path, known_hosts: Path):
    server = add_host(NODE7)
    with ssh_config.open("a") as file:
        file.write("  HostKeyAlias Cluster\n")
    assert " cluster " in (check() or "").lower()
    known_hosts.write_text(f"cluster {known_host(server.port, server.host_keys[0]).split(maxsplit=1)[1]}")
    assert check() is None


def test_a_revoked_key_is_refused(add_host: Add, check: Check, ssh_config: Path, known_hosts: Path):
    server = add_host(NODE7)
    option(ssh_config, "StrictHostKeyChecking no")
    key = known_host(server.port, server.host_keys[0]).split(maxsplit=1)[1]
    known_hosts.write_text(f"{known_hosts.read_text()}@revoked * {key}")
    assert f"{known_hosts} line 2" in (check() or "")


def test_the_config_file_names_files_of_known_hosts(
    add_host: Add, check: Check, ssh_config: Path, known_hosts: Path, tmp_path: Path
):
    add_host(NODE7)
    known = tmp_path / "all known"
    known_hosts.rename(known)
    assert check()
    for line in (
        f'GlobalKnownHostsFile /nowhere "{known}"',
        f'UserKnownHostsFile none\nGlobalKnownHostsFile "{known}" none',
        "UserKnownHostsFile /nowhere '~/../all known'",
    ):
        before = ssh_config.read_text()
        option(ssh_config, line)
        assert check() is None
        ssh_config.write_text(before)
    option(ssh_config, "UserKnownHostsFile 'open")
    with pytest.raises(UserError, match=r"^--ssh-config "):
        check()


def test_jump_hosts_are_verified_too(add_host: Add, check: Check, ssh_config: Path, key_file: Path):
    gateway = add_host(NODE8, is_known=False)
    ssh_config.write_text(f"{ssh_config.read_text()}{host_entry(NODE7, 1, key_file)}  ProxyJump {NODE8}\n")
    assert f" [127.0.0.1]:{gateway.port} " in (check() or "")


def test_processes_are_not_ended_on_a_host_with_another_key(add_host: Add, ssh_config: Path):
    server = add_host(NODE7)
    server.host_keys = [paramiko.ECDSAKey.generate()]
    assert end_on_hosts(("localhost", NODE7), str(ssh_config), "launch") == [NODE7]
    assert not server.commands


FLAGS = ("--gpu-ids", "None", "--cpu-ranks", "1", "--num-envs", "32", "--max-iterations", "3")


def test_an_unknown_key_starts_nothing(command: Command, add_host: Add, ssh_config: Path):
    server = add_host(NODE7, is_known=False)
    hosts = ("--hosts", "localhost", NODE7, "--ssh-config", str(ssh_config))
    done = command("train", "cartpole-balance", *FLAGS, *hosts)
    assert done.code == Exit.PREFLIGHT, done.err
    (line,) = done.err.splitlines()
    assert line.startswith(f"train: host {NODE7}: ")
    assert not server.commands
    assert not (command.cwd / "logs").exists()


@pytest.mark.slow
def test_no_agent_starts_on_a_host_whose_key_changes_after_the_checks(
    command: Command, add_host: Add, ssh_config: Path, monkeypatch: pytest.MonkeyPatch
):
    server = add_host(NODE7)
    run = server.run

    def change_key(*args: Any) -> None:
        server.host_keys = [paramiko.ECDSAKey.generate()]  # later connections get this key
        run(*args)

    monkeypatch.setattr(server, "run", change_key)
    hosts = ("--hosts", "localhost", NODE7, "--ssh-config", str(ssh_config))
    done = command("train", "cartpole-balance", *FLAGS, *hosts)
    assert done.code == Exit.PREFLIGHT, done.out + done.err
    assert "has changed" in done.err
    assert not any("exec " in ran for ran in server.commands)
    assert not list((command.cwd / "logs").glob("*/*"))
