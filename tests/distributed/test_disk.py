"""A full disk: a tmpfs of 3 MB in a separate mount namespace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from conftest import Command
from mounts import Mounts, mounted

import mjlab_dist
from mjlab_dist.errors import Exit

SOURCE = Path(mjlab_dist.__file__).parent

TRAIN = (
    *("cartpole-balance", "--gpu-ids", "None", "--cpu-ranks", "2", "--num-envs", "32"),
    *("--agent.num-steps-per-env", "8", "--log-root", "disk", "--max-iterations", "100000"),
    *("--checkpoint.interval", "1", "--checkpoint.keep-last", "0"),
)


@pytest.fixture
def small_disk(command: Command) -> Iterator[Mounts]:
    """Runs commands that see a file system of 3 MB in ./disk."""
    (command.cwd / "disk").mkdir()
    with mounted(command, "mount -t tmpfs -o size=3m none disk") as made:
        yield made


@pytest.fixture
def program(command: Command) -> str:
    """Path of a program that fills the disk, or loads the checkpoints on the disk."""
    return command.script(Path(__file__).with_name("checkpoints_on_disk.py").read_text())


@pytest.mark.slow
def test_the_error_names_the_disk_and_training_can_continue(small_disk: Mounts, program: str) -> None:
    done = small_disk(program, "fill")
    assert done.code == 0, done.err
    error, inspected = done.out.splitlines()
    assert re.match("--log-root disk/logs: .* disk/logs/task/run/checkpoints/model_3.pt; ", error)
    assert "--checkpoint.keep-last" in error
    assert inspected == "loaded 2 10 beside them best.pt latest.pt"


@pytest.mark.slow
def test_a_full_disk_ends_training_with_the_reason(small_disk: Mounts, program: str) -> None:
    done = small_disk("train", *TRAIN)
    assert done.code == 1, done.err
    assert re.search("--log-root disk: .*--checkpoint.keep-last", done.err)
    done = small_disk(program, "inspect")
    assert done.code == 0, done.err
    loaded, _, beside = done.out.strip().removeprefix("loaded ").partition(" beside them ")
    iterations = [int(n) for n in loaded.split()]
    assert iterations == list(range(1, len(iterations) + 1))
    assert len(iterations) > 5
    assert beside in ("latest.pt", "best.pt latest.pt")


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks",
    [("--cpu-ranks", "2", "--max-restarts", "3"), pytest.param(("--logger", "tensorboard"), marks=pytest.mark.long)],
)
def test_a_disk_that_fills_with_metrics_ends_training_without_restarts(
    small_disk: Mounts, ranks: tuple[str, ...]
) -> None:
    fill = small_disk("python", "-c", "open('disk/fill', 'wb').write(bytes(1_900_000))")
    assert fill.code == 0, fill.err
    one = ("train", "cartpole-balance", "--gpu-ids", "None", "--num-envs", "8", "--agent.num-steps-per-env", "1")
    one += ("--agent.num-learning-epochs", "1", "--agent.num-mini-batches", "1")
    none = () if "--logger" in ranks else ("--torchrunx-log-dir", "")
    flags = ("--log-root", "disk", "--max-iterations", "100000", "--checkpoint.interval", "100000")
    done = small_disk(*one, *flags, *none, *ranks)
    assert done.code == Exit.FAILED, done.err
    (line,) = (line for line in done.err.splitlines() if line.startswith("train: "))
    assert line.startswith("train: --log-root disk: no space left for "), done.err
    assert "Traceback" not in done.err
    assert "Restarting" not in done.out


NOT_READY = {
    "train": ("train", "cartpole-balance", "--gpu-ids", "None"),
    "torchrun": ("torchrun", "--nproc-per-node", "2", "--no-python"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_READY)
def test_a_cache_of_kernels_that_cannot_be_created_is_named(command: Command, name: str) -> None:
    (command.cwd / "file").touch()
    args = NOT_READY[name]
    variables = {"WARP_CACHE_PATH": str(command.cwd / "file" / "cache")}
    if name == "torchrun":
        both = ("sh", "-c", "trap '' TERM; exec \"$@\"", "sh")  # ignore torchrun's SIGTERM to the other rank
        args = (*args, *both, command.program("train"), *NOT_READY["train"][1:])
    done = command(*args, env=variables)
    assert done.code == (Exit.FAILED if name == "torchrun" else Exit.PREFLIGHT), done.err
    lines = [line for line in done.err.splitlines() if "WARP_CACHE_PATH" in line]
    assert len(lines) == (2 if name == "torchrun" else 1), done.err
    assert all(re.match(rf"train: WARP_CACHE_PATH {command.cwd}/file", line) for line in lines)
    assert name == "torchrun" or "Traceback" not in done.err
    assert not list(command.cwd.glob("logs/*/*"))


START_WARP = """
import runpy
import sys

import mjlab_dist
from mjlab_dist.errors import PreflightError

# Load only this module: the package that contains it imports MuJoCo Warp
start_warp = runpy.run_path(sys.argv[1])["start_warp"]
try:
    start_warp("cpu")
except PreflightError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "why"), [("disk", "cannot be written"), ("file/cache", "Not a directory")])
def test_a_cache_of_kernels_that_cannot_be_written_is_named(command: Command, cache: str, why: str) -> None:
    (command.cwd / "disk").mkdir()
    (command.cwd / "file").touch()
    environ = {"WARP_CACHE_PATH": str(command.cwd / cache)}
    own = f"disk/{metadata.version('warp-lang')}"  # Warp's directory inside the cache
    mounts = f"mount -t tmpfs none disk && mkdir {own} && mount -o remount,ro none disk"
    with mounted(command, mounts) as read_only:
        checked = read_only("mjlab-dist", "check", "cartpole-balance", env=environ)
        # Start Warp without the check that commands make first
        started = read_only("python", "-c", START_WARP, str(SOURCE / "sim" / "quiet.py"), env=environ)
    assert checked.code == Exit.PREFLIGHT, checked.err
    (line,) = checked.err.splitlines()
    assert line.startswith("mjlab-dist check: WARP_CACHE_PATH ")
    assert started.code == 0, started.err
    assert started.out.startswith(f"WARP_CACHE_PATH {command.cwd / cache}")
    assert f": {why}; " in started.out
