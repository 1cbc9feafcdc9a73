"""Simulation in ranks that stay alive between calls: what a rank executes, and the process that sends the commands."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pickle
import queue
import signal
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import Rank, RankPlan
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import Exit, RankError, UserError
from mjlab_dist.imports import start_up
from mjlab_dist.launch.channel import connect
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.ranks import in_thread, run_ranks
from mjlab_dist.launch.worker import meet_ranks, report_step
from mjlab_dist.machine.processes import temporary_directory
from mjlab_dist.messages import Listener, emit
from mjlab_dist.simulate.make import LAST, Job, Tensors, require_same

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from mjlab_dist.simulate.shard import Shard

# Message that a rank sends between the steps of a rollout, so that a long rollout is not mistaken for a hang
PROGRESS = "progress"

# Command after which a rank ends
CLOSE = b""

# Minimum time between two progress messages, in seconds
PROGRESS_S = 0.5

# Maximum seconds to wait until all ranks have ended, or until the report of a failed rank arrives
PATIENCE_S = 30.0


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


class Ranks:
    """Envs in ranks of one or several machines."""

    def __init__(self, job: Job, config: TrainConfig, hosts: tuple[Host, ...], listen: Listener) -> None:
        """Start the ranks, and wait until they have built their envs."""
        self.device = "cpu"
        self._job, self._pid, self._hang_timeout = job, os.getpid(), config.hang_timeout
        self._control, self._resources = Control(), contextlib.ExitStack()
        self._thread: threading.Thread | None = None
        self._served: Future[list[Served]] = Future()
        self._connections: list[Connection] = []
        # Name of the command that is being executed
        self._command = ""
        try:
            self._start(config, hosts, listen)
            built = [self._receive(rank) for rank in range(len(self._connections))]
            self.sizes = require_same([sizes for sizes, _ in built])
        except BaseException:
            self._kill()
            raise
        # Names of the tensors of the state that are not split over ranks
        self._shared = set[str]().union(*(shared for _, shared in built))

    def _start(self, config: TrainConfig, hosts: tuple[Host, ...], listen: Listener) -> None:
        """Start ranks, supervised by a thread, and wait for their connections."""
        arrived: queue.SimpleQueue[tuple[int, Connection] | None] = queue.SimpleQueue()
        limit = struct.pack("ll", max(1, round(self._hang_timeout)), 0)

        def take(rank: int, peer: socket.socket) -> None:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                peer.setsockopt(socket.SOL_SOCKET, option, limit)
            arrived.put((rank, Connection(peer.detach())))

        directory = self._resources.enter_context(temporary_directory(f"{os.getpid()}-{uuid.uuid4().hex[:8]}"))
        plan = RunPlan(hosts=hosts, run_dir=Path(directory))
        # By default, ranks write no log files, because the directory is temporary
        config = dataclasses.replace(config, torchrunx_log_dir=config.torchrunx_log_dir or "")
        launch = functools.partial(
            run_ranks,
            *(functools.partial(serve, self._job), Served, config, plan),
            listen=listen,
            control=self._control,
            take=take,
        )
        self._thread, self._served = in_thread(launch, "ranks")
        self._served.add_done_callback(lambda _: arrived.put(None))
        connections: dict[int, Connection] = {}
        try:
            while len(connections) < plan.num_ranks:
                if (connected := arrived.get()) is None:
                    self._served.result()
                    raise RankError("a rank ended before it connected")
                rank, connections[rank] = connected
        finally:
            self._connections = [connections[rank] for rank in sorted(connections)]

    def begin(self, command: str, *arguments: Any) -> None:
        """Send a command to all ranks: the name of a method of ``Shard``. :meth:`end` returns the result."""
        num_ranks = len(self._connections)
        match command, arguments:
            case "step", (actions,):
                own = [self._job.rows(rank, num_ranks) for rank in range(num_ranks)]
                sent = [(actions[rows.start : rows.stop].numpy(),) for rows in own]
            case "load_state", (state,):
                sent = [({name: tensor.cpu().numpy() for name, tensor in state.items()},)]
            case "rollout", (policy, num_steps):
                try:
                    sent = [(cloudpickle.dumps(policy), num_steps)]
                except Exception as error:
                    raise UserError(
                        f"policy: cannot be pickled for the ranks ({type(error).__name__}: {error}); use a function or "
                        "module that holds plain data and tensors only"
                    ) from error
            case _:
                sent = [arguments]
        # Pickle a message for all ranks once, and arrays instead of tensors, which torch pickles as whole files
        messages = [pickle.dumps((command, *each)) for each in sent]
        self._command = command
        for rank in range(num_ranks):
            with self._reporting(rank):
                self._connections[rank].send_bytes(messages[rank % len(messages)])

    def end(self) -> Tensors:
        """Wait for all ranks, and return the tensors of all envs."""
        replies = [self._receive(rank) for rank in range(len(self._connections))]
        command, self._command = self._command, ""
        for error, _ in replies:
            if error is not None:
                raise UserError(error)
        merged: Tensors = {}
        for name in dict.fromkeys(name for _, arrays in replies for name in arrays):
            # Free each part as soon as it is copied
            parts = [torch.from_numpy(arrays.pop(name)) for _, arrays in replies if name in arrays]
            env_dim = 1 if command == "rollout" and not name.startswith(LAST) else 0
            is_split = command != "state" or name not in self._shared
            merged[name] = torch.cat(parts, env_dim) if is_split else parts[0]
        return merged

    def close(self) -> None:
        """End the ranks: idle ranks are asked to end, others are killed. In a forked process, do nothing."""
        if os.getpid() != self._pid:
            return
        if not self._command:
            with contextlib.suppress(RankError, UserError):
                for rank, connection in enumerate(self._connections):
                    with self._reporting(rank):
                        connection.send_bytes(CLOSE)
                self._join()
        self._kill()

    def _kill(self) -> None:
        """Kill ranks that are still running, and free all resources."""
        self._control.request_kill()
        self._join()
        for connection in self._connections:
            connection.close()
        self._resources.close()

    def _join(self) -> None:
        """Wait until the ranks have ended.

        In the thread that supervises the ranks, return at once: a thread cannot wait for itself, and garbage
        collection may call this method in any thread.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE_S)

    def _receive(self, rank: int) -> tuple[Any, Any]:
        with self._reporting(rank):
            while (reply := self._connections[rank].recv()) == PROGRESS:
                pass
            return reply

    @contextlib.contextmanager
    def _reporting(self, rank: int) -> Iterator[None]:
        """If the connection to a rank fails, raise the error of the rank that failed first; on a timeout, RankError."""
        try:
            yield
        except BlockingIOError:
            raise RankError(f"rank {rank} hangs: no step in {self._hang_timeout:g} s (--hang-timeout)", rank) from None
        except (EOFError, OSError):
            done, _ = wait([self._served], PATIENCE_S)
            error = self._served.exception() if done else None
            lost = RankError(f"rank {rank} ended without a report", rank, exit_code=Exit.INFRASTRUCTURE)
            raise error or lost from None
