"""Pictures of the GPU report: speed by number of envs, shares of time, and learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from gpu_page import SHARES, SPEED_GOALS, Result


def draw(output: Path, results: Mapping[str, Result]) -> None:
    """Draw all pictures whose figures were measured.

    Args:
        output: Directory of the page.
        results: All parts.
    """
    data = {name: result["data"] for name, result in results.items() if result.get("data")}
    speeds = {name: figures for name, figures in data.items() if name.startswith("speed-")}
    trainings = {name: figures for name, figures in data.items() if name.startswith("train-")}
    pictures = output / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    _draw_speeds(pictures / "gpu-speed.png", speeds)
    _draw_shares(pictures / "gpu-shares.png", speeds)
    _draw_trainings(pictures / "gpu-trainings.png", trainings)


def _measured(figures: Mapping[str, Any], key: str) -> dict[int, Any]:
    """Return a measured value by number of envs. Omit numbers of envs for which the value was not measured."""
    return {int(size): found[key] for size, found in figures.get("sizes", {}).items() if key in found}


def _draw_speeds(path: Path, speeds: Mapping[str, Any]) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for part, figures in speeds.items():
        if points := _measured(figures, "steps_per_s"):
            label = part.removeprefix("speed-")
            (line,) = axes.plot(list(points), list(points.values()), marker="o", label=label)
            for name, num_envs, wanted in SPEED_GOALS:
                if name == part:
                    axes.plot(int(num_envs), wanted, marker="_", markersize=18, color=line.get_color())
    if axes.has_data():
        axes.set(xlabel="envs", ylabel="env-steps per second", xscale="log", yscale="log")
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", title="dash: the goal")
        figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_shares(path: Path, speeds: Mapping[str, Any]) -> None:
    bars = {
        f"{part.removeprefix('speed-')}, {size}": shares
        for part, figures in speeds.items()
        for size, shares in _measured(figures, "shares").items()
    }
    if not bars:
        return
    figure, axes = plt.subplots(figsize=(7.2, 0.8 + 0.35 * len(bars)), layout="constrained")
    left = [0.0] * len(bars)
    for name in SHARES:
        widths = [max(0.0, shares[name]) for shares in bars.values()]
        axes.barh(list(bars), widths, left=left, label=name)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="share of an iteration")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_trainings(path: Path, trainings: Mapping[str, Any]) -> None:
    curves = {figures["task"]: figures["curve"] for figures in trainings.values() if figures.get("curve")}
    if not curves:
        return
    figure, (returns, tracking) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for task, curve in curves.items():
        minutes = [point["minutes"] for point in curve]
        returns.plot(minutes, [point["mean_return"] for point in curve], label=task)
        tracking.plot(minutes, [point["tracking"] for point in curve], label=task)
    returns.set(xlabel="minutes of training", ylabel="mean return")
    tracking.set(xlabel="minutes of training", ylabel="reward for velocity, share of maximum", ylim=(0, 1))
    for axes in (returns, tracking):
        axes.grid(alpha=0.3)
    returns.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)
