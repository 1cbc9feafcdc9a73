"""One rank of a simulation: builds its envs, and executes commands until the envs are closed."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import Rank, RankPlan
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import UserError
from mjlab_dist.imports import start_up
from mjlab_dist.launch.channel import connect
from mjlab_dist.launch.worker import meet_ranks, report_step
from mjlab_dist.messages import emit
from mjlab_dist.simulate.job import Job

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from mjlab_dist.simulate.shard import Shard

# Message that a rank sends between the steps of a rollout, so that a long rollout is not mistaken for a hang
PROGRESS = "progress"

# Command after which a rank ends
CLOSE = b""

# Minimum time between two progress messages, in seconds
PROGRESS_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Served:
    """Result of a rank that ended because the launcher closed the envs."""


def serve(job: Job, config: TrainConfig, plan: RankPlan, control: Control) -> Served:  # noqa: ARG001 (an Entry)
    """Simulate until the launcher closes the envs or ends."""
    with start_up():
        rank, store, devices = meet_ranks(config, plan)
        report_step(rank, "connected to the other ranks", then="building its envs")
        from mjlab_dist.simulate.shard import Shard  # imports rsl_rl, which the launcher does not need

        shard = Shard(job, job.rows(rank.rank, rank.world_size), plan.device.device)
        report_step(rank, f"built envs {shard.rows[0]} to {shard.rows[-1]}", then="connecting to the launcher")
        if not rank.on_one_machine:
            check_same_variants(store, rank, [each.host for each in devices], job)

    if rank.rank != rank.local_rank:
        # On another machine, if a rank ends, torchrunx's agent (the process that started the ranks of this machine)
        # sends SIGTERM to the other ranks of the machine, and waits for them. Restore the default action, with which
        # SIGTERM ends this rank.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    with connect("commands", rank.rank) as connection:
        connection.send((shard.sizes, shard.shared))
        emit("step", rank=rank.rank, step=None)
        execute(shard, connection, min(PROGRESS_S, config.hang_timeout / 4))
    return Served()


def check_same_variants(store: Store | None, rank: Rank, hosts: list[str], job: Job) -> None:
    """Raise on every rank if ranks on several machines simulate different variants."""
    from mjlab_dist.launch.hosts.same_task import check_same_task
    from mjlab_dist.sim import build_model

    sim = model = None
    for variant, each in enumerate(job.configs):
        if model is None or each.env.sim != sim:
            sim, model = each.env.sim, build_model(each.env.sim)
        check_same_task(store, rank, hosts, each, model, variant=variant)


def execute(shard: Shard, connection: Connection, progress_s: float) -> None:
    """Execute commands until the launcher closes the envs.

    A command is the name of a method of the shard, and its arguments. A reply is an error message or None, and the
    tensors that the method returned, as arrays. Before them, progress messages may be sent.

    Args:
        shard: The envs of this rank.
        connection: Connection to the launcher.
        progress_s: Minimum seconds between two progress messages.

    Raises:
        EOFError: If the launcher has ended.
        OSError: If the connection fails.
    """
    reported_at = 0.0

    def report_progress() -> None:
        nonlocal reported_at
        if (now := time.monotonic()) - reported_at >= progress_s:
            reported_at = now
            connection.send(PROGRESS)

    while _execute_next(shard, connection, report_progress):
        pass


def _execute_next(shard: Shard, connection: Connection, report_progress: Callable[[], None]) -> bool:
    """Execute a command; return whether another follows. While it waits for the next, a rank keeps no old results."""
    if (message := connection.recv_bytes()) == CLOSE:
        return False
    command, *arguments = pickle.loads(message)  # noqa: S301 (the launcher has proved that it knows the secret)
    try:
        if command == "rollout":
            pickled, num_steps = arguments
            try:
                policy = pickle.loads(pickled)  # noqa: S301
            except Exception as error:
                raise UserError(
                    f"policy: cannot be unpickled in a rank ({type(error).__name__}: {error}); use only modules that "
                    "the ranks can import"
                ) from error
            arguments = [policy, num_steps, report_progress]
        tensors = shard.execute(command, *arguments)
    except UserError as error:
        connection.send((str(error), {}))
    else:
        connection.send((None, {name: tensor.cpu().numpy() for name, tensor in tensors.items()}))
    return True
