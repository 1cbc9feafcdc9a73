"""One rank, start to end: device, seed, env, process group, runner, tear-down.

Torch and Warp are imported inside functions: torchrunx unpickles a reference to :func:`run` in its launcher and in its agent
as well, and neither needs them loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist import runs
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import DevicePlan, Rank, rank_from_environment
from mjlab_dist.events import emit

if TYPE_CHECKING:
    from mjlab_dist.learn import Runner

COMPILING = "Compiling physics kernels for this model. This happens once per machine, and takes under a minute."
"""Said before kernels are compiled."""

RANK_FAILED = 1
"""Exit status of a rank that raised."""

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent ends."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run leaves behind; small and picklable, for it travels from rank 0 to the launcher."""

    run_dir: str
    """The run directory."""
    checkpoint: str
    """The last checkpoint."""
    metrics: dict[str, float | int | None]
    """The last row of metrics.jsonl."""


def run(config: TrainConfig, plan: DevicePlan, run_dir: Path | None) -> RunResult:
    """Train on this rank.

    Args:
        config: The run's config.
        plan: Devices of this machine's ranks.
        run_dir: Where rank 0 writes. None where another launcher started the ranks: then rank 0 makes it.
    """
    rank = rank_from_environment(os.environ)
    device = plan.devices[rank.local_rank]
    with start_up():
        prepare_process(plan, rank, device, config.seed)

        from mjlab_dist.distributed.group import broadcast_from_main, process_group  # noqa: PLC0415
        from mjlab_dist.env import Env  # noqa: PLC0415
        from mjlab_dist.learn import Runner  # noqa: PLC0415

        env = Env(config.env, config.num_envs, device, announce=_announce_compiling)
    with process_group(rank, device, plan.backend):
        if run_dir is None:
            if rank.is_main:
                run_dir = runs.create_run_dir(config)
                runs.write_origin(run_dir, config, sys.argv, plan.names)
            run_dir = broadcast_from_main(run_dir)
            assert run_dir is not None
        runner = Runner(env, config, rank, run_dir)
        return _train(runner, run_dir, config)


def run_or_die(config: TrainConfig, plan: DevicePlan, run_dir: Path) -> RunResult:
    """Train as one of several ranks: whatever goes wrong is reported, and this process ends at once.

    A rank that only raised would leave the others waiting for it in a collective, for minutes.

    Args:
        config: The run's config.
        plan: Devices of this machine's ranks.
        run_dir: The run directory; a rank that dies writes ``errors/rank<N>.json`` there.
    """
    die_with_parent()
    try:
        return run(config, plan, run_dir)
    except BaseException as error:  # noqa: BLE001
        _report(error, run_dir)
        os._exit(RANK_FAILED)


def _train(runner: Runner, run_dir: Path, config: TrainConfig) -> RunResult:
    row = runner.train()
    return RunResult(
        run_dir=str(run_dir), checkpoint=str(runs.checkpoint_path(run_dir, config.max_iterations)), metrics=row
    )


@contextlib.contextmanager
def start_up() -> Iterator[None]:
    """Keep the garbage collector off while much is imported: it took a third of the time of that."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def prepare_process(plan: DevicePlan, rank: Rank, device: str, seed: int) -> None:
    """Threads, current GPU, seed; and EGL's device, which must be set before MuJoCo is imported."""
    egl_id = plan.egl_ids[rank.local_rank]
    if egl_id is not None:
        os.environ["MUJOCO_EGL_DEVICE_ID"] = egl_id

    import torch

    from mjlab_dist.sim import start_warp  # noqa: PLC0415

    torch.set_num_threads(plan.torch_threads)
    if device != "cpu":
        torch.cuda.set_device(device)
    # The global rank, not the local one: across machines local ranks repeat, and so would the envs.
    torch.manual_seed(seed + rank.rank)
    start_warp(device)


def _announce_compiling() -> None:
    emit("status", text=COMPILING)


def _report(error: BaseException, run_dir: Path) -> None:
    rank = rank_from_environment(os.environ)
    report: dict[str, Any] = {
        "rank": rank.rank,
        "host": socket.gethostname(),
        "time": time.time(),
        "type": type(error).__name__,
        "in_collective": _in_collective(error),
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }
    sys.stderr.write(report["traceback"])
    sys.stderr.flush()
    try:
        (run_dir / runs.ERRORS).mkdir(exist_ok=True)
        (run_dir / runs.ERRORS / f"rank{rank.rank}.json").write_text(json.dumps(report, indent=2))
    except OSError:
        sys.stderr.write(f"the report of rank {rank.rank} could not be written to {run_dir}\n")


def _in_collective(error: BaseException) -> bool:
    """Whether the error came out of torch.distributed: most likely another rank had gone before."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path("torch", "distributed").as_posix() in Path(frames[-1].filename).as_posix()


def die_with_parent() -> None:
    """Have the kernel end this process with the one that started it, so that none is ever left behind (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
