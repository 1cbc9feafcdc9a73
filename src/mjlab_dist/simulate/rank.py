"""One rank of a simulation: builds its envs, and executes commands until the envs are closed."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankPlan, rank_from_environment
from mjlab_dist.errors import UserError
from mjlab_dist.launch.handshake import authenticate
from mjlab_dist.seeding import seed_generators
from mjlab_dist.simulate.job import LAST, Job, Layout, Tensors
from mjlab_dist.simulate.shard import Shard
from mjlab_dist.simulate.shared import Arrays, as_arrays, as_tensors, attach
from mjlab_dist.worker import prepare_process

PROGRESS = "progress"
"""Name of the shared tensor with the number of steps that each rank has begun, (world_size,) of int64."""

ADDRESS = "make"
"""Name of the Unix socket that ranks connect to, in the run directory."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """Result of a rank that has ended as requested."""

    num_steps: int
    """Number of steps that it simulated."""


def serve(job: Job, secret: str, config: TrainConfig, plan: RankPlan, control: Control) -> Served:  # noqa: ARG001 (an Entry)
    """Simulate until the launcher closes the envs, or ends.

    Args:
        job: All envs.
        secret: Secret of the connection, in hexadecimal.
        config: The config of the launch.
        plan: Device of this rank, and the directory with the socket.
        control: Not used.
    """
    # Envs
    rank = rank_from_environment(os.environ)
    prepare_process(plan.device, rank, job.seed)
    seed_generators(job.seed)  # ranks share their draws
    shard = Shard(job, job.rows(rank.rank, rank.world_size), plan.device.device)

    # Commands
    with connect(plan.run_dir, bytes.fromhex(secret)) as connection:
        connection.send((rank.rank, shard.sizes))
        server = _Server(shard, rank.rank, connection)
        with contextlib.suppress(EOFError, ConnectionError):  # the launcher has ended
            server.serve()
        return Served(num_steps=int(server.progress[0]))


def socket_path(directory: int) -> str:
    """Return a short path of the socket, because paths of sockets are limited to 107 bytes.

    Args:
        directory: Descriptor of its directory.
    """
    return f"/proc/self/fd/{directory}/{ADDRESS}"


def connect(directory: Path, secret: bytes) -> Connection:
    """Connect to the launcher.

    Args:
        directory: Directory with the socket.
        secret: Secret that both ends must prove to know.
    """
    peer = socket.socket(socket.AF_UNIX)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        peer.connect(socket_path(descriptor))
    finally:
        os.close(descriptor)
    authenticate(peer, secret, listens=False)
    return Connection(peer.detach())


class _Server:
    """Executes commands: names with arguments. A reply is an error message or None, and a result."""

    def __init__(self, shard: Shard, rank: int, connection: Connection) -> None:
        self._shard, self._connection = shard, connection
        tensors = self._attach(connection.recv())
        self.progress = tensors.pop(PROGRESS)[rank : rank + 1]
        self._results = {name: self._own(whole, dim=0) for name, whole in tensors.items()}
        self._actions = self._results.pop("actions")

    def serve(self) -> None:
        """Execute commands until the envs are closed."""
        commands: dict[str, Callable[..., Any]] = {
            "step": self._step,
            "reset": self._reset,
            "rollout": self._rollout,
            "undo": self._shard.undo,
            "state": self._state,
            "load_state": self._load_state,
            "poses": self._poses,
        }
        while True:
            name, *arguments = self._connection.recv()
            if name == "close":
                return
            try:
                reply = (None, commands[name](*arguments))
            except UserError as error:
                reply = (str(error), None)
            self._connection.send(reply)

    def _step(self) -> None:
        self.progress += 1
        self._write(self._shard.step(self._actions.to(self._shard.device)))

    def _reset(self, seed: int | None) -> None:
        self._write(self._shard.reset(seed))

    def _rollout(self, pickled: bytes, layout: Layout) -> None:
        import cloudpickle  # noqa: PLC0415 (only needed here)

        self._shard.remember()
        results = {
            name: self._own(whole, dim=0 if name.startswith(LAST) else 1)
            for name, whole in self._attach(layout).items()
        }
        try:
            policy = cloudpickle.loads(pickled)
        except Exception as error:
            raise UserError(f"policy: cannot be unpickled in a rank: {type(error).__name__}: {error}") from error

        def counted(observations: Tensors) -> Any:
            self.progress += 1
            return policy(observations)

        self._shard.rollout(counted, results)

    def _state(self) -> tuple[Arrays, frozenset[str]]:
        return as_arrays(self._shard.state()), self._shard.per_env

    def _load_state(self, state: Arrays) -> None:
        self._write(self._shard.load_state(as_tensors(state)))

    def _poses(self, env: int) -> Arrays:
        return as_arrays(self._shard.poses(env))

    def _attach(self, layout: Layout) -> Tensors:
        """Receive the descriptor of shared memory, and return its tensors."""
        descriptor = recv_handle(self._connection)
        try:
            return attach(descriptor, layout)
        finally:
            os.close(descriptor)

    def _own(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the rows of the envs of this rank."""
        return whole.narrow(dim, self._shard.rows.start, len(self._shard.rows))

    def _write(self, results: Tensors) -> None:
        for name, value in results.items():
            self._results[name].copy_(value)
