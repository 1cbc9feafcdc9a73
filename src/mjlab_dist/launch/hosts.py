"""Other machines to train on: which, whether they can, and an end to what is left there. Imports no torch.

What is asked, and how, is what torchrunx does when it starts ranks: the same look-up of names, the same SSH library and files,
the same interpreter and working directory.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import ipaddress
import json
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed.rank import LOOPBACK
from mjlab_dist.errors import PreflightError, UserError
from mjlab_dist.machine.processes import LAUNCH

if TYPE_CHECKING:
    import fabric
    from invoke.runners import Result

T = TypeVar("T")

HERE = "localhost"
"""What torchrunx, and the names of log files, call this machine."""

CONNECT_TIMEOUT_S = 5
"""Seconds that a host has to answer as an SSH server."""

PACKAGES = ("mjlab-dist", "torchrunx", "torch")
"""What must be of the same version on all machines: processes hand each other pickles, and run the same collectives."""

PROBE = (
    "import importlib.metadata as m, json, sys, mjlab_dist; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
)
"""Program that prints the versions of the packages that its arguments name."""

CALL = f"import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), {CONNECT_TIMEOUT_S})"
"""Program that connects to an address, its first argument, at a port, its second."""

OWN_ADDRESS = "import socket; print(socket.gethostbyname(socket.gethostname()))"
"""Program that prints the address of a machine's own name: what gloo tells other machines, unless it is told an interface."""

INTERFACE = "GLOO_SOCKET_IFNAME"
"""Variable that names the network interface whose address gloo tells instead."""

END = """
import glob, os, signal, sys, time
for _ in range(20):
    found = False
    for file in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(file, "rb") as environ:
                if sys.argv[1].encode() not in environ.read().split(b"\\0"):
                    continue
            os.kill(int(file.split("/")[2]), signal.SIGKILL)
            found = True
        except OSError:
            pass
    if not found:
        sys.exit()
    time.sleep(0.1)
sys.exit(1)
"""
"""Program that kills processes started with a variable, ``name=value``, until none is left; fails where one stays."""

END_TIMEOUT_S = 10.0
"""Seconds that all hosts have to do that."""

SAME = "install the same environment there, under the same path"


def choose_hosts(config: TrainConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The machines to start ranks on, once each of them is known to be able to train.

    Args:
        config: The run's config.
        environ: The environment.

    Returns:
        Names as torchrunx takes them: this machine's first, then others'; mostly this one's alone.

    Raises:
        UserError: If this machine is not the first of several, or is named twice.
        PreflightError: If one cannot be trained on.
    """
    if not config.hosts:
        return (HERE,)
    first, *others = config.hosts
    shown = f"--hosts {' '.join(config.hosts)}"
    if not _is_known_as_this_machine(first):
        raise UserError(f"{shown}: rank 0 writes the run's files, on this machine; name localhost first")
    repeated = [host for host in others if _is_known_as_this_machine(host)]
    if repeated:
        raise UserError(f"{shown}: {first} and {repeated[0]} are both this machine; drop one of the two")
    if not others:
        return (HERE,)
    needs_address = INTERFACE not in environ
    if needs_address and (fault := _fault_of_name()):
        raise PreflightError(f"this machine: {fault}")
    check_hosts(others, config.ssh_config, needs_address=needs_address)
    return (HERE, *others)


def own_address(hosts: Sequence[str]) -> str:
    """The address at which all hosts reach this machine: that of the way to the first other one.

    Args:
        hosts: What :func:`choose_hosts` returned.
    """
    if len(hosts) == 1:
        return LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect((hosts[1], 9))  # sends nothing: the kernel only chooses a way
        except OSError:
            return LOOPBACK  # there is no network; hosts are other names of this machine
        return unsent.getsockname()[0]


def end_on_hosts(hosts: Sequence[str], ssh_config: str | None, launch: str) -> list[str]:
    """Kill what a launch has left on other machines, on all at the same time, and wait until it is gone.

    Args:
        hosts: What :func:`choose_hosts` returned.
        ssh_config: As for :func:`check_hosts`.
        launch: The launch's value of the variable that its processes inherit.

    Returns:
        Hosts where something may be left, since they did not answer.
    """

    def end(host: str) -> bool:
        with _connection(host, ssh_config) as connection:
            return _run(connection, _program(END, f"{LAUNCH}={launch}")).ok

    deadline = time.monotonic() + END_TIMEOUT_S
    ended = {host: _start(f"end on {host}", lambda host=host: end(host)) for host in hosts[1:]}
    left = set(ended)
    for host, future in ended.items():
        with contextlib.suppress(Exception):  # SSH's library raises nearly anything
            if future.result(max(0.0, deadline - time.monotonic())):
                left.remove(host)
    return sorted(left)


def check_hosts(
    hosts: Sequence[str], ssh_config: str | None, timeout_s: float = 12.0, *, needs_address: bool = False
) -> None:
    """Refuse machines that ranks could not be started on, all at once; ask all of them at the same time.

    Args:
        hosts: Names or addresses; those that are this machine are fine.
        ssh_config: SSH's config file; None for the user's and the system's.
        timeout_s: Seconds until a host that has not told all that is asked is given up.
        needs_address: Whether a host's own name must lead to an address at which others can reach it.

    Raises:
        UserError: If SSH's config file cannot be read.
        PreflightError: One line that names each host that cannot be trained on, why, and the mend.
    """
    import paramiko  # noqa: PLC0415 (needless where all ranks are here)

    try:
        connections = {host: _connection(host, ssh_config) for host in hosts}
    except (OSError, ValueError, paramiko.SSHException) as error:
        raise UserError(f"--ssh-config {ssh_config or '~/.ssh/config'}: {error}") from error
    # The library logs errors that it raises too; without any handler they would be printed, with tracebacks.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())

    deadline = time.monotonic() + timeout_s
    faults: dict[str, list[str]] = {}
    for host, asked in [
        (host, _start(f"ask {host}", lambda h=host, c=connection: _fault(h, c, needs_address=needs_address)))
        for host, connection in connections.items()
    ]:
        try:
            fault = asked.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            fault = f"no answer within {timeout_s:g} s; see what `ssh {host}` waits for"
        if fault is not None:
            faults.setdefault(fault, []).append(host)
    if faults:
        raise PreflightError(
            "; ".join(f"host{'s' if len(bad) > 1 else ''} {', '.join(bad)}: {fault}" for fault, bad in faults.items())
        )


def is_this_machine(host: str) -> bool:
    """Whether torchrunx starts a host's ranks here, without SSH: by its own rule (in its ``execute_command``).

    Args:
        host: A name or an address.

    Raises:
        OSError: If the name does not resolve, or this machine's own does not.
    """
    address = _address(host)
    return address.is_loopback or bool(_addresses(str(address)) & _addresses(socket.gethostname()))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return ipaddress.ip_address(socket.gethostbyname(host))


def _addresses(name: str) -> set[str | int]:
    return {entry[4][0] for entry in socket.getaddrinfo(name, None)}


def _is_known_as_this_machine(host: str) -> bool:
    try:
        return is_this_machine(host)
    except (OSError, UnicodeError):
        return False


def _connection(host: str, ssh_config: str | None) -> fabric.Connection:
    import fabric  # noqa: PLC0415 (needless where all ranks are here)

    # A config each: keys of one host's entry are added to it.
    config = fabric.Config(runtime_ssh_path=ssh_config)
    return fabric.Connection(host, config=config, connect_timeout=CONNECT_TIMEOUT_S)


def _start(name: str, ask: Callable[[], T]) -> Future[T]:
    """Start to ask a host. What it waits for, such as a name server or a stuck disk, may never end: this process need not wait."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _fault(host: str, connection: fabric.Connection, *, needs_address: bool) -> str | None:
    """Why ranks cannot be started on a host, and the mend; None if they can."""
    try:
        address = _address(host)
    except (OSError, UnicodeError):  # the latter where no name can look like this
        return "name does not resolve (SSH's config file is not enough for this); check it, or add it to /etc/hosts"
    try:
        if is_this_machine(host):
            return None
    except OSError:
        own = socket.gethostname()
        return f"cannot be told from this machine, whose own name {own} does not resolve; add that to /etc/hosts"
    if address.version == 6:
        return "torchrunx's log server has no IPv6; name the host by its IPv4 address"
    return _fault_of_ssh(host, connection, needs_address=needs_address)


def _fault_of_name(address: str | None = None) -> str | None:
    """Why other machines cannot reach one at the address of its own name, which is this machine's if none is given."""
    if address is None:
        with contextlib.suppress(OSError):  # a name that does not resolve is told host by host
            address = socket.gethostbyname(socket.gethostname())
    if address is None or not ipaddress.ip_address(address).is_loopback:
        return None
    return (
        f"its own name leads to {address}, where no other can reach it; give that name another address in /etc/hosts, or set "
        f"{INTERFACE} to the network interface, if it is called the same on all machines"
    )


def _fault_of_ssh(host: str, connection: fabric.Connection, *, needs_address: bool) -> str | None:
    import paramiko  # noqa: PLC0415

    client = connection.client
    assert isinstance(client, paramiko.SSHClient)
    start = time.monotonic()
    try:
        connection.open()
        return _fault_of_environment(connection) or _fault_of_network(host, connection, needs_address=needs_address)
    except (paramiko.SSHException, EOFError) as error:
        transport = client.get_transport()
        is_ssh = transport is not None and transport.initial_kex_done
        if not is_ssh and time.monotonic() - start >= CONNECT_TIMEOUT_S:  # said in several ways: "No existing session"
            return _fault_of_socket(TimeoutError(), connection.port)
        if is_ssh and connection.transport is None:
            # Which of the keys failed and why is lost: each file is tried as every kind of key, and the last error is raised.
            return f"SSH has no key that lets user {connection.user} in; `ssh {host}` must work without a password"
        return f"SSH failed ({str(error) or 'it hung up'}); `ssh {host}` must work without a password"
    except OSError as error:
        return _fault_of_socket(error, connection.port)
    finally:
        client.close()


def _fault_of_socket(error: OSError, port: int | None) -> str:
    from paramiko.ssh_exception import NoValidConnectionsError  # noqa: PLC0415

    if isinstance(error, NoValidConnectionsError):  # one for each of the host's addresses
        return _fault_of_socket(next(e for e in error.errors.values() if isinstance(e, OSError)), port)
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S} s on port {port}; is it switched on, and is a firewall between?"
    if error.filename is not None:
        return f"SSH failed ({error.filename}: {error.strerror}); mend SSH's config file"
    why = (error.strerror or str(error)).lower()
    return f"cannot be reached ({why} on port {port}); is its SSH server running?"


def _fault_of_network(host: str, connection: fabric.Connection, *, needs_address: bool) -> str | None:
    address = own_address((HERE, host))
    with socket.create_server((address, 0)) as server:
        if not _run(connection, _program(CALL, address, str(server.getsockname()[1]))).ok:
            return f"cannot connect to this machine at {address}; let all ports through the firewalls between them"
    if not needs_address:
        return None
    answer = _run(connection, _program(OWN_ADDRESS))
    # gloo takes the loopback address where there is no other.
    return _fault_of_name(answer.stdout.strip().rpartition("\n")[2] if answer.ok else LOOPBACK)


def _run(connection: fabric.Connection, command: str) -> Result:
    return connection.run(command, hide=True, warn=True, in_stream=False)


def _program(code: str, *args: str) -> str:
    """Command that runs a program of the standard library only."""
    return shlex.join((sys.executable, "-I", "-S", "-c", code, *args))


def _fault_of_environment(connection: fabric.Connection) -> str | None:
    directory = f"cd {shlex.quote(str(Path.cwd()))}"
    if not _run(connection, directory).ok:
        return f"has no directory {Path.cwd()}; start from a directory that all machines have"
    # Ranks import what this process can.
    path = "export " + shlex.quote(f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}")
    python = f"{shlex.quote(sys.executable)} -c {shlex.quote(PROBE)} {' '.join(PACKAGES)}"
    answer = _run(connection, f"{directory} && {path} && {python}")
    if answer.exited in {126, 127}:  # a shell's codes for a program that cannot be run, and one that is not there
        return f"has no {sys.executable}; {SAME}"
    if not answer.ok:
        said = answer.stderr.strip().rpartition("\n")[2]
        return f"{sys.executable} failed there ({said or f'exit code {answer.exited}'}); {SAME}"
    there = json.loads(answer.stdout.strip().rpartition("\n")[2])  # the shell's own start may have printed lines before
    here = {name: importlib.metadata.version(name) for name in PACKAGES}
    differing = [name for name in PACKAGES if there[name] != here[name]]
    if differing:
        has = " and ".join(f"{name} {there[name]}" for name in differing)
        return f"has {has}, this machine {' and '.join(here[name] for name in differing)}; {SAME}"
    return None
