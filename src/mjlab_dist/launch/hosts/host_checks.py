"""Checks of other machines before ranks start on them, and the choice of a run's machines. Imports no torch.

The checks do what a launch does: they use the same name lookup, SSH client, Python interpreter and working directory.
``mjlab-dist doctor`` runs its own checks on other machines in the same way.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import HostEntry, parse_host
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import PreflightError, UserError
from mjlab_dist.launch.hosts.device_answer import DeviceAnswer, DeviceRequest
from mjlab_dist.launch.hosts.ssh import (
    CONNECT_TIMEOUT_S,
    HERE,
    SSH_FAILED,
    Host,
    is_this_machine,
    listen_on,
    own_address,
    run_on,
)
from mjlab_dist.machine import Finding, Status
from mjlab_dist.messages import emit

# Packages whose versions must be equal on all machines, because all ranks must communicate in the same way and simulate
# the same physics.
PACKAGES = ("mjlab-dist", "torchrunx", "torch", "rsl-rl-lib", "tensordict", "warp-lang", "mujoco", "mujoco-warp")

# Program that prints the implementation and version of its Python; the directory of the standard library, if it is
# not this Python's own; whether it can connect to an address and a port, its first two arguments; and the versions of
# the packages that are its other arguments.
PROBE = f"""
import importlib.metadata as m, json, os, platform, socket, sys, sysconfig, mjlab_dist
library = os.path.dirname(os.path.dirname(json.__file__))
is_own = os.path.realpath(library) == os.path.realpath(sysconfig.get_path("stdlib"))
python = [platform.python_implementation(), platform.python_version(), None if is_own else library]
try:
    connects = bool(socket.create_connection((sys.argv[1], int(sys.argv[2])), {CONNECT_TIMEOUT_S}))
except OSError:
    connects = False
print(json.dumps([python, {{name: m.version(name) for name in sys.argv[3:]}}, connects]))
"""

# Exit code of a command whose directory does not exist
NO_DIRECTORY = 120

SAME_ENVIRONMENT = "install the same environment there, under the same path"

# Checks that matter only on the machine of rank 0, because only rank 0 writes files and logs metrics
ONLY_HERE = ("log root", "--logger wandb")

# Seconds to wait for a machine's result of mjlab-dist doctor
TIMEOUT_S = 60


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
    # Check each host in its own thread
    deadline = time.monotonic() + timeout_s
    checks: dict[str, Future[DeviceAnswer]] = {host: Future() for host in requests}
    for host, check in checks.items():
        # A daemon thread, so that a name server that never answers cannot block this process
        threading.Thread(
            target=_check_host,
            args=(check, Remote(host, ssh_config, deadline), requests[host]),
            name=f"check {host}",
            daemon=True,
        ).start()
    answers: dict[str, DeviceAnswer] = {}
    faults: dict[str, str] = {}
    for host, check in checks.items():
        try:
            answers[host] = check.result(max(0.0, deadline - time.monotonic()))
        except HostError as fault:
            faults[host] = str(fault)
        except (TimeoutError, subprocess.TimeoutExpired):
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


@dataclass(frozen=True)
class Remote:
    """A machine that runs commands through SSH until a deadline."""

    name: str
    ssh_config: str | None
    # As a time of time.monotonic()
    deadline: float

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run this process's Python in its working directory, with its import path, and return its output."""
        path = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
        python = shlex.join((sys.executable, "-P", *arguments))  # -P: files of the directory do not shadow modules
        command = (
            f"cd {shlex.quote(str(Path.cwd()))} || exit {NO_DIRECTORY}; export {shlex.quote(path)} && exec {python}"
        )
        try:
            done = run_on(self.name, self.ssh_config, command, max(0.0, self.deadline - time.monotonic()))
        except FileNotFoundError:
            raise UserError("--hosts needs OpenSSH's client: install the program ssh") from None
        if done.returncode == SSH_FAILED:
            by_hand = shlex.join(["ssh", *([] if self.ssh_config is None else ["-F", self.ssh_config]), self.name])
            raise HostError(f"SSH failed ({_last_line(done)}); `{by_hand}` must work without a password or a question")
        if done.returncode == NO_DIRECTORY:
            raise HostError(f"has no directory {Path.cwd()}; start from a directory that exists on all machines")
        if done.returncode in {126, 127}:  # the shell's exit codes for "cannot execute" and "not found"
            raise HostError(f"has no {sys.executable}; {SAME_ENVIRONMENT}")
        return done


def _check_host(check: Future[DeviceAnswer], remote: Remote, request: DeviceRequest | None) -> None:
    """Set the result to the machine's devices, or to the reason why ranks cannot be started on it."""
    try:
        try:
            is_here = is_this_machine(remote.name)
        except (OSError, UnicodeError):  # UnicodeError: not a valid host name
            raise HostError(
                "name does not resolve (an entry in SSH's config file is not enough); check it, or add it to /etc/hosts"
            ) from None
        if not is_here:
            _check_environment(remote)
        check.set_result(DeviceAnswer() if is_here or request is None else _ask_devices(remote, request))
    except BaseException as error:  # noqa: BLE001
        check.set_exception(error)


def _check_environment(remote: Remote) -> None:
    """Raise if a host has a different working directory, Python or packages, or cannot connect to this machine."""
    address = own_address((HERE, remote.name))
    with listen_on(address) as server:
        answer = remote.run("-c", PROBE, address, str(server.getsockname()[1]), *PACKAGES)
    if answer.returncode:
        raise HostError(f"{sys.executable} failed there ({_last_line(answer)}); {SAME_ENVIRONMENT}")

    # Versions of Python and of packages
    python, there, connects = json.loads(answer.stdout.strip().rpartition("\n")[2])  # the shell may print lines first
    if fault := _compare_python(*python):
        raise HostError(fault)
    here = {name: importlib.metadata.version(name) for name in PACKAGES}
    differing = [name for name in PACKAGES if there[name] != here[name]]
    if differing:
        has = " and ".join(f"{name} {there[name]}" for name in differing)
        raise HostError(
            f"has {has}, but this machine has {' and '.join(here[name] for name in differing)}; {SAME_ENVIRONMENT}"
        )

    # Network
    if not connects:
        raise HostError(
            f"cannot connect to this machine at {address}; allow all ports in the firewalls between the two"
        )


def _ask_devices(remote: Remote, request: DeviceRequest) -> DeviceAnswer:
    """Return the devices that a host chooses for its ranks."""
    printed = remote.run("-m", "mjlab_dist.launch.hosts.device_answer", request.argument())
    if printed.returncode:
        raise HostError(f"its devices cannot be listed ({_last_line(printed)}); run mjlab-dist doctor there")
    answer = DeviceAnswer.read(printed.stdout.strip().rpartition("\n")[2])
    if answer.error:
        raise HostError(answer.error)
    return answer


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"


def _compare_python(kind: str, version: str, library: str | None) -> str | None:
    """Return why a host's Python cannot run ranks of a launch from this machine; None if it can run them.

    A Python of a different patch release can run them: it reads the same bytecode and loads the same compiled packages.
    There is one exception. If the directory of this machine's standard library also exists on the host, the host's
    Python imports from it, and the compiled modules in this directory work only with this machine's release.
    """
    own_kind, own_version = platform.python_implementation(), platform.python_version()
    has = f"has {kind} {version}, but this machine has {own_kind} {own_version}"
    if (kind, version.split(".")[:2]) != (own_kind, own_version.split(".")[:2]):
        return f"{has}; {SAME_ENVIRONMENT}"
    if version != own_version and library is not None:
        return f"{has}; both machines have {library}, but its modules work only with {own_version}; {SAME_ENVIRONMENT}"
    return None


def examine_hosts(hosts: Sequence[str], ssh_config: str | None) -> dict[str, list[Finding]]:
    """Run the checks of ``mjlab-dist doctor`` on other machines, in parallel."""
    with ThreadPoolExecutor(max(1, len(hosts))) as pool:
        return dict(zip(hosts, pool.map(lambda host: _examine(host, ssh_config), hosts), strict=True))


def _examine(host: str, ssh_config: str | None) -> list[Finding]:
    import dacite  # not needed without other machines

    command = ("-m", "mjlab_dist", "doctor", "--json")
    try:
        answer = Remote(host, ssh_config, time.monotonic() + TIMEOUT_S).run(*command)
        report = json.loads(answer.stdout.strip().rpartition("\n")[2])  # the shell may print lines first
        found = [dacite.from_dict(Finding, check, dacite.Config(cast=[Status])) for check in report["checks"]]
    except Exception as error:  # noqa: BLE001 (whatever prevents the checks is their result)
        fix = f"run `ssh {host} {shlex.join((sys.executable, *command))}` to see why"
        figure = str(error).strip().rpartition("\n")[2] or type(error).__name__
        return [Finding(name="doctor", figure=figure, status=Status.FAIL, fix=fix)]
    return [finding for finding in found if finding.name not in ONLY_HERE]
