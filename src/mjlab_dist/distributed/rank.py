"""What a rank is: its rank and world size, its device and plan, and the seeds of its random generators.

This is the only module that reads RANK and related variables, and those of SLURM. Imports no torch.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import torch

    from mjlab_dist.runs.lease import Lease

# Variable that sets the order in which CUDA numbers GPUs, and its value for the order that NVML and nvidia-smi use
ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"

LOOPBACK = "127.0.0.1"

# Variable that names the store where the ranks of our launcher meet: host:port, or the absolute path of a file
MEETING_POINT = "MJLAB_DIST_MEETING_POINT"

# Variable with the hosts of a job
JOB_HOSTS = "SLURM_JOB_NODELIST"

# Variable with the hosts of a step. One call of srun starts one step.
STEP_HOSTS = "SLURM_STEP_NODELIST"

# Matches one entry of a host list, such as `node[01-03,7]`. Commas inside brackets do not separate entries.
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]+\])+")

# Value of --hosts that stands for the hosts of the SLURM job
SLURM = "slurm"

# Difference between the seeds of runs resumed at two consecutive iterations.
#
# It is larger than any number of ranks, so that no rank of one run has the seed of a rank of the other.
RESUME_STRIDE = 1_000_003


@dataclass(frozen=True, kw_only=True)
class RankDevice:
    """The device of one rank."""

    # Name of the device for PyTorch and Warp in the rank's process, cpu or cuda:<index>
    device: str
    # CUDA_VISIBLE_DEVICES of the rank's process, with this device only; None leaves the variable unchanged
    visible: str | None = None
    # Index in the list of the machine's GPUs; None if unknown, or on the CPU
    gpu_id: int | None = None
    # Name to display
    name: str
    # Number of PyTorch's threads
    torch_threads: int
    # Process group backend that the device supports. NCCL rejects CPUs and two ranks on a GPU; gloo accepts both.
    backend: Literal["gloo", "nccl"]


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """Everything that a rank needs in addition to the config."""

    device: RankDevice
    # Number of envs; None if ranks first measure how many fit in memory
    num_envs: int | None
    # The run directory; rank 0 writes there
    run_dir: Path
    # Lease that reserves the run for this launch. Rank 0 checks the lease before each write. None if no other launch
    # can use the run.
    lease: Lease | None = None


def number_by_bus(environ: MutableMapping[str, str]) -> None:
    """Make CUDA order GPUs by PCI bus, unless the user chose an order. Has no effect after CUDA has started.

    By default, CUDA puts the fastest GPU first. On a machine with different GPUs, CUDA's GPU 1 may therefore differ
    from GPU 1 of nvidia-smi.
    """
    environ.setdefault(ORDER, BY_BUS)


def is_numbered_by_bus(environ: Mapping[str, str]) -> bool:
    """Return whether CUDA and NVML use the same indices after :func:`number_by_bus` was called."""
    return environ.get(ORDER, BY_BUS) == BY_BUS


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One of the processes that train together, in the terms of torch.distributed."""

    rank: int = 0
    # Rank on this machine, from 0
    local_rank: int = 0
    # Number of ranks on all machines
    world_size: int = 1
    # Number of ranks on this machine; 1 until the ranks have met
    local_world_size: int = 1
    # Whether all ranks are known to be on one machine
    on_one_machine: bool = False
    # Host of rank 0
    master_address: str = LOOPBACK
    # Port of the store on that host
    master_port: int = 0
    # Whether the launcher has already opened the store; if not, rank 0 opens it
    joins_store: bool = False
    # File where ranks meet instead of a store on a port; None if they meet on a port
    store_file: str | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files."""
        return self.rank == 0


def outside_launcher(environ: Mapping[str, str]) -> Literal["torchrun", "slurm"] | None:
    """Return the launcher whose variables mark this process as one of several ranks; None without such variables.

    Inside ranks of our own launcher, the result is ``torchrun``, because torchrunx sets the same variables.
    """
    if {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        return "torchrun"
    # Only srun sets the number of tasks of a step. A batch script that runs without srun is therefore a single rank.
    if int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and "SLURM_PROCID" in environ:
        return "slurm"
    return None


def rank_from_environment(environ: Mapping[str, str]) -> Rank:
    """Read this process's rank from the variables of torchrunx, torchrun or SLURM; without them, return rank 0 of 1."""
    launcher = outside_launcher(environ)
    if launcher == "torchrun":
        world_size = int(environ["WORLD_SIZE"])
        on_one_machine = int(environ.get("LOCAL_WORLD_SIZE", "0")) == world_size
        meeting_point = environ.get(MEETING_POINT, "")
        store_file = meeting_point if meeting_point.startswith("/") else None
        host, _, port = ("" if store_file else meeting_point).rpartition(":")
        return Rank(
            rank=int(environ["RANK"]),
            local_rank=int(environ["LOCAL_RANK"]),
            world_size=world_size,
            on_one_machine=on_one_machine,
            # On one machine, use the loopback address: MASTER_ADDR may be the machine's own name, and the machine
            # may not be able to resolve its own name or to reach itself by it.
            master_address=host or (LOOPBACK if on_one_machine else environ["MASTER_ADDR"]),
            master_port=int(port or environ["MASTER_PORT"]),
            joins_store=bool(host),
            store_file=store_file,
        )
    if launcher == "slurm":
        return Rank(
            rank=int(environ["SLURM_PROCID"]),
            local_rank=int(environ["SLURM_LOCALID"]),
            world_size=int(environ["SLURM_STEP_NUM_TASKS"]),
            on_one_machine=environ.get("SLURM_STEP_NUM_NODES") == "1",
            master_address=environ.get("MASTER_ADDR") or slurm_hosts(environ, STEP_HOSTS)[0],
            # The port depends on the job's id, so that jobs on the same node use different ports.
            master_port=int(environ.get("MASTER_PORT") or 20000 + int(environ["SLURM_JOB_ID"]) % 20000),
        )
    return Rank()


def in_words(ranks: Sequence[int]) -> str:
    """Format ranks, in ascending order, as text, such as ``rank 3`` or ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def slurm_hosts(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    """Return the hosts that a variable of SLURM lists, in the same order.

    ``scontrol show hostnames`` prints the same list, but containers often lack this program.
    """
    text = environ[variable]
    parts = _PART.findall(text)
    if not parts or ",".join(parts) != text:
        raise UserError(f"{variable} {text}: is not a list of hosts in SLURM's format, such as node[01-03,7]; unset it")
    try:
        return tuple(host for part in parts for host in _expand(part))
    except ValueError as error:
        raise UserError(f"{variable} {text}: is not a list of hosts in SLURM's format ({error}); unset it") from error


def named_hosts(hosts: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the value of ``--hosts`` with ``slurm`` replaced by the hosts of this job."""
    if hosts != (SLURM,):
        return hosts
    if JOB_HOSTS not in environ:
        raise UserError(
            f"--hosts {SLURM}: {JOB_HOSTS} is not set, so this is not a SLURM job; start the command with sbatch, "
            "or name the machines"
        )
    return slurm_hosts(environ, JOB_HOSTS)


def _expand(part: str) -> Iterator[str]:
    """Yield the hosts of one entry. For example, ``n[1-2]m[3,4]`` yields n1m3, n1m4, n2m3, n2m4."""
    pieces = re.split(r"\[([^\[\]]+)\]", part)  # text, content of brackets, text, ...
    choices = [list(_numbers(piece)) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    for chosen in itertools.product(*choices):
        yield "".join(chosen)


def _numbers(text: str) -> Iterator[str]:
    """Yield the numbers of a list such as ``01-03,7``: 01, 02, 03, 7.

    The numbers of a range have at least as many digits as its lower bound.
    """
    for piece in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{piece!r} is not a range of numbers")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            yield f"{number:0{len(match[1])}d}"


def seed_generators(seed: int, rank: int = 0, resumed_iteration: int = 0) -> None:
    """Seed the generators of Python, NumPy and torch, on every device.

    ``rank`` is the global rank: with the local rank, ranks of different machines would draw the same numbers. If a run
    resumes without its saved random state, ``resumed_iteration`` keeps it from repeating the numbers of its start.
    """
    import numpy as np
    import torch

    own = seed + rank + RESUME_STRIDE * resumed_iteration
    random.seed(own)
    np.random.seed(own % 2**32)
    torch.manual_seed(own)


def check_generator(name: str, state: torch.Tensor, device: str) -> None:
    """Raise if a tensor is not the state of a generator of torch."""
    import torch

    try:
        torch.Generator(device).set_state(state)
        if device == "cpu":
            # Torch does not compare the two, and would read beyond the 624 numbers of the Mersenne twister.
            num_left, position = state[8:12].view(torch.int32).item(), state[16:20].view(torch.int32).item()
            if num_left + position > 625:
                raise RuntimeError(f"{num_left} numbers are left at position {position} of 624")
    except (RuntimeError, TypeError) as error:
        raise UserError(f"{name} is not the state of a random generator ({error}); it is damaged") from error
