"""Simulation in ranks that stay alive between calls. This module runs in the process that starts them."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import RankError, UserError
from mjlab_dist.launch.handshake import authenticate, new_secret
from mjlab_dist.launch.hosts import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.ranks import run_ranks
from mjlab_dist.machine.processes import temporary_directory
from mjlab_dist.messages import Listener
from mjlab_dist.simulate.job import Job, Layout, Sizes, Tensors, require_same
from mjlab_dist.simulate.rank import PROGRESS, Served, serve, socket_path
from mjlab_dist.simulate.shared import as_arrays, as_tensors, create

T = TypeVar("T")

POLL_S = 0.1
"""Interval of checks for ranks that failed before they connected, in seconds."""

PATIENCE_S = 30.0
"""Seconds to wait for the end of all ranks, and for the report of one that failed."""


class Ranks:
    """Envs in ranks of one machine. Actions and results are in shared memory; sockets carry commands.

    Attributes:
        device: Device of results, always ``cpu``.
        sizes: Sizes of the envs.
    """

    def __init__(self, job: Job, config: TrainConfig, devices: Sequence[RankDevice], listen: Listener) -> None:
        """Start the ranks, and wait until they have built their envs.

        Args:
            job: All envs.
            config: Config of the launch.
            devices: Device of each rank.
            listen: Receives progress, in another thread.

        Raises:
            UserError: If the task cannot be simulated.
            RankError: If a rank ended early.
        """
        self.device = "cpu"
        self._pid, self._hang_timeout, self._control = os.getpid(), config.hang_timeout, Control()
        self._connections: list[Connection] = []
        self._served: Future[list[Served]] = Future()
        self._resources = contextlib.ExitStack()
        self._thread: threading.Thread | None = None
        self._is_busy = False
        try:
            self._start(job, config, devices, listen)
        except BaseException:
            self._kill()
            raise

    def _start(self, job: Job, config: TrainConfig, devices: Sequence[RankDevice], listen: Listener) -> None:
        # Socket in a directory that only this user can open
        directory = Path(self._resources.enter_context(temporary_directory(f"{os.getpid()}-{uuid.uuid4().hex[:8]}")))
        listener = self._resources.enter_context(_listening(directory))
        secret = new_secret()
        # Ranks, which a thread supervises
        plan = RunPlan(hosts=(Host(devices=tuple(devices)),), budget=None, run_dir=directory)
        entry = functools.partial(serve, job, secret)
        launch = functools.partial(run_ranks, entry, Served, config, plan, listen=listen, control=self._control)
        self._thread = threading.Thread(target=_settle, args=(self._served, launch), name="ranks", daemon=True)
        self._thread.start()
        # Connections, when the envs are built
        hellos: dict[int, tuple[Connection, Sizes]] = {}
        while len(hellos) < plan.num_ranks:
            connection = self._accept(listener, bytes.fromhex(secret))
            self._connections.append(connection)
            rank, sizes = connection.recv()
            hellos[rank] = connection, sizes
        self._all = range(plan.num_ranks)
        self._connections = [hellos[rank][0] for rank in self._all]
        listener.close()
        self.sizes = require_same([hellos[rank][1] for rank in self._all])
        # Shared memory
        layout = {**self.sizes.layout(job.num_envs), PROGRESS: ((plan.num_ranks,), "int64")}
        for connection in self._connections:
            connection.send(layout)
        self._shared = self._share(layout)
        self._progress = self._shared.pop(PROGRESS)
        self._actions = self._shared.pop("actions")
        self._job = job

    def reset(self, seed: int | None) -> Tensors:
        """Reset all ranks: see ``Shard.reset``."""
        self._call("reset", seed)
        return self._results("observations.")

    def begin_step(self, actions: torch.Tensor) -> None:
        """Start a step on all ranks."""
        self._actions.copy_(actions)
        self._send("step")

    def end_step(self) -> Tensors:
        """Wait for all ranks, and return the results of the step."""
        self._replies()
        return self._results("")

    def rollout(self, policy: Callable[..., Any], num_steps: int) -> Tensors:
        """Run a rollout on all ranks: see ``Shard.rollout``."""
        try:
            pickled = cloudpickle.dumps(policy)
        except Exception as error:
            raise UserError(
                f"policy: cannot be pickled for the ranks ({type(error).__name__}: {error}); use a function or module "
                "that holds plain data and tensors only"
            ) from error
        layout = self.sizes.rollout_layout(num_steps, self._job.num_envs)
        self._send("rollout", pickled, layout)
        results = self._share(layout)
        try:
            self._replies()
        except UserError:
            self._call("undo")
            raise
        return results

    def state(self) -> Tensors:
        """Return the state of all ranks: see ``Shard.state``."""
        parts = self._call("state")
        state: Tensors = {}
        for name in dict.fromkeys(name for arrays, _ in parts for name in arrays):
            held = [(torch.from_numpy(arrays[name]), per_env) for arrays, per_env in parts if name in arrays]
            is_split = all(name in per_env for _, per_env in held)
            state[name] = torch.cat([tensor for tensor, _ in held]) if is_split else held[0][0]
        return state

    def load_state(self, state: Mapping[str, torch.Tensor]) -> Tensors:
        """Load a state on all ranks: see ``Shard.load_state``."""
        self._call("load_state", as_arrays(dict(state)))
        return self._results("observations.")

    def poses(self, env: int) -> Tensors:
        """See ``Shard.poses``."""
        (rank,) = [rank for rank in self._all if env in self._job.rows(rank, len(self._all))]
        (poses,) = self._call("poses", env, ranks=[rank])
        return as_tensors(poses)

    def close(self) -> None:
        """End the ranks, gracefully if they are idle. Do nothing in a process that was forked from this one."""
        if os.getpid() != self._pid:
            return
        if not self._is_busy:
            with contextlib.suppress(RankError, UserError):
                self._send("close")
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
        """Wait for the end of the ranks, unless the garbage collector runs this in the thread that supervises them."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE_S)

    def _accept(self, listener: socket.socket, secret: bytes) -> Connection:
        """Return the connection of the next rank that has built its envs."""
        while True:
            if self._served.done():
                self._served.result()
                raise RankError("a rank ended before it connected")
            with contextlib.suppress(TimeoutError):
                peer, _ = listener.accept()
                authenticate(peer, secret, listens=True)
                # Do not wait forever for a rank that hangs
                timeout = struct.pack("ll", max(1, round(self._hang_timeout)), 0)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
                return Connection(peer.detach())

    def _share(self, layout: Layout) -> Tensors:
        """Return tensors that all ranks share, after sending them the descriptor."""
        descriptor, tensors = create(layout)
        try:
            for connection in self._connections:
                send_handle(connection, descriptor, os.getpid())
        except OSError:
            raise self._lost() from None
        finally:
            os.close(descriptor)
        return tensors

    def _call(self, name: str, *arguments: object, ranks: Sequence[int] | None = None) -> list[Any]:
        """Execute a command on some ranks, all by default, and return the results."""
        self._send(name, *arguments, ranks=ranks)
        return self._replies(ranks)

    def _send(self, name: str, *arguments: object, ranks: Sequence[int] | None = None) -> None:
        self._is_busy = True
        message = pickle.dumps((name, *arguments))
        try:
            for rank in self._all if ranks is None else ranks:
                self._connections[rank].send_bytes(message)
        except OSError:
            raise self._lost() from None

    def _replies(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """Wait for replies, and return the results.

        Raises:
            UserError: If a rank could not execute the command.
            RankError: If a rank ended, or hangs.
        """
        replies = [self._receive(rank) for rank in (self._all if ranks is None else ranks)]
        self._is_busy = False
        for error, _ in replies:
            if error is not None:
                raise UserError(error)
        return [result for _, result in replies]

    def _receive(self, rank: int) -> tuple[str | None, Any]:
        while True:
            done = int(self._progress[rank])
            try:
                return self._connections[rank].recv()
            except BlockingIOError:
                if int(self._progress[rank]) == done:
                    raise RankError(
                        f"rank {rank} hangs: no step in {self._hang_timeout:g} s (--hang-timeout)", rank
                    ) from None
            except (EOFError, OSError):
                raise self._lost() from None

    def _lost(self) -> BaseException:
        """Wait for the report of the rank that failed first, and return its error."""
        try:
            self._served.result(PATIENCE_S)
        except BaseException as error:  # noqa: BLE001
            return error
        return RankError("the ranks have ended")

    def _results(self, prefix: str) -> Tensors:
        """Return copies of results, because the next call overwrites the shared memory."""
        return {name: value.clone() for name, value in self._shared.items() if name.startswith(prefix)}


@contextlib.contextmanager
def _listening(directory: Path) -> Iterator[socket.socket]:
    """Yield a Unix socket that listens in a directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(socket_path(descriptor))
        listener.listen()
        listener.settimeout(POLL_S)
        yield listener
    finally:
        listener.close()
        os.close(descriptor)


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    """Run a function, and store its result or error in a future."""
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001 (the future raises it in the thread that waits)
        future.set_exception(error)
