"""Checks of other machines before ranks start on them, and the choice of a run's machines. Imports no torch.

The checks do what a launch does: they use the same name lookup, SSH library, config files and known hosts, Python
interpreter and working directory.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.hosts import HostEntry, parse_host
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import PreflightError, UserError
from mjlab_dist.launch.hosts import (
    CONNECT_TIMEOUT_S,
    HERE,
    Host,
    connect,
    in_thread,
    is_this_machine,
    listen_on,
    own_address,
    program,
    run_on,
)
from mjlab_dist.machine.device_answer import DeviceAnswer, DeviceRequest
from mjlab_dist.messages import emit

if TYPE_CHECKING:
    import fabric
    from invoke.runners import Result

# Packages whose versions must be equal on all machines, because all ranks must communicate in the same way and simulate
# the same physics.
PACKAGES = ("mjlab-dist", "torchrunx", "torch", "rsl-rl-lib", "tensordict", "warp-lang", "mujoco", "mujoco-warp")

# Program that prints the implementation and version of its Python; the directory of the standard library, if it is
# not this Python's own; and the versions of the packages that are given as arguments.
PROBE = """
import importlib.metadata as m, json, os, platform, sys, sysconfig, mjlab_dist
library = os.path.dirname(os.path.dirname(json.__file__))
is_own = os.path.realpath(library) == os.path.realpath(sysconfig.get_path("stdlib"))
python = [platform.python_implementation(), platform.python_version(), None if is_own else library]
print(json.dumps([python, {name: m.version(name) for name in sys.argv[1:]}]))
"""

# Program that connects to an address and a port, its two arguments
CALL = f"import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), {CONNECT_TIMEOUT_S})"

SAME = "install the same environment there, under the same path"


class HostError(Exception):
    """Reason why ranks cannot be started on a host, with the fix."""


def choose_hosts(config: TrainConfig, environ: Mapping[str, str], own: tuple[RankDevice, ...]) -> tuple[Host, ...]:
    """Return the machines to start ranks on, after checking that each of them can train.

    Returns:
        The machines. The first is this machine; without ``--hosts``, it is the only one.
    """
    others = other_hosts(config)
    if not others:
        return (Host(devices=own),)

    # Check the other machines, and ask them for their devices
    requests = {name: DeviceRequest.of(config, num_ranks, environ, own) for name, num_ranks in others}
    answers, faults = ask_hosts(requests, config.ssh_config)
    _raise_faults(faults)
    for name, answer in answers.items():
        for warning in answer.warnings:
            emit("warning", text=f"host {name}: {warning}")
    return with_equal_threads(
        (Host(devices=own), *(Host(name=name, devices=answers[name].devices) for name, _ in others))
    )


def other_hosts(config: TrainConfig) -> tuple[HostEntry, ...]:
    """Return the machines of ``--hosts`` without this machine, which must be named first."""
    if not config.hosts:
        return ()
    first, *others = map(parse_host, config.hosts)
    shown = f"--hosts {' '.join(config.hosts)}"
    if not _resolves_to_this_machine(first.name):
        raise UserError(f"{shown}: {first.name} is not this machine, where rank 0 must run; put localhost first")
    repeated = [host.name for host in others if _resolves_to_this_machine(host.name)]
    if repeated:
        raise UserError(f"{shown}: {first.name} and {repeated[0]} are both this machine; drop one of the two")
    if config.min_hosts is not None and config.min_hosts > len(config.hosts):
        raise UserError(f"--min-hosts {config.min_hosts}: exceeds the number of hosts; use {len(config.hosts)} or less")
    return tuple(others)


def with_equal_threads(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Give the CPU ranks of all hosts the same number of threads: the minimum over the hosts.

    An update waits for the slowest rank, so more threads on other hosts do not help. Ranks with different numbers of
    threads also round differently, so rank 0's parameters and optimizer would have to be copied to all ranks after
    every update.
    """
    cpus = [device for host in hosts for device in host.devices if device.device == "cpu"]
    least = min((device.torch_threads for device in cpus), default=1)
    return tuple(
        Host(
            name=host.name,
            devices=tuple(
                dataclasses.replace(device, torch_threads=least) if device.device == "cpu" else device
                for device in host.devices
            ),
        )
        for host in hosts
    )


def _resolves_to_this_machine(host: str) -> bool:
    try:
        return is_this_machine(host)
    except (OSError, UnicodeError):
        return False


def ask_hosts(
    requests: Mapping[str, DeviceRequest | None], ssh_config: str | None, timeout_s: float = 12.0
) -> tuple[dict[str, DeviceAnswer], dict[str, str]]:
    """Check in parallel whether hosts can run ranks, and ask them for their devices.

    Returns:
        The answers of the hosts that can run ranks, by host, and the reason and fix for every other host, by host.
    """
    import paramiko  # not needed if all ranks run on this machine

    # SSH connections, which are opened later
    try:
        connections = {host: connect(host, ssh_config) for host in requests}
    except (OSError, ValueError, paramiko.SSHException) as error:
        raise UserError(f"--ssh-config {ssh_config or '~/.ssh/config'}: {error}") from error
    # paramiko also logs the errors that it raises; without a handler, they would be printed with tracebacks.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())

    # Check each host in its own thread
    deadline = time.monotonic() + timeout_s
    checks = {
        host: in_thread(f"check {host}", lambda h=host, c=connection: _check_host(h, c, requests[h]))
        for host, connection in connections.items()
    }
    answers: dict[str, DeviceAnswer] = {}
    faults: dict[str, str] = {}
    for host, check in checks.items():
        try:
            answers[host] = check.result(max(0.0, deadline - time.monotonic()))
        except HostError as fault:
            faults[host] = str(fault)
        except TimeoutError:
            faults[host] = f"no answer within {timeout_s:g} s; run `ssh {host}` to find out why"
    return answers, faults


def check_hosts(hosts: Sequence[str], ssh_config: str | None, timeout_s: float = 12.0) -> None:
    """Raise if any host cannot run ranks. Hosts are checked in parallel, and all faults are reported at once."""
    _, faults = ask_hosts(dict.fromkeys(hosts), ssh_config, timeout_s)
    _raise_faults(faults)


def describe_faults(faults: Mapping[str, str]) -> str:
    """Return one line with every host and its fault."""
    by_fault: dict[str, list[str]] = {}
    for host, fault in faults.items():
        by_fault.setdefault(fault, []).append(host)
    return "; ".join(f"host{'s' if len(bad) > 1 else ''} {', '.join(bad)}: {fault}" for fault, bad in by_fault.items())


def _raise_faults(faults: Mapping[str, str]) -> None:
    if faults:
        raise PreflightError(describe_faults(faults))


def _check_host(host: str, connection: fabric.Connection, request: DeviceRequest | None) -> DeviceAnswer:
    """Return a host's devices; raise if ranks cannot be started on the host."""
    try:
        if is_this_machine(host):
            return DeviceAnswer()
    except (OSError, UnicodeError):  # UnicodeError: not a valid host name
        raise HostError(
            "name does not resolve (an entry in SSH's config file is not enough); check it, or add it to /etc/hosts"
        ) from None
    return _check_ssh(host, connection, request)


def _check_ssh(host: str, connection: fabric.Connection, request: DeviceRequest | None) -> DeviceAnswer:
    import paramiko

    from mjlab_dist.launch.ssh import HostKeyError

    client = connection.client
    assert isinstance(client, paramiko.SSHClient)
    started_at = time.monotonic()
    try:
        connection.open()
        _check_environment(connection)
        _check_network(host, connection)
        return DeviceAnswer() if request is None else _ask_devices(connection, request)
    except HostKeyError as error:
        raise HostError(str(error)) from None
    except (paramiko.SSHException, EOFError) as error:
        transport = client.get_transport()
        is_ssh = transport is not None and transport.initial_kex_done
        # If the server never answers, paramiko raises different errors, such as "No existing session". A timeout is
        # therefore recognized by the elapsed time.
        if not is_ssh and time.monotonic() - started_at >= CONNECT_TIMEOUT_S:
            fault = _describe_socket_error(TimeoutError(), connection.port)
        elif is_ssh and connection.transport is None:
            # paramiko tries each file as every type of key and raises the last error, which may be irrelevant.
            fault = f"no SSH key is accepted for user {connection.user}; `ssh {host}` must work without a password"
        else:
            fault = f"SSH failed ({str(error) or 'connection closed'}); `ssh {host}` must work without a password"
        raise HostError(fault) from error
    except OSError as error:
        raise HostError(_describe_socket_error(error, connection.port)) from error
    finally:
        client.close()


def _describe_socket_error(error: OSError, port: int | None) -> str:
    from paramiko.ssh_exception import NoValidConnectionsError

    if isinstance(error, NoValidConnectionsError):  # holds an error for each of the host's addresses
        return _describe_socket_error(next(e for e in error.errors.values() if isinstance(e, OSError)), port)
    if isinstance(error, TimeoutError):
        return (
            f"no answer within {CONNECT_TIMEOUT_S} s on port {port}; is the host switched on, or does a firewall block "
            "the port?"
        )
    if error.filename is not None:
        return f"SSH failed ({error.filename}: {error.strerror}); fix SSH's config file"
    why = (error.strerror or str(error)).lower()
    return f"cannot be reached ({why} on port {port}); is its SSH server running?"


def _check_network(host: str, connection: fabric.Connection) -> None:
    """Raise if a host cannot connect to this machine."""
    address = own_address((HERE, host))
    with listen_on(address) as server:
        if not run_on(connection, program(CALL, address, str(server.getsockname()[1]))).ok:
            raise HostError(
                f"cannot connect to this machine at {address}; allow all ports in the firewalls between the two"
            )


def _command(*arguments: str) -> str:
    """Return the shell command that runs this process's Python in its working directory, with its import path."""
    path = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
    program = shlex.join((sys.executable, "-P", *arguments))  # -P: files of the directory do not shadow modules
    return f"cd {shlex.quote(str(Path.cwd()))} && export {shlex.quote(path)} && {program}"


def _check_environment(connection: fabric.Connection) -> None:
    """Raise if a host has a different working directory, Python or packages."""
    # Working directory
    if not run_on(connection, f"cd {shlex.quote(str(Path.cwd()))}").ok:
        raise HostError(f"has no directory {Path.cwd()}; start from a directory that exists on all machines")

    # Interpreter
    answer = run_on(connection, _command("-c", PROBE, *PACKAGES))
    if answer.exited in {126, 127}:  # the shell's exit codes for "cannot execute" and "not found"
        raise HostError(f"has no {sys.executable}; {SAME}")
    if not answer.ok:
        raise HostError(f"{sys.executable} failed there ({_last_line(answer)}); {SAME}")

    # Versions of Python and of packages
    python, there = json.loads(answer.stdout.strip().rpartition("\n")[2])  # the shell may print lines first
    if fault := _compare_python(*python):
        raise HostError(fault)
    here = {name: importlib.metadata.version(name) for name in PACKAGES}
    differing = [name for name in PACKAGES if there[name] != here[name]]
    if differing:
        has = " and ".join(f"{name} {there[name]}" for name in differing)
        raise HostError(f"has {has}, but this machine has {' and '.join(here[name] for name in differing)}; {SAME}")


def _ask_devices(connection: fabric.Connection, request: DeviceRequest) -> DeviceAnswer:
    """Return the devices that a host chooses for its ranks."""
    printed = run_on(connection, _command("-m", "mjlab_dist.machine.device_answer", request.argument()))
    if not printed.ok:
        raise HostError(f"its devices cannot be listed ({_last_line(printed)}); run mjlab-dist doctor there")
    answer = DeviceAnswer.read(printed.stdout.strip().rpartition("\n")[2])
    if answer.error:
        raise HostError(answer.error)
    return answer


def _last_line(result: Result) -> str:
    return result.stderr.strip().rpartition("\n")[2] or f"exit code {result.exited}"


def _compare_python(kind: str, version: str, library: str | None) -> str | None:
    """Return why a host's Python cannot run ranks of a launch from this machine; None if it can run them.

    A Python of a different patch release can run them: it reads the same bytecode and loads the same compiled packages.
    There is one exception. If the directory of this machine's standard library also exists on the host, the host's
    Python imports from it, and the compiled modules in this directory work only with this machine's release.
    """
    own_kind, own_version = platform.python_implementation(), platform.python_version()
    has = f"has {kind} {version}, but this machine has {own_kind} {own_version}"
    if (kind, version.split(".")[:2]) != (own_kind, own_version.split(".")[:2]):
        return f"{has}; {SAME}"
    if version != own_version and library is not None:
        return f"{has}; both machines have {library}, but its modules work only with {own_version}; {SAME}"
    return None
