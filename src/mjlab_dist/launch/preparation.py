"""Prepare a launch before torchrunx starts its ranks: secret, sockets, temporary files, agents. Imports no torch.

Here, a launch is one start of the ranks of a run; every restart is another launch.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankDevice
from mjlab_dist.distributed.rank import MEETING_POINT
from mjlab_dist.errors import UserError
from mjlab_dist.launch.agent import FORK
from mjlab_dist.launch.agents import Agent, waiting_agents
from mjlab_dist.launch.channel import LAUNCHER, address_of
from mjlab_dist.launch.handshake import SECRET, new_secret
from mjlab_dist.launch.hosts.ssh import end_on_hosts, listen_on, own_address
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.machine.processes import LAUNCH, end_children, temporary_directory
from mjlab_dist.messages import Listener
from mjlab_dist.runs.masking import LOGIN, SECRETS

# Environment variables that ranks on other machines need, as patterns
ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_*",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "PYTHON*",
    "CUDA*",
    "TORCH*",
    "PYTORCH*",
    "NCCL*",
    "GLOO*",
    "OMP*",
    "MKL*",
    "MUJOCO*",
    "WARP*",
    "WANDB*",
    "XDG_CACHE_HOME",
    "MJLAB_DIST*",
)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A prepared launch. Its agents (one process per machine, which starts ranks) wait for arguments from torchrunx."""

    # Value of the variable that marks all its processes
    name: str
    # Secret of the launch, which only its processes have
    secret: bytes
    # Socket that ranks connect to
    listener: socket.socket
    # Where ranks meet: host:port, or the path of a file
    meeting_point: str
    # The agents, one per machine
    agents: Sequence[Agent]
    # What the agents print, and their ranks before they have connected
    errors: IO[str]


@contextlib.contextmanager
def prepared(config: TrainConfig, plan: RunPlan, listen: Listener) -> Iterator[Launch]:
    """Prepare a launch, and end its agents when the context ends."""
    # The name must be short, because it is part of the paths of sockets. remove_own finds this process's temporary
    # directories by the process ID in the name.
    name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    address, secret = own_address(plan.host_names), new_secret()
    with (
        temporary_directory(name) as temporary,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        contextlib.ExitStack() as stack,
    ):
        # Sockets. If they were opened later, another process could take the ports in the meantime.
        listener = stack.enter_context(listen_in_range(address, config.port_range))
        store = None if len(plan.hosts) == 1 else stack.enter_context(listen_in_range(address, config.port_range))
        meeting_point = f"{address}:{store.getsockname()[1]}" if store else str(Path(temporary) / "store")
        # Start the agents
        own = {LAUNCH: name, SECRET: secret, MEETING_POINT: meeting_point, LAUNCHER: address_of(listener)}
        # Pass all of sys.path, as multiprocessing does, because it includes the directory of the user's script
        variables = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), **own}
        forks = can_fork(plan.devices, os.environ)
        try:
            agents = stack.enter_context(
                waiting_agents(
                    plan.host_names,
                    config.ssh_config,
                    [FORK] if forks else [],
                    here={**os.environ, **variables, "TMPDIR": temporary},
                    there={**{each: os.environ[each] for each in exported_names(os.environ)}, **variables},
                    silence_s=remote_timeout_s(config),
                    errors=errors,
                    store=store,
                )
            )
            how = "forked" if forks else "spawned"
            listen({"kind": "debug", "text": f"launcher: started torchrunx's agents, ranks are {how}"})
            yield Launch(
                name=name,
                secret=bytes.fromhex(secret),
                listener=listener,
                meeting_point=meeting_point,
                agents=agents,
                errors=errors,
            )
        finally:
            # Even if an interrupt comes before the ranks start: while an agent is started, or imports its libraries
            end_children(name)


def remote_timeout_s(config: TrainConfig) -> int:
    """Return the timeout, in seconds, for contact between the launcher and the agents on other machines.

    After this time without contact, the agents end, and the launcher raises an error.
    """
    return max(60, round(config.hang_timeout))


def end_processes(config: TrainConfig, hosts: Sequence[str], launch: str, listen: Listener) -> list[str]:
    """Kill all processes of a launch, on all machines, and wait until they have ended.

    Returns:
        Machines that do not answer.
    """
    end_children(launch)
    left = end_on_hosts(hosts, config.ssh_config, launch)
    if left:
        text = f"no answer from {', '.join(left)}: processes of this run may still be running there"
        listen({"kind": "warning", "text": text})
    return left


def exported_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that ranks on other machines get. Ranks on this machine inherit all."""
    return [
        name
        for name, value in environ.items()
        if any(fnmatch.fnmatch(name, pattern) for pattern in ENVIRONMENT)
        and not any(word in name for word in SECRETS)
        and not LOGIN.search(value)
    ]


def can_fork(devices: Sequence[RankDevice], environ: Mapping[str, str]) -> bool:
    """Return whether ranks can be forked from a process that has imported their libraries.

    If MUJOCO_GL is set, importing MuJoCo initializes EGL or OSMesa. EGL, OSMesa and CUDA do not work after a fork.
    """
    return all(device.device == "cpu" for device in devices) and "MUJOCO_GL" not in environ


def listen_in_range(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """Return a socket that listens on a free port of an address of this machine."""
    if ports is None:
        return listen_on(address)
    for port in range(ports[0], ports[1] + 1):
        with contextlib.suppress(OSError):
            return listen_on(address, port)
    raise UserError(f"--port-range {ports[0]} {ports[1]}: too few ports are free; give a wider range")
