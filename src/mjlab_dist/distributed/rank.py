"""Rank and world size of this process; the only module that reads RANK and related variables. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mjlab_dist.distributed.slurm import STEP_HOSTS, slurm_hosts

LOOPBACK = "127.0.0.1"

# Variable that names the store where the ranks of our launcher meet: host:port, or the absolute path of a file
MEETING_POINT = "MJLAB_DIST_MEETING_POINT"


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
