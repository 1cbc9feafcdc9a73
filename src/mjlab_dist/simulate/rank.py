"""One rank of a simulation: builds its envs, and executes commands until the envs are closed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import Rank, RankPlan, rank_from_environment
from mjlab_dist.errors import UserError
from mjlab_dist.launch.handshake import secret_of
from mjlab_dist.messages import emit
from mjlab_dist.seeding import seed_generators
from mjlab_dist.simulate.job import Job, Tensors
from mjlab_dist.simulate.meeting import Meeting
from mjlab_dist.simulate.shared import Arrays, as_arrays, as_tensors, copy_into, pinned
from mjlab_dist.simulate.transport import Rows, Transport
from mjlab_dist.worker import prepare_process

if TYPE_CHECKING:
    from mjlab_dist.simulate.shard import Shard

# Message that a rank sends between the steps of a rollout, so that a long rollout is not mistaken for a hang
PROGRESS = "progress"

# Minimum time between two progress messages, in seconds
PROGRESS_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Served:
    """Result of a rank that ended because the launcher closed the envs."""

    # Number of steps that it simulated
    num_steps: int


def serve(job: Job, meeting: Meeting, config: TrainConfig, plan: RankPlan, control: Control) -> Served:  # noqa: ARG001 (an Entry)
    """Simulate until the launcher closes the envs or ends."""
    # Envs
    rank = rank_from_environment(os.environ)
    prepare_process(plan.device, rank, job.seed)
    from mjlab_dist.simulate.shard import Shard  # imports rsl_rl, which the launcher does not need

    seed_generators(job.seed)  # the same seed on all ranks, because each draws for all envs
    shard = Shard(job, job.rows(rank.rank, rank.world_size), plan.device.device)
    if not rank.on_one_machine:
        _compare_machines(job, rank, config, plan.device.device)

    if rank.rank >= meeting.num_own:
        # If a rank ends, torchrunx's agent (the process that started the ranks of this machine) sends SIGTERM to the
        # other ranks of the machine, and waits for them. Restore the default action, with which SIGTERM ends this rank.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # Commands
    transport = meeting.connect(rank.rank, secret_of(os.environ))
    with transport.connection as connection:
        connection.send((rank.rank, shard.sizes))
        server = _Server(shard, transport, min(PROGRESS_S, config.hang_timeout / 4))
        with contextlib.suppress(EOFError, ConnectionError):  # the launcher has ended
            server.serve()
        return Served(num_steps=server.num_steps)


def _compare_machines(job: Job, rank: Rank, config: TrainConfig, device: str) -> None:
    """Compare the devices and tasks of ranks on several machines. Every rank raises the same error."""
    from mjlab_dist.distributed import rank_info
    from mjlab_dist.distributed.group import meet
    from mjlab_dist.distributed.same_task import check_same_task
    from mjlab_dist.sim import build_model

    # Devices
    store = meet(rank)
    own = dataclasses.asdict(rank_info.describe_device(device, None))
    exchanged = rank_info.exchange(store, rank.rank, rank.world_size, "device", own)
    devices = [rank_info.DeviceInfo(**fields) for fields in exchanged]
    if config.require_same_devices:
        rank_info.require_same(devices)
    if rank.is_main and (difference := rank_info.compare_devices(devices)):
        emit("warning", text=f"{difference}; they may round differently (--require-same-devices makes this an error)")

    # Tasks
    sim = model = None
    for variant, each in enumerate(job.configs):
        if model is None or each.env.sim != sim:
            sim, model = each.env.sim, build_model(each.env.sim)
        check_same_task(store, rank, [info.host for info in devices], each, model, variant=variant)


class _Reply(NamedTuple):
    """Result of a command."""

    # Plain data
    result: Any = None
    # Tensors that follow the reply
    rows: Rows | None = None


class _Server:
    """Executes commands. A command is a name with arguments. A reply is a pair: an error message or None; a result."""

    def __init__(self, shard: Shard, transport: Transport, progress_s: float) -> None:
        self._shard, self._transport, self._connection = shard, transport, transport.connection
        self._actions = transport.obtain(shard.sizes.action_layout(shard.total), shard.rows)
        self._results = transport.obtain(shard.sizes.step_layout(shard.total), shard.rows)
        self._progress_s, self._reported_at = progress_s, 0.0
        self.num_steps = 0

    def serve(self) -> None:
        """Execute commands until the envs are closed."""
        device = self._shard.device
        commands: dict[str, Callable[..., _Reply]] = {
            "step": self._step,
            "reset": self._reset,
            "rollout": self._rollout,
            "undo": self._undo,
            "state": self._state,
            "load_state": self._load_state,
            "poses": self._poses,
        }
        with pinned(self._actions.tensors, device), pinned(self._results.tensors, device):
            while True:
                name, *arguments = self._connection.recv()
                if name == "close":
                    return
                try:
                    reply = commands[name](*arguments)
                except UserError as error:
                    self._connection.send((str(error), None))
                    continue
                self._connection.send((None, reply.result))
                if reply.rows is not None:
                    reply.rows.send()

    def _step(self) -> _Reply:
        self._actions.receive()
        self.num_steps += 1
        # Do not wait for this copy: the launcher changes the actions only after it has received the results
        actions = self._actions.tensors["actions"].to(self._shard.device, non_blocking=True)
        return self._written(self._shard.step(actions))

    def _reset(self, seed: int | None) -> _Reply:
        return self._written(self._shard.reset(seed))

    def _rollout(self, pickled: bytes, num_steps: int) -> _Reply:
        import cloudpickle

        self._shard.remember()
        results = self._transport.obtain(
            self._shard.sizes.rollout_layout(num_steps, self._shard.total), self._shard.rows
        )
        try:
            policy = cloudpickle.loads(pickled)
        except Exception as error:
            raise UserError(
                f"policy: cannot be unpickled in a rank ({type(error).__name__}: {error}); use only modules that the "
                "ranks can import"
            ) from error

        def counted(observations: Tensors) -> Any:
            self.num_steps += 1
            # Report that another step has begun, unless the last report was less than `progress_s` ago
            now = time.monotonic()
            if now - self._reported_at >= self._progress_s:
                self._reported_at = now
                self._connection.send(PROGRESS)
            return policy(observations)

        self._shard.rollout(counted, results.tensors)
        return _Reply(rows=results)

    def _undo(self) -> _Reply:
        self._shard.undo()
        return _Reply()

    def _state(self) -> _Reply:
        return _Reply(result=(as_arrays(self._shard.state()), self._shard.per_env))

    def _load_state(self, state: Arrays) -> _Reply:
        return self._written(self._shard.load_state(as_tensors(state)))

    def _poses(self, env: int) -> _Reply:
        return _Reply(result=as_arrays(self._shard.poses(env)))

    def _written(self, results: Tensors) -> _Reply:
        """Store results in the memory from which the launcher gets them."""
        copy_into(self._results.tensors, results, self._shard.device)
        return _Reply(rows=self._results)
