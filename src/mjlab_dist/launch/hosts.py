"""Other machines to train on: choose them, check them, and kill processes left there. Imports no torch.

The checks do what torchrunx does when it starts ranks: they use the same name lookup, SSH library, config files and
known hosts, Python interpreter and working directory.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import ipaddress
import json
import logging
import os
import platform
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed.rank import LOOPBACK
from mjlab_dist.errors import PreflightError, UserError
from mjlab_dist.machine.processes import LAUNCH, TEMPORARY

if TYPE_CHECKING:
    import fabric
    from invoke.runners import Result

T = TypeVar("T")

HERE = "localhost"
"""Name of this machine for torchrunx and in the names of log files."""

CONNECT_TIMEOUT_S = 5
"""Seconds to wait for a host's SSH server to answer."""

PACKAGES = ("mjlab-dist", "torchrunx", "torch", "rsl-rl-lib", "tensordict", "warp-lang", "mujoco", "mujoco-warp")
"""Packages whose versions must be equal on all machines: ranks run the same collectives, and the same physics."""

PROBE = """
import importlib.metadata as m, json, os, platform, sys, sysconfig, mjlab_dist
library = os.path.dirname(os.path.dirname(json.__file__))
is_own = os.path.realpath(library) == os.path.realpath(sysconfig.get_path("stdlib"))
python = [platform.python_implementation(), platform.python_version(), None if is_own else library]
print(json.dumps([python, {name: m.version(name) for name in sys.argv[1:]}]))
"""
"""Program that prints the implementation and the version of its Python, the directory of the standard library if that
is not Python's own, and the versions of the packages given as arguments."""

CALL = f"import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), {CONNECT_TIMEOUT_S})"
"""Program that connects to an address and a port, its two arguments."""

END = """
import glob, os, shutil, signal, sys, tempfile, time
_, _, launch = sys.argv[1].partition("=")
for _ in range(20):
    found = False
    for file in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(file, "rb") as environ:
                if sys.argv[1].encode() not in environ.read().split(b"\\0"):
                    continue
            with open(os.path.join(os.path.dirname(file), "cmdline"), "rb") as command:
                is_tracker = b"multiprocessing.resource_tracker" in command.read()
            found = True
            if not is_tracker:
                os.kill(int(file.split("/")[2]), signal.SIGKILL)
        except OSError:
            pass
    if not found:
        for directory in glob.glob(os.path.join(tempfile.gettempdir(), sys.argv[2] + launch + "-*")):
            if os.path.isdir(directory):
                shutil.rmtree(directory, ignore_errors=True)
        sys.exit()
    time.sleep(0.1)
sys.exit(1)
"""
"""Program that kills all processes started with a variable ``name=value``; fails if any is left after two seconds.

multiprocessing's resource trackers end by themselves, and remove semaphores first. The program also removes the
processes' temporary directory. Its name is the second argument, followed by the value.
"""

END_TIMEOUT_S = 10.0
"""Seconds to wait until all hosts have run that program."""

SAME = "install the same environment there, under the same path"


def choose_hosts(config: TrainConfig) -> tuple[str, ...]:
    """Return the machines to start ranks on, after checking that each of them can train.

    Args:
        config: The run's config.

    Returns:
        Host names for torchrunx; the first is this machine, which without ``--hosts`` is the only one.

    Raises:
        UserError: If this machine is not the first of several, or is given twice.
        PreflightError: If any machine cannot train.
    """
    if not config.hosts:
        return (HERE,)

    # This machine must be the first, and given once
    first, *others = config.hosts
    shown = f"--hosts {' '.join(config.hosts)}"
    if not _resolves_to_this_machine(first):
        raise UserError(f"{shown}: rank 0 writes the run's files on this machine; put localhost first")
    repeated = [host for host in others if _resolves_to_this_machine(host)]
    if repeated:
        raise UserError(f"{shown}: {first} and {repeated[0]} are both this machine; drop one of the two")
    if not others:
        return (HERE,)

    # The other machines
    check_hosts(others, config.ssh_config)
    return (HERE, *others)


def own_address(hosts: Sequence[str]) -> str:
    """Return the address at which other hosts reach this machine: the source address of its route to the first of them.

    Args:
        hosts: Result of :func:`choose_hosts`.
    """
    if len(hosts) == 1:
        return LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect((hosts[1], 9))  # sends nothing: the kernel only chooses the route
        except OSError:
            return LOOPBACK  # no network: the hosts are other names of this machine
        return unsent.getsockname()[0]


def end_on_hosts(hosts: Sequence[str], ssh_config: str | None, launch: str) -> list[str]:
    """Kill processes that a launch left on other machines, in parallel, and wait until they are gone.

    Args:
        hosts: Result of :func:`choose_hosts`.
        ssh_config: As for :func:`check_hosts`.
        launch: Value of the variable that all processes of the launch inherit.

    Returns:
        Hosts that did not confirm this; processes may be left there.
    """

    def end(host: str) -> bool:
        with connect(host, ssh_config) as connection:
            return _run(connection, program(END, f"{LAUNCH}={launch}", TEMPORARY)).ok

    deadline = time.monotonic() + END_TIMEOUT_S
    ended = {host: _start(f"end on {host}", lambda host=host: end(host)) for host in hosts[1:]}
    left = set(ended)
    for host, future in ended.items():
        with contextlib.suppress(Exception):  # the SSH library raises many types of errors
            if future.result(max(0.0, deadline - time.monotonic())):
                left.remove(host)
    return sorted(left)


def check_hosts(hosts: Sequence[str], ssh_config: str | None, timeout_s: float = 12.0) -> None:
    """Raise if at least one host cannot run ranks. Hosts are checked in parallel, and all faults are reported at once.

    Args:
        hosts: Names or addresses. Names of this machine always pass.
        ssh_config: SSH's config file; None for the user's and the system's.
        timeout_s: Seconds after which a host that has not answered all checks fails.

    Raises:
        UserError: If SSH's config file cannot be read.
        PreflightError: One line with every host that fails, the reason and the fix.
    """
    import paramiko  # noqa: PLC0415 (not needed if all ranks run on this machine)

    # SSH connections, which are opened later
    try:
        connections = {host: connect(host, ssh_config) for host in hosts}
    except (OSError, ValueError, paramiko.SSHException) as error:
        raise UserError(f"--ssh-config {ssh_config or '~/.ssh/config'}: {error}") from error
    # paramiko also logs the errors that it raises; without a handler they would be printed with tracebacks.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())

    # Checks, each host in its own thread
    deadline = time.monotonic() + timeout_s
    checks = {
        host: _start(f"check {host}", lambda h=host, c=connection: _check_host(h, c))
        for host, connection in connections.items()
    }

    # Hosts grouped by fault
    faults: dict[str, list[str]] = {}
    for host, check in checks.items():
        try:
            fault = check.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            fault = f"no answer within {timeout_s:g} s; run `ssh {host}` to see what it waits for"
        if fault is not None:
            faults.setdefault(fault, []).append(host)
    if faults:
        raise PreflightError(
            "; ".join(f"host{'s' if len(bad) > 1 else ''} {', '.join(bad)}: {fault}" for fault, bad in faults.items())
        )


def is_this_machine(host: str) -> bool:
    """Return whether torchrunx starts a host's ranks here without SSH. Same rule as torchrunx's ``execute_command``.

    Args:
        host: A name or an address.

    Raises:
        OSError: If the host's name or this machine's own name does not resolve.
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


def _resolves_to_this_machine(host: str) -> bool:
    try:
        return is_this_machine(host)
    except (OSError, UnicodeError):
        return False


def connect(host: str, ssh_config: str | None) -> fabric.Connection:
    """Return a connection to a host that is not open yet.

    Args:
        host: Name or address.
        ssh_config: SSH's config file; None for the user's and the system's.
    """
    import fabric  # noqa: PLC0415 (not needed if all ranks run on this machine)

    from mjlab_dist.launch.ssh import verifying  # noqa: PLC0415 (the same)

    # One config per host, because fabric adds the keys of the host's entry to it
    config = fabric.Config(runtime_ssh_path=ssh_config)
    return verifying(fabric.Connection(host, config=config, connect_timeout=CONNECT_TIMEOUT_S), ssh_config)


def _start(name: str, function: Callable[[], T]) -> Future[T]:
    """Run a function in a daemon thread, so that a name server or disk that never answers cannot block this process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _check_host(host: str, connection: fabric.Connection) -> str | None:
    """Return why ranks cannot be started on a host, with the fix; None if they can."""
    try:
        address = _address(host)
    except (OSError, UnicodeError):  # UnicodeError: not a valid host name
        return "name does not resolve (an entry in SSH's config file is not enough); check it, or add it to /etc/hosts"
    try:
        if is_this_machine(host):
            return None
    except OSError:
        own = socket.gethostname()
        return f"cannot be compared with this machine, whose own name {own} does not resolve; add {own} to /etc/hosts"
    if address.version == 6:
        return "torchrunx's log server does not support IPv6; give the host's IPv4 address"
    return _check_ssh(host, connection)


def _check_ssh(host: str, connection: fabric.Connection) -> str | None:
    import paramiko  # noqa: PLC0415

    from mjlab_dist.launch.ssh import HostKeyError  # noqa: PLC0415

    client = connection.client
    assert isinstance(client, paramiko.SSHClient)
    start = time.monotonic()
    try:
        connection.open()
        return _check_environment(connection) or _check_network(host, connection)
    except HostKeyError as error:
        return str(error)
    except (paramiko.SSHException, EOFError) as error:
        transport = client.get_transport()
        is_ssh = transport is not None and transport.initial_kex_done
        # The error of a server that never answers varies, such as "No existing session".
        if not is_ssh and time.monotonic() - start >= CONNECT_TIMEOUT_S:
            return _describe_socket_error(TimeoutError(), connection.port)
        if is_ssh and connection.transport is None:
            # paramiko tries each file as every type of key and raises the last error, which does not show what failed.
            return f"no SSH key is accepted for user {connection.user}; `ssh {host}` must work without a password"
        return f"SSH failed ({str(error) or 'connection closed'}); `ssh {host}` must work without a password"
    except OSError as error:
        return _describe_socket_error(error, connection.port)
    finally:
        client.close()


def _describe_socket_error(error: OSError, port: int | None) -> str:
    from paramiko.ssh_exception import NoValidConnectionsError  # noqa: PLC0415

    if isinstance(error, NoValidConnectionsError):  # holds an error for each of the host's addresses
        return _describe_socket_error(next(e for e in error.errors.values() if isinstance(e, OSError)), port)
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S} s on port {port}; is it switched on, or does a firewall block it?"
    if error.filename is not None:
        return f"SSH failed ({error.filename}: {error.strerror}); fix SSH's config file"
    why = (error.strerror or str(error)).lower()
    return f"cannot be reached ({why} on port {port}); is its SSH server running?"


def _check_network(host: str, connection: fabric.Connection) -> str | None:
    address = own_address((HERE, host))
    with socket.create_server((address, 0)) as server:
        if not _run(connection, program(CALL, address, str(server.getsockname()[1]))).ok:
            return f"cannot connect to this machine at {address}; allow all ports in the firewalls between them"
    return None


def _run(connection: fabric.Connection, command: str) -> Result:
    return connection.run(command, hide=True, warn=True, in_stream=False)


def program(code: str, *args: str) -> str:
    """Return the shell command for a Python program that needs only the standard library.

    Args:
        code: The program.
        args: Its arguments.
    """
    return shlex.join((sys.executable, "-I", "-S", "-c", code, *args))


def _check_environment(connection: fabric.Connection) -> str | None:
    # Working directory
    directory = f"cd {shlex.quote(str(Path.cwd()))}"
    if not _run(connection, directory).ok:
        return f"has no directory {Path.cwd()}; start from a directory that exists on all machines"

    # Interpreter, with the import path of this process, which ranks use too
    path = "export " + shlex.quote(f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}")
    python = f"{shlex.quote(sys.executable)} -c {shlex.quote(PROBE)} {' '.join(PACKAGES)}"
    answer = _run(connection, f"{directory} && {path} && {python}")
    if answer.exited in {126, 127}:  # the shell's exit codes for "cannot execute" and "not found"
        return f"has no {sys.executable}; {SAME}"
    if not answer.ok:
        last_line = answer.stderr.strip().rpartition("\n")[2]
        return f"{sys.executable} failed there ({last_line or f'exit code {answer.exited}'}); {SAME}"

    # Versions of Python and of packages
    python, there = json.loads(answer.stdout.strip().rpartition("\n")[2])  # the shell may print lines first
    if fault := _compare_python(*python):
        return fault
    here = {name: importlib.metadata.version(name) for name in PACKAGES}
    differing = [name for name in PACKAGES if there[name] != here[name]]
    if differing:
        has = " and ".join(f"{name} {there[name]}" for name in differing)
        return f"has {has}, but this machine has {' and '.join(here[name] for name in differing)}; {SAME}"
    return None


def _compare_python(kind: str, version: str, library: str | None) -> str | None:
    """Return why a host's Python cannot run ranks for this machine; None if it can.

    Another patch release can: it reads the same bytecode and loads the same compiled packages. But the compiled modules
    of a standard library only work with their own release.

    Args:
        kind: Implementation, such as CPython.
        version: Version.
        library: Directory of the standard library that Python finds first; None if it is Python's own.
    """
    own_kind, own_version = platform.python_implementation(), platform.python_version()
    has = f"has {kind} {version}, but this machine has {own_kind} {own_version}"
    if (kind, version.split(".")[:2]) != (own_kind, own_version.split(".")[:2]):
        return f"{has}; {SAME}"
    if version != own_version and library is not None:
        return f"{has}, and {library}, the standard library of this machine, exists there too; {SAME}"
    return None
