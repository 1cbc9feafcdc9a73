"""Small runs that tests train, and functions that compare the files of runs bit for bit, but ignore times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mjlab_dist.runs.run_dir import find_checkpoint, read_metrics

SMALL = (
    *("--num-envs", "32", "--env.episode-length-s", "0.1", "--seed", "7", "--agent.num-steps-per-env", "8"),
    *("--agent.num-learning-epochs", "2", "--agent.num-mini-batches", "2"),
)
"""Flags of a training run whose iterations take little time."""


def only_run(root: Path, task: str = "cartpole-balance") -> Path:
    """Return the directory of the only run of a task."""
    (run,) = (root / "logs" / task).iterdir()
    return run


def write_checkpoint(path: Path, **content: object) -> None:
    """Write a file that looks like a checkpoint, with an empty policy by default."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content or {"actor_state_dict": {}}, path)


def final(run: Path) -> dict[str, object]:
    """Return the contents of the newest checkpoint, without times."""
    content = torch.load(find_checkpoint(run), weights_only=True)
    del content["counters"]["elapsed_s"]
    return content


def assert_equal(a: object, b: object, where: str = "") -> None:
    """Assert that checkpoints, or parts of them, are equal bit for bit."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a.nan_to_num(), b.nan_to_num()), f"{where} differs"
    elif isinstance(a, dict) and isinstance(b, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}[{i}]")
    else:
        assert a == b, where


def untimed(run: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics without times."""
    timings = ("elapsed_s", "steps_per_s", "collect_s", "learn_s", "wait_s", "wait_share")
    return [{k: v for k, v in row.items() if k not in timings} for row in read_metrics(run)]
