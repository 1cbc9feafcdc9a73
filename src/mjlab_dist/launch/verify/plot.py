"""Plot the speeds of different numbers of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mjlab_dist.launch.verify.speeds import Mode, Row, Speeds
from mjlab_dist.runs.figure_files import DPI, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(speeds: Mapping[Mode, Speeds], title: str, file: str) -> None:
    """Draw the speeds next to the ideal speeds, and the shares of the time, for each kind of scaling."""
    from matplotlib.figure import Figure  # an extra, and slow to import

    modes: dict[Mode, Sequence[Row]] = {mode: each.rows for mode, each in speeds.items()}
    figure = Figure(figsize=(4.0 * (1 + len(modes)), 4.0), dpi=DPI, layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(1, 1 + len(modes))
    _draw_speeds(axes[0], modes)
    for one, (mode, rows) in zip(axes[1:], modes.items(), strict=True):
        _draw_shares(one, mode, rows)
    axes[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    save_png(figure, "--plot", file)


def _draw_speeds(axes: Axes, modes: Mapping[Mode, Sequence[Row]]) -> None:
    for mode, rows in modes.items():
        ranks = [row.num_ranks for row in rows]
        (line,) = axes.plot(ranks, [row.steps_per_s for row in rows], marker="o", label=mode)
        speeds = [[one.steps_per_s for one in row.rounds] for row in rows]
        axes.fill_between(ranks, list(map(min, speeds)), list(map(max, speeds)), alpha=0.2, color=line.get_color())
    rows = next(iter(modes.values()))
    ideal = [rows[0].steps_per_s * row.num_ranks / rows[0].num_ranks for row in rows]
    axes.plot([row.num_ranks for row in rows], ideal, color="black", linestyle="--", linewidth=1, label="ideal")
    axes.set(xlabel="ranks", ylabel="steps/s", ylim=(0, None), xticks=[row.num_ranks for row in rows])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_shares(axes: Axes, mode: str, rows: Sequence[Row]) -> None:
    ranks = [str(row.num_ranks) for row in rows]
    bottom = [0.0] * len(rows)
    each = [dataclasses.asdict(row.shares) for row in rows]
    for name in each[0]:
        heights = [shares[name] for shares in each]
        axes.bar(ranks, heights, bottom=bottom, label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set(xlabel="ranks", ylabel="share of the time", title=f"{mode} scaling", ylim=(0, 1))
