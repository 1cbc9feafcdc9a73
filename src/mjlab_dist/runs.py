"""The run directory: its layout, where a run came from, and finding its checkpoints.

<log-root>/<task>/<UTC time>[_<run-name>]/
    config.yaml        the run's config; --config reads it back
    provenance.json    versions, git commit, command line, devices, host
    ranks.json         of every rank: host, device, its model and memory, first env, envs, seed
    git.diff           what differed from that commit, if anything
    metrics.jsonl      a row an iteration
    events.out.*       TensorBoard; a file more each time that the run is gone on with
    wandb/, wandb.json Weights & Biases, and which of its runs this is
    checkpoints/       model_<iteration>.pt; latest.pt and best.pt lead to the newest and to the one of the highest return
    torchrunx/         log files of the ranks
    errors/            rank<N>.json, written by a rank that dies
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import platform
import re
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.serialization import from_plain, to_plain
from mjlab_dist.distributed.rank_info import RankInfo
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIG = "config.yaml"
PROVENANCE = "provenance.json"
RANKS = "ranks.json"
METRICS = "metrics.jsonl"
WANDB = "wandb.json"
CHECKPOINTS = "checkpoints"
LATEST = "latest.pt"
BEST = "best.pt"
ERRORS = "errors"

_PACKAGES = (
    "mjlab-dist",
    "torch",
    "torchrunx",
    "warp-lang",
    "mujoco",
    "mujoco-warp",
    "rsl-rl-lib",
    "numpy",
    "tensordict",
)


@dataclass(frozen=True, kw_only=True)
class WandbRun:
    """A run of Weights & Biases."""

    entity: str | None = None
    """User or team that it belongs to; None until Weights & Biases has told it."""
    project: str
    """Project."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Unique in the project."""


def create_run_dir(config: TrainConfig) -> Path:
    """Make the directory of a new run, named by UTC time and run name. No two calls ever return the same one.

    Raises:
        UserError: If it cannot be made.
    """
    try:
        for _ in range(1000):
            run_dir = next_run_dir(config)
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # another launch was faster
                run_dir.mkdir()
                return run_dir
    except OSError as error:
        raise UserError(
            f"--log-root {config.log_root}: {error.strerror}; choose a directory you can write to"
        ) from error
    raise AssertionError("a thousand runs in one second")


def next_run_dir(config: TrainConfig) -> Path:
    """Return the directory that a new run would have now, without making it."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d_%H-%M-%S")
    parent = Path(config.log_root) / config.task
    # Numbered within the second, whatever the names, so that the newest is the one of the highest number.
    number = 1 + max((_by_start(path)[1] for path in parent.glob(f"{stamp}*")), default=0)
    name = f"_{config.run_name}" if config.run_name else ""
    return parent / f"{stamp}{f'-{number}' if number > 1 else ''}{name}"


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other launches out of a run's directory, until the context is left or this process ends.

    Args:
        run_dir: The run directory.

    Raises:
        UserError: If another launch trains in it.
    """
    directory = os.open(run_dir, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"--resume {run_dir}: is being trained; stop that first, or wait until it ends"
                ) from None
        yield
    finally:
        os.close(directory)


def write_origin(run_dir: Path, config: TrainConfig, argv: Sequence[str], devices: Sequence[str]) -> None:
    """Write what the run is and where it comes from: config, provenance, git diff.

    Args:
        run_dir: The run's directory.
        config: The run's config.
        argv: The command line.
        devices: A name per rank of this machine.
    """
    (run_dir / CONFIG).write_text(to_yaml(config))
    commit, diff = _git_state()
    provenance: dict[str, Any] = {
        "command": list(argv),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "devices": list(devices),
        "git_commit": commit,
        "git_dirty": bool(diff),
        "versions": {name: _version(name) for name in _PACKAGES},
    }
    if (run_dir / PROVENANCE).is_file():  # of a run that is gone on with: where it first came from stays
        first = json.loads((run_dir / PROVENANCE).read_text())
        provenance = {**first, "resumed": [*first.get("resumed", []), provenance]}
    (run_dir / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n")
    if diff:
        (run_dir / "git.diff").write_bytes(diff)


def write_ranks(run_dir: Path, ranks: Sequence[RankInfo]) -> None:
    """Write which rank trained where, and on which envs.

    Args:
        run_dir: The run's directory.
        ranks: All ranks of the run.
    """
    (run_dir / RANKS).write_text(json.dumps([dataclasses.asdict(rank) for rank in ranks], indent=2) + "\n")


def to_yaml(config: TrainConfig) -> str:
    """Return a config as YAML, which :func:`read_config` reads back."""
    import yaml  # noqa: PLC0415 (not needed to print help)

    return yaml.safe_dump(to_plain(config), sort_keys=False)


def read_config(path: Path) -> TrainConfig:
    """Read a config file back.

    Args:
        path: A ``config.yaml``, or the run directory that holds one.

    Raises:
        UserError: If there is none, or it is not one of ours.
    """
    import yaml  # noqa: PLC0415 (not needed to print help)

    path = path / CONFIG if path.is_dir() else path
    try:
        plain = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config {path}: {getattr(error, 'strerror', error)}") from error
    except yaml.YAMLError as error:
        raise UserError(f"--config {path}: is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(plain, dict):
        raise UserError(f"--config {path}: holds no config; name a run directory's {CONFIG}")
    try:
        return from_plain(plain)
    except UserError as error:
        raise UserError(f"--config {path}: {error}") from error


def find_run(log_root: str, task: str, run: str, flag: str = "--run") -> Path:
    """Find a run to play or go on with.

    Args:
        log_root: Directory that holds all runs.
        task: The task that the run must have trained.
        run: A run directory's path, or ``latest`` for the task's newest.
        flag: What named the run.

    Raises:
        UserError: If there is no such run, or it trained another task.
    """
    if run == "latest":
        runs = sorted((p.parent for p in Path(log_root, task).glob(f"*/{CONFIG}")), key=_by_start)
        if not runs:
            raise UserError(f"{flag} latest: no run of {task} under {log_root}; train one, or set --log-root")
        return runs[-1]
    run_dir = Path(run)
    if not (run_dir / CONFIG).is_file():
        raise UserError(f"{flag} {run}: is no run directory (it has no {CONFIG}); name one under {log_root}, or latest")
    trained = read_config(run_dir).task
    if trained != task:
        raise UserError(f"{flag} {run}: is a run of {trained}, not of {task}; name {trained}, or choose another run")
    return run_dir


def find_run_to_resume(log_root: str, task: str | None, run: str) -> Path:
    """Find a run to go on with.

    Args:
        log_root: Directory that holds all runs.
        task: The task that the run must have trained; None where the run is to tell.
        run: As for :func:`find_run`, or a W&B run's path, entity/project/id.

    Raises:
        UserError: If there is no such run, or it trained another task.
    """
    is_run_dir = Path(run, CONFIG).is_file()
    if task is None:
        if not is_run_dir:
            raise UserError(f"--resume {run}: the task is named first, unless a run directory tells it")
        task = read_config(Path(run)).task
    if not is_run_dir and re.fullmatch(r"[^/]+/[^/]+/[^/]+", run) and not Path(run).exists():
        return find_wandb_run(log_root, task, run)
    return find_run(log_root, task, run, "--resume")


def find_checkpoint(run_dir: Path) -> Path:
    """The newest checkpoint of a run.

    Raises:
        UserError: If it has none.
    """
    found = checkpoints(run_dir)
    if not found:
        raise UserError(f"--run {run_dir}: has no checkpoint yet; wait for its first, or choose another run")
    return found[max(found)]


def find_best(run_dir: Path) -> Path:
    """The checkpoint of a run that had the highest mean return when it was written.

    Raises:
        UserError: If it has none.
    """
    link = run_dir / CHECKPOINTS / BEST
    if not link.is_file():
        raise UserError(
            f"--checkpoint best: {run_dir} has none yet (it needs episodes that ended, and --checkpoint.keep-best above 0); "
            "use --checkpoint latest"
        )
    return follow(link)


def checkpoints(run_dir: Path) -> dict[int, Path]:
    """A run's checkpoints by iteration, oldest first; links and what is half written do not count."""
    files = (run_dir / CHECKPOINTS).glob("*.pt")
    found = {int(m[1]): p for p in files if (m := re.fullmatch(r"model_(\d+)\.pt", p.name)) and p.is_file()}
    return dict(sorted(found.items()))


def follow(link: Path) -> Path:
    """The file that a link leads to, there or not; what is no link is returned as it is."""
    return link.parent / link.readlink() if link.is_symlink() else link


def checkpoint_path(run_dir: Path, iteration: int) -> Path:
    """Where the checkpoint after an iteration lies."""
    return run_dir / CHECKPOINTS / f"model_{iteration}.pt"


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """All rows of a run's metrics.jsonl; one that is being written, or that a kill has torn, does not count."""
    return [json.loads(line) for line in _complete_lines(run_dir / METRICS)]


def cut_metrics(run_dir: Path, iteration: int) -> None:
    """Take the rows of later iterations out of a run's metrics.jsonl, at one stroke; a torn last row too.

    Args:
        run_dir: The run directory.
        iteration: The last that stays.
    """
    path = run_dir / METRICS
    if not path.is_file():
        return
    lines = _complete_lines(path)
    while lines and json.loads(lines[-1])["iteration"] > iteration:
        lines.pop()
    with path.open("r+b") as file:
        file.truncate(sum(map(len, lines)))
        os.fsync(file.fileno())


def read_history(run_dir: Path) -> dict[str, NDArray[np.float64]]:
    """A run's metrics.jsonl by column.

    Args:
        run_dir: The run directory.

    Returns:
        Every column that any row has, (iterations,) each; NaN where a row has no value.
    """
    import numpy as np  # noqa: PLC0415 (not needed to print help)

    rows = read_metrics(run_dir)
    columns = dict.fromkeys(name for row in rows for name in row)
    # float64 reads None as NaN.
    return {name: np.array([row.get(name) for row in rows], dtype=np.float64) for name in columns}


def write_wandb_run(run_dir: Path, run: WandbRun) -> None:
    """Write which run of Weights & Biases this is; no reader ever finds half of it."""
    temporary = run_dir / f".{WANDB}.tmp"
    temporary.write_text(json.dumps(dataclasses.asdict(run)) + "\n")
    temporary.replace(run_dir / WANDB)


def read_wandb_run(run_dir: Path) -> WandbRun | None:
    """Which run of Weights & Biases this is; None if it is none yet, or the file is damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return WandbRun(**json.loads((run_dir / WANDB).read_text()))
    return None


def find_wandb_run(log_root: str, task: str, path: str) -> Path:
    """Find the directory of a run by its run of Weights & Biases.

    Args:
        log_root: Directory that holds all runs.
        task: The task that it must have trained.
        path: entity/project/id, as Weights & Biases shows it.

    Raises:
        UserError: If there is none on this machine.
    """
    entity, project, run_id = path.split("/")
    for file in sorted(Path(log_root, task).glob(f"*/{WANDB}"), key=lambda file: _by_start(file.parent), reverse=True):
        run = read_wandb_run(file.parent)
        if run and (run.id, run.project) == (run_id, project) and run.entity in {None, entity}:
            return file.parent
    raise UserError(
        f"--resume {path}: no run of {task} under {log_root} is this run of Weights & Biases, so it is not on this machine; "
        "copy its run directory there"
    )


def _complete_lines(path: Path) -> list[bytes]:
    """A file's lines but for a last one that has not ended; each with its end."""
    lines = path.read_bytes().splitlines(keepends=True)
    return lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines


def _by_start(run_dir: Path) -> tuple[str, int, str]:
    """Sort key of run directories: a second's tenth run comes after its ninth."""
    match = re.match(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?", run_dir.name)
    return (match[1], int(match[2] or 1), run_dir.name) if match else ("", 0, run_dir.name)


def _git_state() -> tuple[str | None, bytes]:
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return None, b""
    # As plumbing prints it, whatever colors or tools the user has set, so that `git apply` restores the checkout.
    return commit.decode().strip(), _git("diff", "--no-color", "--no-ext-diff", "--binary", "HEAD")


def _git(*args: str) -> bytes:
    try:
        done = subprocess.run(["git", *args], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout if done.returncode == 0 else b""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
