"""Compare runs by their files: curves, final values, time to a threshold, and configs. Imports no torch.

Runs that differ only in the seed form one group.
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mjlab_dist.config.serialization import paths, to_plain
from mjlab_dist.errors import UserError, did_you_mean
from mjlab_dist.messages import emit
from mjlab_dist.runs.outputs import DPI, save_png, write_output
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

# Number of points of a curve
NUM_POINTS = 200

# Number of bootstrap resamples
NUM_RESAMPLES = 2000

# Share of the values that an interquartile mean leaves out at each end: the lowest and the highest quarter (Agarwal
# et al. 2021, arXiv:2108.13264).
TAIL_SHARE = 0.25

# Label of each horizontal axis
LABELS = {
    "steps": "control steps of all ranks",
    "time": "seconds of training",
    "iterations": "iterations",
}

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; background: white; }
@media screen and (prefers-color-scheme: dark) { svg { filter: invert(0.93) hue-rotate(180deg); } }
div { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8886; padding: 0.25rem 0.75rem; text-align: left; }
"""


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


class EmptyRunError(UserError):
    """A run that has no value of the metric yet."""


def find_runs(words: Sequence[str], log_root: str) -> dict[Path, bool]:
    """Return the run directories that the command-line arguments refer to, and whether an argument names the run."""
    found: dict[Path, bool] = {}
    for word in words:
        inside = sorted(file.parent for file in Path(word).glob(f"*/{CONFIG_FILE}"))
        is_run = not inside or (Path(word) / CONFIG_FILE).is_file()
        for path in [find_any_run(log_root, word)] if is_run else inside:
            if path.resolve() in {other.resolve() for other in found}:
                raise UserError(f"{path}: is given twice; give each run once")
            found[path] = is_run and word != "latest"
    return found


def read_groups(found: Mapping[Path, bool], metric: str, *, of_ranks: bool) -> list[Group]:
    """Read runs, and group runs with equal :attr:`Run.config`. Groups are in the order of their first runs.

    Runs without a value are left out, with a warning, unless they are named.
    """
    runs: list[Run] = []
    groups: list[Group] = []
    for path, is_named in found.items():
        try:
            if of_ranks:
                groups += read_ranks(path, metric)
            else:
                runs.append(read_run(path, metric))
        except EmptyRunError as error:
            if is_named or len(found) == 1:
                raise
            emit("warning", text=f"{error}; it is left out")
    if not runs and not groups:
        raise UserError(f"--metric {metric}: none of the {len(found)} runs has a value; train longer")
    return groups or group_runs(runs)


def read_run(path: Path, metric: str) -> Run:
    """Read a run."""
    # Trusting any config is safe here, because the functions that it names are not called
    plain = to_plain(read_config_file(path, trust=True))
    config = {name: value for name, value in paths(plain) if not isinstance(value, Mapping)}
    history = read_history(path) if has_file(path, METRICS_FILE) else {}
    if not history:
        raise EmptyRunError(f"{path}: has no rows in {METRICS_FILE}, because it has not finished an iteration")
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
        raise EmptyRunError(f"{where}: has no value of {metric} yet")


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
    # Terms that some runs lack
    functions = [name for name in differences if name.endswith(".func")]
    optional = [name for name in functions if any(name not in group[0].config for group in groups)]
    names = [_name(group[0], differences, [name.removesuffix(".func") for name in optional]) for group in groups]
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


def _name(run: Run, differences: Mapping[str, Sequence[Any]], optional: Sequence[str]) -> str:
    if "task" in differences:
        return str(run.config["task"])
    parts: dict[str, None] = {}
    for name, values in differences.items():
        term = next((one for one in optional if name.startswith(f"{one}.")), None)
        text = f"{_short(name)} {run.config.get(name)}"
        if term is not None and f"{term}.func" not in run.config:
            text = f"without {_short(term)}"
        elif term is not None and len({str(value) for value in values if value is not None}) == 1:
            text = f"with {_short(term)}"
        parts[text] = None
    return ", ".join(parts) if 0 < len(parts) <= MAX_NAMED else run.path.name


def _short(name: str) -> str:
    return name.removeprefix("agent.").removeprefix("env.")


def _origin(provenance: Mapping[str, Any]) -> dict[str, Any]:
    commit = provenance.get("git_commit")
    devices = provenance.get("devices") or []
    origin: dict[str, Any] = {
        "git commit": f"{commit[:10]}{' + local changes' if provenance.get('git_dirty') else ''}" if commit else "none",
        "devices": f"{len(devices)} x {devices[0]}" if len(set(devices)) == 1 else ", ".join(map(str, devices)),
        "python": provenance.get("python"),
    }
    return origin | (provenance.get("versions") or {})


@dataclass(frozen=True, kw_only=True)
class Reached:
    """When the runs of a group first reached a threshold. Runs that did not reach it are left out of the means."""

    # Number of runs that reached the threshold
    num_runs: int
    # Mean number of control steps until then, over all ranks of a run; None if no run reached the threshold
    steps: float | None
    # Mean seconds of training until then; None if no run reached the threshold
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Statistics of a group."""

    name: str
    # Run directories of the group
    runs: list[str]
    # Last value of the metric in each run
    final: list[float]
    # Mean of the last values
    mean: float
    # Sample standard deviation of the last values; None with one run
    std: float | None
    # Interquartile mean of the last values
    iqm: float
    # Lower end of the 95% bootstrap interval of the interquartile mean; None with one run
    iqm_low: float | None
    # Upper end of this interval
    iqm_high: float | None
    # Control steps of a run, summed over its ranks; mean over the runs
    steps: float
    # Training time in s; mean over the runs
    seconds: float
    # When the threshold was reached; None without a threshold
    reached: Reached | None


@dataclass(frozen=True)
class Curve:
    """Curve of a group of runs, up to the end of the shortest run."""

    # Positions on the horizontal axis, (num_points,)
    x: NDArray[np.float64]
    # Mean over the runs at these positions, or their interquartile mean if the band is iqm; (num_points,)
    middle: NDArray[np.float64]
    # Lower edge of the band, (num_points,); None with one run
    low: NDArray[np.float64] | None
    # Upper edge of the band, (num_points,)
    high: NDArray[np.float64] | None


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over the last axis, without the lowest and the highest quarter."""
    cut = int(TAIL_SHARE * values.shape[-1])
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def bootstrap(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of the 95% bootstrap interval of the interquartile mean.

    The random numbers have a fixed seed, so that the result is reproducible.
    """
    draws = np.random.default_rng(0).integers(values.shape[-1], size=(NUM_RESAMPLES, values.shape[-1]))
    means = np.stack([interquartile_mean(values[..., draw]) for draw in draws])
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return low, high


def summarize(group: Group, metric: str, threshold: float | None) -> Summary:
    """Return the statistics of a group."""
    series = [_series(run, metric, "iterations") for run in group.runs]
    final = np.array([values[-1] for _, values in series])
    has_spread = len(final) > 1
    low, high = bootstrap(final) if has_spread else (None, None)
    return Summary(
        name=group.name,
        runs=[str(run.path) for run in group.runs],
        final=final.tolist(),
        mean=float(final.mean()),
        std=float(final.std(ddof=1)) if has_spread else None,
        iqm=float(interquartile_mean(final)),
        iqm_low=None if low is None else float(low),
        iqm_high=None if high is None else float(high),
        steps=float(np.mean([run.history["total_steps"][-1] for run in group.runs])),
        seconds=float(np.mean([run.history["elapsed_s"][-1] for run in group.runs])),
        reached=None if threshold is None else _reached(group, metric, threshold),
    )


def curve(group: Group, metric: str, over: str, band: Literal["std", "iqm"]) -> Curve:
    """Return the curve of a group."""
    series = [_series(run, metric, over) for run in group.runs]
    if len(series) == 1:
        return Curve(*series[0], None, None)
    first, last = max(x[0] for x, _ in series), min(x[-1] for x, _ in series)
    x = np.linspace(first, max(first, last), NUM_POINTS)
    values = np.stack([np.interp(x, *one) for one in series], axis=-1)
    if band == "iqm":
        return Curve(x, interquartile_mean(values), *bootstrap(values))
    mean, std = values.mean(axis=-1), values.std(axis=-1, ddof=1)
    return Curve(x, mean, mean - std, mean + std)


def _series(run: Run, metric: str, over: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the horizontal positions and the values of the rows in which both are finite."""
    x, values = run.history[AXES[over]], run.history[metric]
    known = np.isfinite(values) & np.isfinite(x)
    return x[known], values[known]


def _reached(group: Group, metric: str, threshold: float) -> Reached:
    found: list[tuple[float, float]] = []
    for run in group.runs:
        rows: Sequence[int] = np.flatnonzero(run.history[metric] >= threshold).tolist()
        if rows:
            found.append((float(run.history["total_steps"][rows[0]]), float(run.history["elapsed_s"][rows[0]])))
    if not found:
        return Reached(num_runs=0, steps=None, seconds=None)
    steps, seconds = np.mean(found, axis=0).tolist()
    return Reached(num_runs=len(found), steps=steps, seconds=seconds)


def write_report(
    file: str,
    curves: Mapping[str, Curve],
    *,
    metric: str,
    over: str,
    threshold: float | None,
    tables: Mapping[str, Sequence[Sequence[str]]],
) -> None:
    """Write a picture of the curves, or a page with curves and tables."""
    from matplotlib.figure import Figure  # an extra, and slow to import
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(7.0, 4.2), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        (line,) = axes.plot(curve.x, curve.middle, label=name, linewidth=1.5)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, alpha=0.2, color=line.get_color(), linewidth=0)
    if threshold is not None:
        axes.axhline(threshold, color="black", linestyle="--", linewidth=1)
    axes.set(xlabel=LABELS[over], ylabel=metric.replace("_", " "))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    if file.endswith(".png"):
        save_png(figure, "--output", file)
        return
    data = io.StringIO()
    figure.savefig(data, format="svg")
    svg = data.getvalue()
    write_output("--output", file, _page(f"Comparison of {metric}", svg[svg.index("<svg") :], tables))


def _page(title: str, svg: str, tables: Mapping[str, Sequence[Sequence[str]]]) -> str:
    parts = [
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>",
        f"<h1>{html.escape(title)}</h1>\n{svg}",
    ]
    for name, (head, *rows) in tables.items():
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        lines = [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
        body = "\n".join(lines)
        parts.append(f"<h2>{html.escape(name)}</h2>\n<div><table>\n<tr>{cells}</tr>\n{body}\n</table></div>")
    return "\n".join(parts) + "\n"
