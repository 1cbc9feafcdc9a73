"""Processes that are killed while they save checkpoints, for a test that runs them in a separate interpreter."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mjlab_dist.config import CheckpointConfig
from mjlab_dist.learn import checkpoint
from mjlab_dist.learn.checkpoint import CheckpointStore
from mjlab_dist.runs.run_dir import (
    BEST_LINK,
    CHECKPOINTS_DIR,
    LATEST_LINK,
    METRICS_FILE,
    checkpoint_path,
    find_checkpoint,
    list_checkpoints,
)


def names(run_dir: Path) -> set[str]:
    return {p.name for p in (run_dir / CHECKPOINTS_DIR).iterdir()}


def numbers(run_dir: Path) -> list[int]:
    return list(list_checkpoints(run_dir))


def target(run_dir: Path, link: str) -> str:
    """Return the target of one of the run's links. The target must exist."""
    path = run_dir / CHECKPOINTS_DIR / link
    assert path.is_file()
    return str(path.readlink())


class Killed(NamedTuple):
    """Checks of the files that a killed writer left."""

    newest: int
    """Iteration of the newest checkpoint, which could be loaded and contained the saved values."""
    unfinished: bool
    """Whether there were temporary files."""
    tidy: bool
    """Whether the next store kept the right checkpoints, and links to the newest and the best one."""


def kill_while_saving(run_dir: Path, times: int) -> list[Killed]:
    """Start processes that save checkpoints without pause, and kill each at most 5 ms after some changes of files.

    Call this function in a process without threads, because it forks.
    """
    torch.set_num_threads(1)  # a forked child could not use the threads of its parent
    rng = random.Random(0)
    checkpoint.save(checkpoint_path(run_dir, 0), checkpoint_of(0))
    seen = []
    for _ in range(times):
        child = os.fork()
        if child == 0:
            try:
                save_forever(run_dir)
            finally:
                os._exit(1)
        # Count changes, because the time that one takes depends on other programs
        before = names(run_dir)
        for _ in range(rng.randrange(12)):
            while (now := names(run_dir)) == before:
                assert os.waitpid(child, os.WNOHANG) == (0, 0), "it failed before it was killed"
            before = now
        time.sleep(rng.uniform(0, 0.005))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "it failed before it was killed"
        seen.append(inspect(run_dir))
    return seen


def checkpoint_of(iteration: int) -> dict[str, Any]:
    """Return a checkpoint of 3 MB."""
    return {"iter": iteration, "weights": [torch.full((250, 1000), float(iteration)) for _ in range(3)]}


def return_of(iteration: int) -> float:
    return iteration * 7 % 11


def save_forever(run_dir: Path) -> None:
    store = CheckpointStore(run_dir, CheckpointConfig(keep_last=2, keep_best=1))
    iteration = max(list_checkpoints(run_dir))
    with (run_dir / METRICS_FILE).open("a", buffering=1) as metrics:
        while True:
            iteration += 1
            metrics.write(json.dumps({"iteration": iteration, "mean_return": return_of(iteration)}) + "\n")
            store.save(iteration, checkpoint_of(iteration), return_of(iteration))
            store.check()


def inspect(run_dir: Path) -> Killed:
    unfinished = any(name.endswith(".tmp") for name in names(run_dir))
    newest = find_checkpoint(run_dir)
    store = CheckpointStore(run_dir, CheckpointConfig(keep_last=2, keep_best=1))
    read = store.read_newest()
    store.close()
    assert read is not None
    assert read[0] == newest, "it did not load"
    content = checkpoint.load(read[1], "cpu")
    iteration = int(newest.stem.removeprefix("model_"))
    assert content["iter"] == iteration
    assert all(torch.equal(w, torch.full_like(w, iteration)) for w in content["weights"])

    found = numbers(run_dir)
    links = {LATEST_LINK: newest.name}
    known = [n for n in found if n]  # checkpoint 0 has no metrics, so it is never the best
    if known:
        links[BEST_LINK] = f"model_{max(known, key=lambda n: (return_of(n), n))}.pt"
    tidy = len(found) <= 3 and names(run_dir) == {*links, *(f"model_{n}.pt" for n in found)}
    tidy &= all(target(run_dir, link) == file for link, file in links.items())
    return Killed(iteration, unfinished, tidy)
