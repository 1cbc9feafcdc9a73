"""Machines to train on: names, addresses, commands through SSH, and processes left on them. Imports no torch."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mjlab_dist.distributed import RankDevice
from mjlab_dist.distributed.rank import LOOPBACK
from mjlab_dist.machine.processes import LAUNCH, TEMPORARY

# Name of this machine for torchrunx and in the names of log files
HERE = "localhost"

# Seconds to wait for a host's SSH server to answer
CONNECT_TIMEOUT_S = 5

# Options of OpenSSH's client. Nobody can answer a question of it. A connection is not shared with later commands, which
# would keep it open, and ends with its command. The user's config file decides everything else.
SSH_OPTIONS = (
    "-T",
    "-x",
    *("-o", "BatchMode=yes"),
    *("-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"),
    *("-o", "ControlMaster=no"),
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none"),
)

# Exit code of OpenSSH's client if it cannot connect, loses its connection, or its command was killed by a signal
SSH_FAILED = 255

# Program that kills all processes whose environment contains a variable; it fails if any is left after two seconds. Its
# first argument is the variable and its value, name=value. The program does not kill multiprocessing's resource
# trackers: they remove semaphores, and then end by themselves. The program also removes the temporary directories of
# the processes. The names of these directories start with the program's second argument, followed by the variable's
# value.
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
        for directory in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), sys.argv[2] + launch + "-*")):
            if os.path.isdir(directory):
                shutil.rmtree(directory, ignore_errors=True)
        sys.exit()
    time.sleep(0.1)
sys.exit(1)
"""

# Seconds to wait until all hosts have run the program `END`
END_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine of a run."""

    # Name or address; HERE for this machine
    name: str = HERE
    # The device of each of its ranks, in order of local rank
    devices: tuple[RankDevice, ...]


def own_address(hosts: Sequence[str]) -> str:
    """Return the address at which other hosts reach this machine: the source of its route to the second host."""
    if len(hosts) == 1:
        return LOOPBACK
    for address in _addresses(hosts[1]):
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as unsent, contextlib.suppress(OSError):
            unsent.connect((str(address), 9))  # sends nothing: the kernel only chooses the route
            return unsent.getsockname()[0]
    return LOOPBACK  # without a network, all hosts are names of this machine


def listen_on(address: str, port: int = 0) -> socket.socket:
    """Return a socket that listens on an address of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def end_on_hosts(hosts: Sequence[str], ssh_config: str | None, launch: str) -> list[str]:
    """Kill processes that a launch (start of ranks) left on other machines, and wait until they are gone.

    Returns:
        Hosts that did not confirm that their processes are gone.
    """
    command = program(END, f"{LAUNCH}={launch}", TEMPORARY)

    def is_left(host: str) -> bool:
        try:
            return run_on(host, ssh_config, command, END_TIMEOUT_S).returncode != 0
        except (OSError, subprocess.TimeoutExpired):
            return True

    with ThreadPoolExecutor(max(1, len(hosts) - 1)) as pool:
        return sorted(itertools.compress(hosts[1:], pool.map(is_left, hosts[1:])))


def is_this_machine(host: str) -> bool:
    """Return whether a name or address belongs to this machine, where ranks start without SSH."""
    import psutil  # slow to import, and needed only with --hosts

    own = {each.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for each in addresses}
    return any(address.is_loopback or str(address) in own for address in _addresses(host))


def _addresses(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses of a host, IPv4 first."""
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        return sorted(map(ipaddress.ip_address, found), key=lambda address: address.version)


def ssh(host: str, ssh_config: str | None, command: str) -> list[str]:
    """Return the command line that runs a shell command on a host through OpenSSH."""
    return ["ssh", *SSH_OPTIONS, *([] if ssh_config is None else ["-F", ssh_config]), "--", host, command]


def run_on(host: str, ssh_config: str | None, command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a shell command on a host, and return its exit code and output.

    Raises:
        OSError: OpenSSH's client is not installed.
        subprocess.TimeoutExpired: The command did not end in time.
    """
    return subprocess.run(
        ssh(host, ssh_config, command),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        start_new_session=True,  # without a terminal, on which it could ask for a password
    )


def program(code: str, *args: str) -> str:
    """Return the shell command for a Python program that needs only the standard library."""
    return shlex.join((sys.executable, "-I", "-S", "-c", code, *args))
