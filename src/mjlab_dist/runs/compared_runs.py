"""Read the runs to compare, and put runs that differ only in the seed into one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mjlab_dist.config.serialization import paths, to_plain
from mjlab_dist.errors import UserError
from mjlab_dist.runs.provenance import read_provenance
from mjlab_dist.runs.run_dir import (
    CONFIG_FILE,
    METRICS_FILE,
    RANK_METRICS_FILE,
    find_any_run,
    read_config_file,
    read_history,
    read_metrics,
)
from mjlab_dist.runs.run_files import by_column, has_file
from mjlab_dist.wording import did_you_mean

# Fields of a config in which runs of one group may differ: the seed, and fields that do not affect learning
IRRELEVANT = frozenset({
    "seed", "gpu_ids", "cpu_ranks", "hosts", "run_name", "log_root", "resume", "max_restarts", "hang_timeout",
    "logger", "wandb_project", "log_ranks", "evaluate_interval", "evaluate_episodes",
    "video_interval", "video_length", "torchrunx_log_dir", "port_range", "ssh_config", "oversubscribe",
    "require_same_devices", "checkpoint",
})  # fmt: skip

# Column of metrics.jsonl for each horizontal axis
AXES = {"steps": "total_steps", "time": "elapsed_s", "iterations": "iteration"}

# Maximum number of config values in the name of a group
MAX_NAMED = 2


@dataclass(frozen=True, kw_only=True)
class Run:
    """Contents of the files of a run."""

    path: Path
    # Config values by dotted name, without the fields in IRRELEVANT. ranks is the number of ranks.
    config: Mapping[str, Any]
    # Versions of packages, git commit and devices with which the run was trained, by name
    origin: Mapping[str, Any]
    # Columns of metrics.jsonl by name, each (iterations,)
    history: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs whose configs differ in no field, or only in the fields in :data:`IRRELEVANT`."""

    # Name to display
    name: str
    runs: Sequence[Run]


def find_runs(words: Sequence[str], log_root: str) -> list[Path]:
    """Return the run directories that the command-line arguments refer to."""
    found: list[Path] = []
    for word in words:
        inside = sorted(file.parent for file in Path(word).glob(f"*/{CONFIG_FILE}"))
        found += inside if inside and not (Path(word) / CONFIG_FILE).is_file() else [find_any_run(log_root, word)]
    resolved = [path.resolve() for path in found]
    for path in found:
        if resolved.count(path.resolve()) > 1:
            raise UserError(f"{path}: is given twice; give each run once")
    return found


def read_groups(paths: Sequence[Path], metric: str, *, of_ranks: bool) -> list[Group]:
    """Read runs, and group runs with equal :attr:`Run.config`. Groups are in the order of their first runs."""
    if of_ranks:
        return [group for path in paths for group in read_ranks(path, metric)]
    return group_runs([read_run(path, metric) for path in paths])


def read_run(path: Path, metric: str) -> Run:
    """Read a run."""
    # Trusting any config is safe here, because the functions that it names are not called
    plain = to_plain(read_config_file(path, trust=True))
    config = {name: value for name, value in paths(plain) if not isinstance(value, Mapping)}
    if not has_file(path, METRICS_FILE):
        raise UserError(f"{path}: has no {METRICS_FILE}; leave out runs that have not finished an iteration")
    history = read_history(path)
    _check_metric(history, metric, str(path), METRICS_FILE)
    provenance = read_provenance(path)
    return Run(
        path=path,
        config={
            **{name: value for name, value in config.items() if name.partition(".")[0] not in IRRELEVANT},
            "ranks": len(provenance.get("devices") or [None]),
        },
        origin=_origin(provenance),
        history=history,
    )


def read_ranks(path: Path, metric: str) -> list[Group]:
    """Return one group for each rank of a run. The steps and the times are those of the whole run, not of the rank."""
    if not has_file(path, RANK_METRICS_FILE):
        raise UserError(f"--ranks: {path} has no {RANK_METRICS_FILE}; train the run with --log-ranks")
    rows = read_metrics(path, RANK_METRICS_FILE)
    if not all("rank" in row for row in rows):
        raise UserError(f"--ranks: {path / RANK_METRICS_FILE} has a row of no rank; restore the file")
    of_run = {row["iteration"]: row for row in read_metrics(path)}
    groups: list[Group] = []
    for rank in sorted({row["rank"] for row in rows}):
        own = [
            {name: of_run[row["iteration"]].get(name) for name in AXES.values()} | row
            for row in rows
            if row["rank"] == rank and row["iteration"] in of_run
        ]
        history = by_column(own)
        _check_metric(history, metric, f"rank {rank} of {path}", RANK_METRICS_FILE)
        run = Run(path=path, config={}, origin={}, history=history)
        groups.append(Group(name=f"{path.name}, rank {rank}", runs=[run]))
    return groups


def _check_metric(history: Mapping[str, NDArray[np.float64]], metric: str, where: str, file: str) -> None:
    if metric not in history:
        near = did_you_mean(metric, history, f"see the columns of its {file}")
        raise UserError(f"--metric {metric}: {where} has no such column; {near}")
    if not np.isfinite(history[metric]).any():
        raise UserError(f"--metric {metric}: has no value in any row of {where}; leave the run out, or train longer")


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs with equal :attr:`Run.config` into one group. Groups are in the order of their first runs."""
    groups: list[list[Run]] = []
    for run in runs:
        same = next((group for group in groups if group[0].config == run.config), None)
        if same is None:
            groups.append([run])
        else:
            same.append(run)
    differences = config_differences([group[0] for group in groups])
    names = [_name(group[0], differences) for group in groups]
    if len(set(names)) < len(names):
        names = [group[0].path.name for group in groups]
    if len(set(names)) < len(names):
        names = [str(group[0].path) for group in groups]
    return [Group(name=name, runs=group) for name, group in zip(names, groups, strict=True)]


def config_differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the config values that differ between runs: for each dotted name, a list with one value per run.

    The value of a run whose config lacks the name is None.
    """
    names = dict.fromkeys(name for run in runs for name in run.config)
    values = {name: [run.config.get(name) for run in runs] for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def origin_differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the entries of :attr:`Run.origin` that differ between runs: for each name, one text per group."""
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.origin)
    found: dict[str, list[str]] = {}
    for name in names:
        texts = [", ".join(dict.fromkeys(str(run.origin.get(name, "-")) for run in group.runs)) for group in groups]
        if len({str(run.origin.get(name, "-")) for group in groups for run in group.runs}) > 1:
            found[name] = texts
    return found


def _name(run: Run, differences: Mapping[str, Sequence[Any]]) -> str:
    if "task" in differences:
        return str(run.config["task"])
    if not 0 < len(differences) <= MAX_NAMED:
        return run.path.name
    return ", ".join(
        f"{name.removeprefix('agent.').removeprefix('env.')} {run.config.get(name)}" for name in differences
    )


def _origin(provenance: Mapping[str, Any]) -> dict[str, Any]:
    commit = provenance.get("git_commit")
    devices = provenance.get("devices") or []
    origin: dict[str, Any] = {
        "git commit": f"{commit[:10]}{' + local changes' if provenance.get('git_dirty') else ''}" if commit else "none",
        "devices": f"{len(devices)} x {devices[0]}" if len(set(devices)) == 1 else ", ".join(map(str, devices)),
        "python": provenance.get("python"),
    }
    return origin | (provenance.get("versions") or {})
