"""The one place that reads RANK and its kin. Imports the standard library only."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

LOOPBACK = "127.0.0.1"

MEETING_POINT = "MJLAB_DIST_MEETING_POINT"
"""Variable by which our launcher names the store, as host:port, that it has opened for its ranks to meet at."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process among those that train together, in torch.distributed's words."""

    rank: int = 0
    """Global index, from 0."""
    local_rank: int = 0
    """Index on this machine, from 0."""
    world_size: int = 1
    """Processes over all machines."""
    on_one_machine: bool = False
    """Whether all of them are known to be on one machine."""
    master_address: str = LOOPBACK
    """Host of rank 0."""
    master_port: int = 0
    """Port on that host where ranks meet."""
    joins_store: bool = False
    """Whether the store is there already, which the launcher has opened; else rank 0 opens it."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files."""
        return self.rank == 0


def outside_launcher(environ: Mapping[str, str]) -> Literal["torchrun", "slurm"] | None:
    """Which launcher other than ours started this process as one of several, if any.

    Args:
        environ: The process's environment.
    """
    if {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        return "torchrun"
    # srun alone sets the task count of a step; a batch script without srun is one ordinary process.
    if int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and "SLURM_PROCID" in environ:
        return "slurm"
    return None


def rank_from_environment(environ: Mapping[str, str]) -> Rank:
    """Read which rank this process is, from what torchrunx, torchrun or SLURM set; the only rank where none did.

    Args:
        environ: The process's environment.
    """
    launcher = outside_launcher(environ)
    if launcher == "torchrun":
        world_size = int(environ["WORLD_SIZE"])
        on_one_machine = int(environ.get("LOCAL_WORLD_SIZE", "0")) == world_size
        host, _, port = environ.get(MEETING_POINT, "").rpartition(":")
        return Rank(
            rank=int(environ["RANK"]),
            local_rank=int(environ["LOCAL_RANK"]),
            world_size=world_size,
            on_one_machine=on_one_machine,
            # A machine's own name need not resolve, and need not be reachable from itself.
            master_address=host or (LOOPBACK if on_one_machine else environ["MASTER_ADDR"]),
            master_port=int(port or environ["MASTER_PORT"]),
            joins_store=bool(host),
        )
    if launcher == "slurm":
        return Rank(
            rank=int(environ["SLURM_PROCID"]),
            local_rank=int(environ["SLURM_LOCALID"]),
            world_size=int(environ["SLURM_STEP_NUM_TASKS"]),
            on_one_machine=environ.get("SLURM_STEP_NUM_NODES") == "1",
            master_address=environ.get("MASTER_ADDR") or _first_slurm_host(environ["SLURM_STEP_NODELIST"]),
            # Steps of other jobs on the same node must not meet here: ports follow the job's number.
            master_port=int(environ.get("MASTER_PORT") or 20000 + int(environ["SLURM_JOB_ID"]) % 20000),
        )
    return Rank()


def in_words(ranks: Sequence[int]) -> str:
    """Ranks as one writes them: ``rank 3``, or ``ranks 0-2, 5``.

    Args:
        ranks: In ascending order.
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _first_slurm_host(nodelist: str) -> str:
    hosts = subprocess.run(["scontrol", "show", "hostnames", nodelist], check=True, capture_output=True, text=True)
    return hosts.stdout.split()[0]
