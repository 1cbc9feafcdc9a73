"""The run directory: its layout, its config and metrics, and the search for runs and checkpoints.

<log-root>/<task>/<UTC time>[_<run-name>]/
    config.yaml        the run's config; --config reads it back
    provenance.json    versions, git commit, command line, devices, host
    lease.json         the launch (one start of train) that trains the run; removed when the launch ends
    ranks.json         for each rank: host, device, its model and memory, first env, number of envs, seed
    git.diff           uncommitted changes, if there are any
    metrics.jsonl      one row per iteration
    events.out.*       TensorBoard; one more file for each resume
    wandb/, wandb.json Weights & Biases: its files, and the id of its run
    checkpoints/       model_<iteration>.pt; latest.pt and best.pt are links to the newest checkpoint and to the one
                       with the highest return
    videos/            iteration_<iteration>.mp4, with --video-interval
    torchrunx/         log files of the ranks
    errors/            rank<N>.json, written by a rank that fails
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import shlex
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.registry import GROUP
from mjlab_dist.config.serialization import (
    FieldError,
    dump_yaml,
    from_plain,
    line_of_field,
    line_of_problem,
    load_yaml,
    to_plain,
)
from mjlab_dist.config.signatures import find_module
from mjlab_dist.config.trust import refuse_foreign
from mjlab_dist.distributed.exchange import RankInfo
from mjlab_dist.errors import UserError, listed
from mjlab_dist.messages import emit
from mjlab_dist.runs.outputs import write_atomically
from mjlab_dist.runs.pack_file import check_pack, is_pack, read_part
from mjlab_dist.runs.run_files import by_column, open_file, parse_row, read_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIG_FILE = "config.yaml"
PROVENANCE_FILE = "provenance.json"
RANKS_FILE = "ranks.json"
METRICS_FILE = "metrics.jsonl"
RANK_METRICS_FILE = "rank_metrics.jsonl"
CHECKPOINTS_DIR = "checkpoints"
LATEST_LINK = "latest.pt"
BEST_LINK = "best.pt"
ERRORS_DIR = "errors"
VIDEOS_DIR = "videos"

# Prefix of files that are being written
UNFINISHED = ".unfinished."

# Value of --resume that asks for the newest run with the same name
AUTO = "auto"

# Value of --run that asks for the policy in the task's package. Such policies are packs, named after their tasks, in a
# directory of this name next to the module of the task.
PRETRAINED = "pretrained"

# Matches the directory name of a run with --run-name
_NAMED_RUN = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(?:-\d+)?_(.+)")

WANDB_FILE = "wandb.json"


def create_run_dir(config: TrainConfig) -> Path:
    """Create the directory of a new run, named by UTC time and run name. Two calls never return the same directory."""
    try:
        for _ in range(1000):
            run_dir = next_run_dir(config)
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # another launch has just created it
                run_dir.mkdir()
                return run_dir
    except OSError as error:
        raise UserError(
            f"--log-root {config.log_root}: {error.strerror}; choose a directory you can write to"
        ) from error
    raise AssertionError("a thousand runs in one second")


def next_run_dir(config: TrainConfig) -> Path:
    """Return the directory that a run started now would get, without creating it."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d_%H-%M-%S")
    parent = Path(config.log_root) / config.task
    # Runs of the same second are numbered regardless of their names, so that the newest has the highest number.
    number = 1 + max((by_start(path)[1] for path in parent.glob(f"{stamp}*")), default=0)
    name = f"_{config.run_name}" if config.run_name else ""
    return parent / f"{stamp}{f'-{number}' if number > 1 else ''}{name}"


def write_ranks(run_dir: Path, ranks: Sequence[RankInfo]) -> None:
    """Write the host, device and envs of each rank."""
    write_atomically(run_dir / RANKS_FILE, json.dumps([dataclasses.asdict(rank) for rank in ranks], indent=2) + "\n")


def to_yaml(config: TrainConfig) -> str:
    """Return a config as YAML, which :func:`read_config_file` reads back."""
    return dump_yaml(to_plain(config))


def read_config_file(path: Path, *, trust: bool = False, uses_ssh: bool = True) -> TrainConfig:
    """Read a config file."""
    import yaml  # not needed to print help

    path = path / CONFIG_FILE if path.is_dir() else path
    data = b""
    try:
        if is_pack(path):
            data = read_part(path, CONFIG_FILE)
        else:
            with open_file(path) as file:
                data = file.read()
        plain = load_yaml(text := data.decode())
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"--config {path}: line {line}: is not UTF-8") from error
    except yaml.YAMLError as error:
        line, problem = line_of_problem(error, data.decode())
        raise UserError(f"--config {path}: line {line}: is not YAML ({problem})") from error
    if not isinstance(plain, dict):
        raise UserError(f"--config {path}: contains no config; use the {CONFIG_FILE} of a run directory")
    try:
        config = from_plain(plain)
    except FieldError as error:
        line = line_of_field(text, error.path)
        raise UserError(f"--config {path}: {f'line {line}: ' if line else ''}{error}") from error
    if not trust:
        try:
            refuse_foreign(config, path, uses_ssh=uses_ssh)
        except UserError as error:
            raise UserError(f"--config {path}: {error}") from error
    return config


def find_run(log_root: str, task: str, run: str, flag: str = "--run") -> Path:
    """Find a run to play or resume."""
    if run == PRETRAINED and flag == "--run":
        return _find_pretrained(task)
    if run == "latest":
        runs = sorted((p.parent for p in Path(log_root, task).glob(f"*/{CONFIG_FILE}")), key=by_start)
        with_checkpoint = [run_dir for run_dir in runs if list_checkpoints(run_dir)]
        if not runs:
            raise UserError(f"{flag} latest: no run of {task} under {log_root}; train one, or set --log-root")
        if not with_checkpoint:
            raise UserError(
                f"{flag} latest: {runs[-1]} has no checkpoint, and no earlier run has one; name another run"
            )
        newer = runs[runs.index(with_checkpoint[-1]) + 1 :]
        if newer:
            others = f" and {len(newer) - 1} more" if len(newer) > 1 else ""
            have = "have" if others else "has"
            text = f"{flag} latest: uses {with_checkpoint[-1]}; the newer {newer[-1]}{others} {have} no checkpoint"
            emit("warning", text=text)
        return with_checkpoint[-1]
    run_dir = _named(run, Path(log_root, task).glob(f"*/{CONFIG_FILE}"))
    if os.path.isfile(run_dir):  # noqa: PTH113 (False, not an error, for a name that is too long)
        check_pack(run_dir, flag)
    elif not os.path.isfile(run_dir / CONFIG_FILE):  # noqa: PTH113
        raise UserError(
            f"{flag} {run}: is not a run directory (it has no {CONFIG_FILE}); use a run under {log_root}, or latest"
        )
    trained = read_config_file(run_dir, trust=True).task  # only its task is read
    if trained != task:
        raise UserError(
            f"{flag} {run}: is a run of {trained}, not of {task}; use the task {trained}, or choose another run"
        )
    return run_dir


def _find_pretrained(task: str) -> Path:
    """Return the pack of a trained policy that is part of the task's package. The package is not imported."""
    packs: dict[str, Path] = {}
    for point in entry_points(group=GROUP):
        module = find_module(point.module)
        if module is not None and module.origin is not None:
            packs[point.name] = Path(module.origin).parent / PRETRAINED / f"{point.name}.zip"
    found = [name for name, pack in packs.items() if pack.is_file()]
    if task not in found:
        raise UserError(f"--run {PRETRAINED}: there is no trained policy of {task}, only of {listed(sorted(found))}")
    return packs[task]


def list_runs(log_root: str) -> list[Path]:
    """Return the run directories of all tasks, oldest first."""
    return sorted((path.parent for path in Path(log_root).glob(f"*/*/{CONFIG_FILE}")), key=by_start)


def find_any_run(log_root: str, run: str) -> Path:
    """Find a run of any task; it need not have a checkpoint."""
    if run == "latest":
        runs = list_runs(log_root)
        if not runs:
            raise UserError(f"latest: there is no run under {log_root}; train one, or set --log-root")
        return runs[-1]
    run_dir = _named(run, Path(log_root).glob(f"*/*/{CONFIG_FILE}"))
    if os.path.isfile(run_dir):  # noqa: PTH113 (False, not an error, for a name that is too long)
        check_pack(run_dir, "")
    elif not os.path.isfile(run_dir / CONFIG_FILE):  # noqa: PTH113
        raise UserError(f"{run}: is not a run directory (it has no {CONFIG_FILE}); use a run directory, or latest")
    return run_dir


def _named(run: str, configs: Iterable[Path]) -> Path:
    """Return the newest run whose directory or --run-name has this name; otherwise the name itself, as a path."""
    if "/" in run or os.path.lexists(run):
        return Path(run)
    run_dirs = (path.parent for path in configs)
    named = [run_dir for run_dir in run_dirs if run in (run_dir.name, _run_name(run_dir))]
    return max(named, key=by_start, default=Path(run))


def _run_name(run_dir: Path) -> str | None:
    match = _NAMED_RUN.fullmatch(run_dir.name)
    return match[1] if match else None


def find_run_to_resume(log_root: str, task: str | None, run: str) -> Path:
    """Find a run to resume."""
    if os.path.isfile(run):  # noqa: PTH113 (False, not an error, for a name that is too long)
        raise UserError(
            f"--resume {run}: is a file, and only a run directory can be resumed; start a new run from the policy of a "
            f"checkpoint or a pack with --init-from {shlex.quote(run)}"
        )
    if task is None:
        run_dir = _named(run, Path(log_root).glob(f"*/*/{CONFIG_FILE}"))
        if not os.path.isfile(run_dir / CONFIG_FILE):  # noqa: PTH113
            raise UserError(
                f"--resume {run}: is not a run directory; name the task before the flags, or give a run directory"
            )
        return run_dir
    if re.fullmatch(r"[^/]+/[^/]+/[^/]+", run) and not os.path.exists(run):  # noqa: PTH110
        run_dirs = sorted(Path(log_root, task).glob("*"), key=by_start, reverse=True)
        found = find_wandb_run(run_dirs, run)
        if found is not None:
            return found
        if not os.path.exists(run.partition("/")[0]):  # noqa: PTH110 (otherwise, it is rather a path)
            raise UserError(
                f"--resume {run}: no run of {task} under {log_root} belongs to this Weights & Biases run; copy its run "
                "directory from the machine that trained it"
            )
    return find_run(log_root, task, run, "--resume")


def find_checkpoint(run_dir: Path) -> Path:
    """Return the newest checkpoint of a run. For a pack, return the pack itself."""
    if run_dir.is_file():
        return run_dir
    found = list_checkpoints(run_dir)
    if not found:
        raise UserError(f"--run {run_dir}: has no checkpoint yet; wait for the first, or choose another run")
    return found[max(found)]


def list_checkpoints(run_dir: Path) -> dict[int, Path]:
    """Return the iterations and files of a run's checkpoints, oldest first. Links and incomplete files are left out."""
    files = (run_dir / CHECKPOINTS_DIR).glob("*.pt")
    return dict(sorted((n, p) for p in files if (n := named_iteration(p.name)) is not None and p.is_file()))


def named_iteration(name: str) -> int | None:
    """Return the iteration in the name of a checkpoint, model_<iteration>.pt; None for another name."""
    match = re.fullmatch(r"model_(\d{1,18})\.pt", name)
    return int(match[1]) if match else None


def follow_link(link: Path) -> Path:
    """Return the target of a link, even if it does not exist; return any other path unchanged."""
    return link.parent / link.readlink() if link.is_symlink() else link


def checkpoint_path(run_dir: Path, iteration: int) -> Path:
    """Return the path of the checkpoint after an iteration."""
    return run_dir / CHECKPOINTS_DIR / f"model_{iteration}.pt"


def list_videos(run_dir: Path) -> list[int]:
    """Return the iterations of a run's videos, in ascending order."""
    files = (run_dir / VIDEOS_DIR).glob("*.mp4")
    return sorted(int(m[1]) for p in files if (m := re.fullmatch(r"iteration_(\d+)\.mp4", p.name)))


def video_path(run_dir: Path, iteration: int) -> Path:
    """Return the path of the video of a checkpoint."""
    return run_dir / VIDEOS_DIR / f"iteration_{iteration}.mp4"


def animation_path(run_dir: Path, iteration: int) -> Path:
    """Return the path of a video's animated GIF. The file exists only until TensorBoard's writer has read it."""
    return run_dir / VIDEOS_DIR / f".iteration_{iteration}.gif"


def unfinished_path(file: Path) -> Path:
    """Return the path of a video or an animation while it is being written."""
    return file.with_name(UNFINISHED + file.name)


def remove_unfinished(directory: Path) -> None:
    """Remove the unfinished files of a killed process from a directory of videos."""
    for file in directory.glob(f"{UNFINISHED}*"):
        file.unlink(missing_ok=True)


def due_checkpoint(
    checkpoints: Collection[int], videos: Collection[int], interval: int, *, is_last: bool
) -> int | None:
    """Return the checkpoint to make a video of; None if no video is due.

    The first checkpoint at or after each multiple of ``interval`` iterations is due. If several checkpoints are due,
    because videos take longer than training, only the newest checkpoint gets a video.
    """
    newest = max(checkpoints, default=0)
    before = max((video for video in videos if video <= newest), default=0)
    is_due = newest > before if is_last else newest // interval > before // interval
    return newest if is_due else None


def choose_checkpoint(run_dir: Path, name: str) -> Path:
    """Return a checkpoint of a run: latest, best, an iteration or the name of its file."""
    if name == "latest":
        return find_checkpoint(run_dir)
    if run_dir.is_file():
        raise UserError(f"--checkpoint {name}: the pack {run_dir} has only one checkpoint; drop --checkpoint")
    if name == "best":
        link = run_dir / CHECKPOINTS_DIR / BEST_LINK
        if not link.is_file():
            raise UserError(
                f"--checkpoint best: {run_dir} has no best checkpoint yet (if --checkpoint.keep-best is above 0, a run "
                "writes one after its first episodes have ended); use --checkpoint latest"
            )
        return follow_link(link)
    path = run_dir / CHECKPOINTS_DIR / (f"model_{name}.pt" if name.isdecimal() else name)
    if not os.path.isfile(path):  # noqa: PTH113 (False, not an error, for a name that is too long)
        known = listed(list_checkpoints(run_dir)) or "none yet"
        raise UserError(f"--checkpoint {name}: there is no file {path}; the run has checkpoints of iterations {known}")
    return path


def read_metrics(run_dir: Path, name: str = METRICS_FILE) -> list[dict[str, Any]]:
    """Return all complete rows of a run's metrics. A last row that is still being written is left out."""
    return [row for _, row in _rows_of(read_file(run_dir, name), run_dir / name)]


def cut_metrics(run_dir: Path, iteration: int, name: str = METRICS_FILE) -> None:
    """Remove damaged rows, and the rows after an iteration, from a file in one atomic operation."""
    path = run_dir / name
    if not path.is_file():
        return
    data = path.read_bytes()
    rows = _rows_of(data, path)
    last = rows[-1][1]["iteration"] if rows else 0
    while rows and rows[-1][1]["iteration"] > iteration:
        rows.pop()
    kept = b"".join(line for line, _ in rows)
    if b"\0" in data or (last < iteration and name == METRICS_FILE):
        lost = _lost(rows, iteration)
        emit("warning", text=f"{path}: is damaged, as after a power failure; {lost} and training continues")
    if not data.startswith(kept):
        write_atomically(path, kept.decode())
        return
    with path.open("r+b") as file:
        file.truncate(len(kept))
        os.fsync(file.fileno())


def read_history(run_dir: Path) -> dict[str, NDArray[np.float64]]:
    """Return the columns of a run's metrics.jsonl.

    Returns:
        Each column that occurs in any row, (iterations,); NaN where a row has no value.
    """
    return by_column(read_metrics(run_dir))


def _rows_of(data: bytes, path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Return each line of a metrics file, and the row that it contains, without an incomplete last line.

    Lines with NUL characters are skipped: after a power failure, such characters replace lost data.
    """
    lines = data.splitlines(keepends=True)
    rows: list[tuple[bytes, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith(b"\n"):
            break
        if b"\0" in line:
            continue
        row = parse_row(line)
        if row is None:
            raise UserError(f"{path}: line {number} is not a row of metrics; restore the file, or remove the line")
        rows.append((line, row))
    return rows


def _lost(rows: list[tuple[bytes, dict[str, Any]]], iteration: int) -> str:
    """Describe in words how many rows up to an iteration are lost, given the remaining rows."""
    first = rows[0][1]["iteration"] if rows else 1
    num_lost = iteration - first + 1 - len({row["iteration"] for _, row in rows})
    if not num_lost:
        return "no row is lost,"
    return f"the rows of {num_lost} iteration{'s' if num_lost > 1 else ''} are lost,"


def by_start(run_dir: Path) -> tuple[str, int, str]:
    """Return the sort key of a run directory; it sorts the tenth run of the same second after the ninth."""
    match = re.match(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?", run_dir.name)
    return (match[1], int(match[2] or 1), run_dir.name) if match else ("", 0, run_dir.name)


def log_dir(config: TrainConfig, run_dir: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the directory of the ranks' log files, or None for no files."""
    chosen = chosen_log_dir(config, environ)
    if chosen is None:
        return run_dir / "torchrunx"
    return Path(chosen) if chosen else None


def chosen_log_dir(config: TrainConfig, environ: Mapping[str, str]) -> str | None:
    """Return the value of TORCHRUNX_LOG_DIR or, if this variable is not set, of --torchrunx-log-dir.

    An empty value means that the ranks write no log files. None means that neither the variable nor the flag is set.
    """
    return environ.get("TORCHRUNX_LOG_DIR", config.torchrunx_log_dir)


def find_named_run(log_root: str, task: str, run_name: str) -> Path | None:
    """Return the newest run that has the given name and a checkpoint; None if there is none.

    A run without a checkpoint is skipped: it has saved nothing to resume from. All ranks of a launch therefore find the
    same run, even if one rank has already created the directory of a new run.
    """
    if not run_name:
        raise UserError(
            f"--resume {AUTO}: needs --run-name to find the run; add --run-name, with a different name for each run"
        )
    runs = [path.parent for path in Path(log_root, task).glob(f"*/{CONFIG_FILE}")]
    named = [run for run in runs if _run_name(run) == run_name]
    return max(filter(list_checkpoints, named), key=by_start, default=None)


def check_same_run(config: TrainConfig, started: TrainConfig) -> None:
    """Raise if the run that the name identifies has a different seed, because it is then another, independent run."""
    if config.seed != started.seed:
        raise UserError(
            f"--resume {AUTO}: {started.resume} has this --run-name, but seed {started.seed} instead of {config.seed}; "
            "give each run its own --run-name"
        )


def is_complete(run_dir: Path, config: TrainConfig) -> bool:
    """Return whether a run has trained all its iterations; False if their number depends on the number of ranks."""
    return config.total_timesteps is None and max(list_checkpoints(run_dir), default=0) >= config.max_iterations


@dataclass(frozen=True, kw_only=True)
class WandbRun:
    """A run of Weights & Biases."""

    # User or team that owns the run; None until Weights & Biases has returned it
    entity: str | None = None
    project: str
    # Id of the run, unique in the project
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


def write_wandb_run(run_dir: Path, run: WandbRun) -> None:
    """Write the id of the Weights & Biases run."""
    write_atomically(run_dir / WANDB_FILE, json.dumps(dataclasses.asdict(run)) + "\n")


def read_wandb_run(run_dir: Path) -> WandbRun | None:
    """Return the Weights & Biases run of a run directory; None if there is none, or the file is damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        run = WandbRun(**json.loads(read_file(run_dir, WANDB_FILE)))
        if isinstance(run.id, str) and isinstance(run.project, str) and isinstance(run.entity, str | None):
            return run
    return None


def find_wandb_run(run_dirs: Iterable[Path], path: str) -> Path | None:
    """Return the first run directory of a Weights & Biases run; None if there is none."""
    entity, project, run_id = path.split("/")
    for run_dir in run_dirs:
        run = read_wandb_run(run_dir)
        if run and (run.id, run.project) == (run_id, project) and run.entity in {None, entity}:
            return run_dir
    return None
