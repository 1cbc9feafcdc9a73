"""A full disk: a tmpfs of 3 MB in a separate mount namespace."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import BIN, Command, Done

from mjlab_dist.errors import Exit

FILES = str(Path(__file__).parent / "checkpoints_on_disk.py")
"""A program that fills the disk, and loads the checkpoints on it."""

TRAIN = (
    *("cartpole-balance", "--gpu-ids", "None", "--cpu-ranks", "2", "--num-envs", "32"),
    *("--agent.num-steps-per-env", "8", "--log-root", "disk", "--max-iterations", "100000"),
    *("--checkpoint.interval", "1", "--checkpoint.keep-last", "0"),
)

OnASmallDisk = Callable[..., Done]


@pytest.fixture
def on_a_small_disk(command: Command, with_mounts: Callable[..., Done]) -> OnASmallDisk:
    """Run a shell script, given arguments, where ./disk has 3 MB."""
    (command.cwd / "disk").mkdir()
    return functools.partial(with_mounts, "mount -t tmpfs -o size=3m none disk")


@pytest.mark.slow
def test_the_error_names_the_disk_and_training_can_continue(on_a_small_disk: OnASmallDisk) -> None:
    done = on_a_small_disk('exec "$@"', sys.executable, FILES, "fill")
    assert done.code == 0, done.err
    error, inspected = done.out.splitlines()
    assert re.match("--log-root disk/logs: .* disk/logs/task/run/checkpoints/model_3.pt; ", error)
    assert "--checkpoint.keep-last" in error
    assert inspected == "loaded 2 10 beside them best.pt latest.pt"


@pytest.mark.slow
def test_a_full_disk_ends_training_with_the_reason(command: Command, on_a_small_disk: OnASmallDisk) -> None:
    script = command.script(Path(FILES).read_text())
    done = on_a_small_disk('exec "$@"', sys.executable, FILES, "train", script, str(BIN / "train"), *TRAIN)
    assert done.code == 1, done.err
    assert re.search("--log-root disk: .*--checkpoint.keep-last", done.err)
    *_, inspected = done.out.splitlines()
    loaded, _, beside = inspected.removeprefix("loaded ").partition(" beside them ")
    iterations = [int(n) for n in loaded.split()]
    assert iterations == list(range(1, len(iterations) + 1))
    assert len(iterations) > 5
    assert beside in ("latest.pt", "best.pt latest.pt")


NOT_READY = {
    "train": ("train", "cartpole-balance", "--gpu-ids", "None"),
    "check": ("mjlab-dist", "check", "cartpole-balance"),
    "torchrun": ("torchrun", "--nproc-per-node", "2", "--no-python"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_READY)
def test_a_cache_of_kernels_that_cannot_be_created_is_named(command: Command, name: str) -> None:
    (command.cwd / "file").touch()
    args = NOT_READY[name]
    if name == "torchrun":
        args = (*args, command.program("train"), *NOT_READY["train"][1:])
    cache = command.cwd / "file" / "cache"
    done = command(*args, env={"WARP_CACHE_PATH": str(cache)})
    assert done.code == (Exit.FAILED if name == "torchrun" else Exit.PREFLIGHT), done.err
    lines = [line for line in done.err.splitlines() if "WARP_CACHE_PATH" in line]
    assert len(lines) == (2 if name == "torchrun" else 1), done.err
    assert all(re.match(rf"(train|mjlab-dist check): WARP_CACHE_PATH {command.cwd}/file", line) for line in lines)
    assert name == "torchrun" or "Traceback" not in done.err
    assert not list(command.cwd.glob("logs/*/*"))


@pytest.mark.slow
def test_a_cache_of_kernels_that_is_read_only_is_named(on_a_small_disk: OnASmallDisk) -> None:
    check = 'mount -o remount,ro,size=3m none disk && WARP_CACHE_PATH=$PWD/disk "$1" check cartpole-balance'
    done = on_a_small_disk(check, str(BIN / "mjlab-dist"))
    assert done.code == Exit.PREFLIGHT, done.err
    (line,) = done.err.splitlines()
    assert line.startswith("mjlab-dist check: WARP_CACHE_PATH ")
