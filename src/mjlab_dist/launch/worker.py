"""One rank from start to end: device, seed, env, process group, learner, runner, teardown.

If a buffer of the physics was too small, and ``--env.sim.on-overflow`` allows larger buffers, env and learner are built
again in the same process.

PyTorch and Warp are imported inside functions, so that importing this module is fast. torchrunx's launcher and agents
(an agent is the process that starts the ranks of one machine) import it too: they unpickle a reference to :func:`run`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.physics import with_sizes
from mjlab_dist.distributed import Rank, RankDevice, RankPlan, rank_from_environment
from mjlab_dist.distributed.exchange import (
    DeviceInfo,
    RankInfo,
    compare_devices,
    describe_device,
    exchange,
    require_same,
)
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.distributed.rank import LOOPBACK, number_by_bus, seed_generators
from mjlab_dist.errors import BufferOverflowError, UserError
from mjlab_dist.imports import start_up
from mjlab_dist.launch.budget import budget_of
from mjlab_dist.messages import emit
from mjlab_dist.runs.run_dir import checkpoint_path, read_history, write_ranks
from mjlab_dist.runs.run_files import explaining

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch._C._distributed_c10d import Store

    from mjlab_dist.env import Env
    from mjlab_dist.learn.metrics import Row
    from mjlab_dist.learn.runner import Runner

T = TypeVar("T")

# Module-level function that a rank runs. It takes config, plan and control, and returns a dataclass of plain data.
Entry = Callable[[TrainConfig, RankPlan, Control], T]

# Environment variables that name the network interface on which gloo and NCCL listen for other ranks
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

# Environment variable that selects IPv4 or IPv6 for NCCL, where an interface has both
FAMILY = "NCCL_SOCKET_FAMILY"

# Environment variable that selects the GPU for MuJoCo's rendering through EGL
EGL_DEVICE = "MUJOCO_EGL_DEVICE_ID"


@dataclass(kw_only=True)
class Learner:
    """A rank's runner; the rank has already joined the process group."""

    # The run's config, with the current sizes of the buffers
    config: TrainConfig
    run_dir: Path
    # Rank, device and envs of this process
    info: RankInfo
    # Env and algorithm
    runner: Runner
    # Builds env and algorithm from a config, as at the start of a run; waits for the other ranks
    build: Callable[[TrainConfig], Runner]

    def train(self, control: Control, parting: contextlib.ExitStack) -> Row:
        """Train; with ``--env.sim.on-overflow grow``, restart with larger buffers as often as needed."""
        while True:
            try:
                return self.runner.train(control, parting)
            except BufferOverflowError as overflow:
                if not overflow.larger:
                    raise
                self.config = with_sizes(self.config, overflow.larger)
                if self.info.rank == 0:
                    from mjlab_dist.learn.overflow import record_growth  # imports torch

                    record_growth(self.run_dir, self.config, overflow)
            # Pause the watchdog, and the launcher's: compiling kernels for the new sizes may take longer than
            # --hang-timeout
            control.last_beat = None
            emit("step", rank=self.info.rank, step="building its envs again")
            self._rebuild()

    def _rebuild(self) -> None:
        """Build the runner again, after freeing the memory of the old one; the hooks are kept."""
        hooks, device = self.runner.hooks, self.runner.env.device
        del self.runner
        free_earlier_run(device)
        self.runner = self.build(self.config)
        self.runner.hooks = hooks


def free_earlier_run(device: str) -> None:
    """Free the memory of an earlier run in this process.

    Env and runner are in reference cycles, which only the garbage collector frees. If the run failed in a notebook, the
    frames of the last traceback also refer to them, so these frames are cleared.
    """
    traceback.clear_frames(getattr(sys, "last_traceback", None))
    gc.collect()
    if device != "cpu":
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # return memory from PyTorch's cache, so that Warp can use it


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a run; small and picklable, because rank 0 sends it to the launcher."""

    run_dir: Path
    """The run directory."""
    checkpoint: Path
    """The last checkpoint."""
    metrics: dict[str, float | int | None]
    """The last row of metrics.jsonl."""
    stopped: bool
    """Whether the run was stopped before its last iteration."""

    @property
    def history(self) -> dict[str, NDArray[np.float64]]:
        """Columns of metrics.jsonl by name, each (iterations,); NaN where a row has no value."""
        return read_history(self.run_dir)


def run(config: TrainConfig, plan: RankPlan, control: Control, store: Store | None = None) -> RunResult:
    """Train on this rank. If the run directory has a checkpoint, resume from it."""
    # Rank 0 waits for the last video only after the process group has ended, so that other ranks can end earlier
    with explaining(plan.run_dir), contextlib.ExitStack() as parting, joined(config, plan, store) as learner:
        if config.evaluate_interval is not None:
            from mjlab_dist.learn.training_evaluation import Evaluation

            learner.runner.hooks.append(Evaluation(config, rank_from_environment(os.environ), control))
        row = learner.train(control, parting)
        done = learner.runner.current_learning_iteration
        return RunResult(
            run_dir=plan.run_dir,
            checkpoint=checkpoint_path(plan.run_dir, done),
            metrics=row,
            stopped=done < learner.runner.max_iterations,
        )


@contextlib.contextmanager
def joined(config: TrainConfig, plan: RankPlan, store: Store | None = None) -> Iterator[Learner]:
    """Build this rank's env and algorithm, and join the other ranks until the context ends."""
    device = plan.device.device
    with start_up():
        rank, store, devices = meet_ranks(config, plan, store)
        backends = exchange(store, rank.rank, rank.world_size, "backend", plan.device.backend)
        num_envs = plan.num_envs or _measure_num_envs(config, rank, store, device)
        of_world = f"world size {rank.world_size}, {num_envs} envs per rank"
        report_step(rank, f"connected to the other ranks; {of_world}", then="building its envs")

        from mjlab_dist.distributed.group import process_group, wait_for_all
        from mjlab_dist.env import Env
        from mjlab_dist.launch.hosts.same_task import check_same_task
        from mjlab_dist.learn.runner import Runner

        # Envs
        env = Env(config.env, num_envs, device, first_env_id=rank.rank * num_envs)
        report_step(rank, f"built envs {env.env_ids[0]} to {env.env_ids[-1]}")
        check_same_task(store, rank, [each.host for each in devices], config, env.sim.model)
        ranks = _describe_ranks(rank, store, devices[rank.rank], env)

    # Process group. Machines may differ: if any rank cannot use NCCL, all use gloo.
    backend = "gloo" if "gloo" in backends else plan.device.backend
    with process_group(rank, device, backend, store):
        if rank.world_size > 1:
            report_step(rank, f"joined the process group ({backend})")
        if rank.is_main:
            if plan.lease is not None:
                plan.lease.renew()
            write_ranks(plan.run_dir, ranks)

        # Learner. The step after it ends with the first heartbeat of the training loop
        emit("step", rank=rank.rank, step="building its learner")
        runner = Runner(env, config, rank, plan.run_dir, plan.lease)
        report_step(rank, f"built a learner with {runner.alg.num_parameters:,} parameters", then="starting to train")

        def build(new: TrainConfig) -> Runner:
            seed_generators(new.seed, rank.rank)
            env = Env(new.env, num_envs, device, first_env_id=rank.rank * num_envs)
            wait_for_all(store, rank, f"buffers/{new.env.sim.njmax}/{new.env.sim.nconmax}")
            return Runner(env, new, rank, plan.run_dir, plan.lease)

        learner = Learner(config=config, run_dir=plan.run_dir, info=ranks[rank.rank], runner=runner, build=build)
        del env, runner  # so that a rebuild can free their memory
        yield learner


def meet_ranks(
    config: TrainConfig, plan: RankPlan, store: Store | None = None
) -> tuple[Rank, Store | None, list[DeviceInfo]]:
    """Set up this process, meet the other ranks, and compare their devices.

    If devices differ, rank 0 warns; with ``--require-same-devices``, all ranks raise.

    Returns:
        This rank; the store, through which ranks exchange values before there is a process group, None for a single
        rank; every rank's device.
    """
    # Device, threads and seed, before CUDA starts
    rank, device = rank_from_environment(os.environ), plan.device.device
    prepare_process(plan.device, rank, config.seed)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = "" if visible is None else f"CUDA_VISIBLE_DEVICES={visible}, "
    report_step(rank, f"device {device}, {shown}seed {config.seed + rank.rank}")
    # Store
    if store is None:
        from mjlab_dist.distributed.group import meet

        set_interfaces(rank, os.environ)
        store = meet(rank)
    # Devices
    own = describe_device(device, os.environ.get(EGL_DEVICE))
    exchanged = exchange(store, rank.rank, rank.world_size, "device", dataclasses.asdict(own))
    devices = [DeviceInfo(**fields) for fields in exchanged]
    rank = dataclasses.replace(rank, local_world_size=sum(other.host == own.host for other in devices))
    if config.require_same_devices:
        require_same(devices)
    if rank.is_main and (difference := compare_devices(devices)):
        what = "they may round differently, and all wait for the slowest"
        emit("warning", text=f"{difference}; {what} (--require-same-devices makes this an error)")
    return rank, store, devices


def report_step(rank: Rank, text: str, then: str | None = None) -> None:
    """Report a finished step of the start, which ``--verbose`` shows, and the next one, which must end in time."""
    emit("debug", text=f"rank {rank.rank}: {text}")
    emit("step", rank=rank.rank, step=then)


def set_interfaces(rank: Rank, environ: MutableMapping[str, str]) -> None:
    """Set the network interface for gloo and NCCL, unless the user chose one.

    If all ranks are on one machine, this is the loopback interface. Otherwise, it is the interface of this machine's
    route to rank 0; the interface's name may differ between machines. Without this setting, gloo announces the address
    that the machine's host name resolves to. On many machines, this is a loopback address, which other machines cannot
    reach. NCCL may choose a network that does not connect the machines, such as a network of containers.
    """
    if rank.world_size == 1:
        return
    import psutil  # slow to import

    with contextlib.suppress(OSError):
        target = LOOPBACK if rank.on_one_machine else rank.master_address
        # Connecting this socket sends nothing: the kernel only chooses the route
        family, kind, _, _, address = socket.getaddrinfo(target, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own_address = probe.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if own_address in [each.address for each in addresses]:
                environ.setdefault(INTERFACES[0], name)
                # Without an equals sign, NCCL uses all interfaces whose names start with this name
                environ.setdefault(INTERFACES[1], name if rank.on_one_machine else f"={name}")
                if family == socket.AF_INET6:
                    environ.setdefault(FAMILY, "AF_INET6")


def _measure_num_envs(config: TrainConfig, rank: Rank, store: Store | None, device: str) -> int:
    """Return a number of envs per rank for which every rank has enough memory."""
    from mjlab_dist.env import sizing  # imports torch

    room = sizing.measure_room(config, device, rank.local_world_size)
    exchanged = exchange(store, rank.rank, rank.world_size, "room", dataclasses.asdict(room))
    num_envs, reason = sizing.choose_num_envs([sizing.Room(**fields) for fields in exchanged])
    budget = budget_of(config, rank.world_size, num_envs)
    if rank.is_main:
        for text in filter(None, (reason, *budget.notes)):
            emit("status", text=text)
    return num_envs


def _describe_ranks(rank: Rank, store: Store | None, device: DeviceInfo, env: Env) -> list[RankInfo]:
    import torch

    own = RankInfo(
        **dataclasses.asdict(device),
        rank=rank.rank,
        pid=os.getpid(),
        first_env_id=int(env.env_ids[0]),
        num_envs=env.num_envs,
        seed=torch.initial_seed(),
    )
    exchanged = exchange(store, rank.rank, rank.world_size, "rank", dataclasses.asdict(own))
    return [RankInfo(**fields) for fields in exchanged]


def _check_visible(device: RankDevice) -> None:
    """Raise if this process can see GPUs of other ranks.

    CUDA reads CUDA_VISIBLE_DEVICES when it starts. If a library started CUDA earlier, ``cuda:0`` may be another rank's
    GPU.
    """
    import torch

    num_visible = torch.cuda.device_count()
    if device.visible is not None and num_visible > 1:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES: CUDA shows {num_visible} devices to a rank that should see one, because CUDA was "
            "started before the rank set the variable; remove CUDA calls from modules that are imported at startup "
            "(sitecustomize, plugins)"
        )


def prepare_process(device: RankDevice, rank: Rank, seed: int) -> None:
    """Set up a rank's process before CUDA and EGL start: visible GPU, EGL device, threads and seed.

    MUJOCO_EGL_DEVICE_ID is set to PyTorch's index of the GPU, unless the user has set the variable. This index is
    correct, because MuJoCo's EGL module sorts the EGL devices by their CUDA devices (attribute EGL_CUDA_DEVICE_NV). The
    extension EGL_NV_device_cuda defines this attribute as a handle for CUDA's functions, so the attribute counts only
    the devices in CUDA_VISIBLE_DEVICES, as PyTorch does.
    """
    # Environment, before CUDA and EGL start
    number_by_bus(os.environ)
    if device.visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device.visible  # read when CUDA starts, not when torch is imported
    if device.device != "cpu":
        os.environ.setdefault(EGL_DEVICE, device.device.removeprefix("cuda:"))

    import torch

    from mjlab_dist.sim import start_warp

    # Threads, device, seed, Warp
    torch.set_num_threads(device.torch_threads)
    if device.device != "cpu":
        torch.cuda.set_device(device.device)
        _check_visible(device)
    seed_generators(seed, rank.rank)
    start_warp(device.device)
