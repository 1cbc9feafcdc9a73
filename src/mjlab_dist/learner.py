"""The env and the algorithm of one rank.

If a buffer of the physics was too small, and ``--env.sim.on-overflow`` allows larger buffers, both are built again in
the same process.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.buffers import with_sizes
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.distributed.rank_info import RankInfo
from mjlab_dist.errors import BufferOverflowError
from mjlab_dist.messages import emit

if TYPE_CHECKING:
    from mjlab_dist.learn import Runner
    from mjlab_dist.learn.metrics import Row


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
