"""Statistics of groups of runs: curves, final values, time to a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mjlab_dist.runs.compared_runs import AXES, Group, Run

# Number of points of a curve
NUM_POINTS = 200

# Number of bootstrap resamples
NUM_RESAMPLES = 2000

# Share of the values that an interquartile mean leaves out at each end: the lowest and the highest quarter (Agarwal
# et al. 2021, arXiv:2108.13264).
CUT = 0.25


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
    cut = int(CUT * values.shape[-1])
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
