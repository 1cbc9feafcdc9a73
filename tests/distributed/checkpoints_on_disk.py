"""Program for test_disk.py: fill a small disk with checkpoints, or load the checkpoints on it."""

from __future__ import annotations

import sys
from pathlib import Path

from mjlab_dist.config import CheckpointConfig
from mjlab_dist.imports import import_learner
from mjlab_dist.runs.run_dir import CHECKPOINTS_DIR, checkpoint_path, list_checkpoints


def inspect() -> None:
    """Load all checkpoints on the disk. Print their iterations, and the names of the other files in their directory."""
    from mjlab_dist.learn import checkpoint

    for directory in Path("disk").rglob(CHECKPOINTS_DIR):
        found = list_checkpoints(directory.parent)
        for iteration, path in found.items():
            assert checkpoint.load(path, "cpu")["iter"] == iteration
        others = {p.name for p in directory.iterdir()} - {p.name for p in found.values()}
        print("loaded", *found, "beside them", *sorted(others))


def fill() -> None:
    """Save checkpoints of 1.2 MB until the disk is full. Then free space, and save another checkpoint."""
    import torch

    from mjlab_dist.learn.checkpoint import CheckpointStore

    run_dir = Path("disk", "logs", "task", "run")
    store = CheckpointStore(run_dir, CheckpointConfig(keep_last=0))
    weights = torch.zeros(300_000)
    try:
        for iteration in range(1, 10):
            store.save(iteration, {"iter": iteration, "weights": weights}, float(iteration))
    except OSError as error:
        print(error)
    checkpoint_path(run_dir, 1).unlink()
    store.save(10, {"iter": 10, "weights": weights}, 10.0)
    store.close()
    inspect()


if __name__ == "__main__":
    import_learner()
    {"fill": fill, "inspect": inspect}[sys.argv[1]]()
