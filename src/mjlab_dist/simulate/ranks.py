"""Simulation in ranks that stay alive between calls. This module runs in the process that starts them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pickle
import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import cloudpickle
import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.errors import Exit, RankError, UserError
from mjlab_dist.launch.handshake import new_secret
from mjlab_dist.launch.hosts import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.ranks import run_ranks
from mjlab_dist.machine.processes import temporary_directory
from mjlab_dist.messages import Listener
from mjlab_dist.simulate.job import Job, Layout, Sizes, Tensors, require_same
from mjlab_dist.simulate.meeting import open_meeting
from mjlab_dist.simulate.rank import PROGRESS, Served, serve
from mjlab_dist.simulate.shared import as_arrays, as_tensors, create
from mjlab_dist.simulate.transport import Rows, Transport

T = TypeVar("T")

# Interval of checks for ranks that failed before they connected, in seconds
POLL_S = 0.1

# Maximum seconds to wait until all ranks have ended, or until the report of a failed rank arrives
PATIENCE_S = 30.0


class _Area(NamedTuple):
    """Tensors over all envs. Each rank reads and writes the rows of its own envs."""

    # The tensors, in this process
    tensors: Tensors
    # The rows of each rank
    rows: Sequence[Rows]


class Ranks:
    """Envs in ranks of one or several machines."""

    def __init__(self, job: Job, config: TrainConfig, hosts: tuple[Host, ...], listen: Listener) -> None:
        """Start the ranks, and wait until they have built their envs."""
        self.device = "cpu"
        self._pid, self._hang_timeout, self._control = os.getpid(), config.hang_timeout, Control()
        self._transports: list[Transport] = []
        self._served: Future[list[Served]] = Future()
        self._resources = contextlib.ExitStack()
        self._thread: threading.Thread | None = None
        self._is_busy = False
        try:
            self._start(job, config, hosts, listen)
        except BaseException:
            self._kill()
            raise

    def _start(self, job: Job, config: TrainConfig, hosts: tuple[Host, ...], listen: Listener) -> None:
        # Sockets. The Unix socket is in a directory that only this user can open.
        directory = Path(self._resources.enter_context(temporary_directory(f"{os.getpid()}-{uuid.uuid4().hex[:8]}")))
        secret = new_secret()
        opened = open_meeting(
            directory,
            [host.name for host in hosts],
            len(hosts[0].devices),
            port_range=config.port_range,
            secret=bytes.fromhex(secret),
            timeout_s=self._hang_timeout,
        )
        with opened as (meeting, arrived):
            # Ranks, supervised by a thread. By default, they write no log files, because the directory is temporary.
            config = dataclasses.replace(config, torchrunx_log_dir=config.torchrunx_log_dir or "")
            plan = RunPlan(hosts=hosts, budget=None, run_dir=directory)
            launch = functools.partial(
                run_ranks,
                *(functools.partial(serve, job, meeting), Served, config, plan),
                listen=listen,
                control=self._control,
                secret=secret,
            )
            self._thread = threading.Thread(target=_settle, args=(self._served, launch), name="ranks", daemon=True)
            self._thread.start()
            # Connections. A rank connects after it has built its envs.
            hellos: dict[int, tuple[Transport, Sizes]] = {}
            while len(hellos) < plan.num_ranks:
                transport = self._next(arrived)
                self._transports.append(transport)
                with contextlib.suppress(EOFError, ConnectionError):  # the rank has ended: _next() raises its error
                    rank, sizes = transport.connection.recv()
                    hellos[rank] = transport, sizes
        self._all = range(plan.num_ranks)
        self._transports = [hellos[rank][0] for rank in self._all]
        self.sizes = require_same([hellos[rank][1] for rank in self._all])
        # Tensors for actions and results
        self._job = job
        self._actions = self._share(self.sizes.action_layout(job.num_envs))
        self._results = self._share(self.sizes.step_layout(job.num_envs))

    def reset(self, seed: int | None) -> Tensors:
        """Reset all ranks: see ``Shard.reset``."""
        self._call("reset", seed, results=self._results)
        return self._copies("observations.")

    def begin_step(self, actions: torch.Tensor) -> None:
        """Start a step on all ranks."""
        self._actions.tensors["actions"].copy_(actions)
        self._send("step", inputs=self._actions)

    def end_step(self) -> Tensors:
        """Wait for all ranks, and return the results of the step."""
        self._replies(results=self._results)
        return self._copies("")

    def rollout(self, policy: Callable[..., Any], num_steps: int) -> Tensors:
        """Run a rollout on all ranks: see ``Shard.rollout``."""
        try:
            pickled = cloudpickle.dumps(policy)
        except Exception as error:
            raise UserError(
                f"policy: cannot be pickled for the ranks ({type(error).__name__}: {error}); use a function or module "
                "that holds plain data and tensors only"
            ) from error
        self._send("rollout", pickled, num_steps)
        results = self._share(self.sizes.rollout_layout(num_steps, self._job.num_envs))
        try:
            self._replies(results=results)
        except UserError:
            self._call("undo")
            raise
        return results.tensors

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
        try:
            self._call("load_state", as_arrays(dict(state)), results=self._results)
        except UserError:
            self._call("undo")
            raise
        return self._copies("observations.")

    def poses(self, env: int) -> Tensors:
        """See ``Shard.poses``."""
        (rank,) = [rank for rank in self._all if env in self._job.rows(rank, len(self._all))]
        (poses,) = self._call("poses", env, ranks=[rank])
        return as_tensors(poses)

    def close(self) -> None:
        """End the ranks: idle ranks are asked to end, others are killed. In a forked process, do nothing."""
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
        for transport in self._transports:
            transport.connection.close()
        self._resources.close()

    def _join(self) -> None:
        """Wait until the ranks have ended.

        In the thread that supervises the ranks, return at once: a thread cannot wait for itself, and garbage
        collection may call this method in any thread.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE_S)

    def _next(self, arrived: queue.SimpleQueue[Transport]) -> Transport:
        """Return the connection of the next rank that has built its envs."""
        while True:
            if self._served.done():
                self._served.result()
                raise RankError("a rank ended before it connected")
            with contextlib.suppress(queue.Empty):
                return arrived.get(timeout=POLL_S)

    def _share(self, layout: Layout) -> _Area:
        """Create tensors over all envs, and give each rank its rows."""
        block = create(layout)
        try:
            rows: list[Rows] = []
            for rank in self._all:
                with self._reporting(rank):
                    rows.append(self._transports[rank].offer(block, self._job.rows(rank, len(self._all))))
        finally:
            os.close(block.descriptor)
        return _Area(block.tensors, rows)

    def _call(
        self, name: str, *arguments: object, ranks: Sequence[int] | None = None, results: _Area | None = None
    ) -> list[Any]:
        """Execute a command on the given ranks (by default, all), and return the results."""
        self._send(name, *arguments, ranks=ranks)
        return self._replies(ranks, results)

    def _send(
        self, name: str, *arguments: object, ranks: Sequence[int] | None = None, inputs: _Area | None = None
    ) -> None:
        """Send a command, and tensors that it needs."""
        self._is_busy = True
        message = pickle.dumps((name, *arguments))
        for rank in self._all if ranks is None else ranks:
            with self._reporting(rank):
                self._transports[rank].connection.send_bytes(message)
                if inputs is not None:
                    inputs.rows[rank].send()

    def _replies(self, ranks: Sequence[int] | None = None, results: _Area | None = None) -> list[Any]:
        """Wait for replies, and return their results."""
        replies = [self._receive(rank, results) for rank in (self._all if ranks is None else ranks)]
        self._is_busy = False
        for error, _ in replies:
            if error is not None:
                raise UserError(error)
        return [result for _, result in replies]

    def _receive(self, rank: int, results: _Area | None) -> tuple[str | None, Any]:
        with self._reporting(rank):
            while (reply := self._transports[rank].connection.recv()) == PROGRESS:
                pass
            error, result = reply
            if error is None and results is not None:
                results.rows[rank].receive()
            return error, result

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

    def _copies(self, prefix: str) -> Tensors:
        """Return copies of the results whose names start with a prefix. The next call overwrites the results."""
        return {name: value.clone() for name, value in self._results.tensors.items() if name.startswith(prefix)}


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    """Run a function, and store its result or error in a future."""
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001 (the future raises it in the thread that waits)
        future.set_exception(error)
