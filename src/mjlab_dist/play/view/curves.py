"""Learning curves of a run: return, episode length, reward terms and speed over iterations; some also for each rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import viser

from mjlab_dist.play.view.charts import MAX_LINES, add_plot
from mjlab_dist.play.view.rows import History
from mjlab_dist.play.view.runs import Run

# Columns of metrics.jsonl that are plotted, by the title of the plot
OF_RUN = {"return": "mean_return", "episode length": "mean_episode_length", "steps/s": "steps_per_s"}

# Columns of rank_metrics.jsonl that are plotted, by the title of the plot
OF_RANKS = {"return of each rank": "mean_return", "steps/s of each rank": "steps_per_s"}


class Curves:
    """Plots of a run in a tab. They appear when there are rows of metrics."""

    def __init__(self, server: viser.ViserServer) -> None:
        """Add the plots to the current tab of the page."""
        self._server = server
        self._empty = server.gui.add_html('<div style="padding:0 0.8em">The first iteration has not ended yet.</div>')
        self._folder = server.gui.add_folder(None)
        self._plots: dict[str, viser.GuiUplotHandle] = {}
        self._lines: dict[str, tuple[str, ...]] = {}

    def update(self, run: Run) -> None:
        """Show all rows that the run has."""
        plots = {title: [("", run.history, column)] for title, column in OF_RUN.items()}
        terms = [name for name in run.history.newest or {} if name.startswith("reward/")]
        plots["reward terms"] = [(name.removeprefix("reward/"), run.history, name) for name in terms]
        for title, column in OF_RANKS.items():
            plots[title] = [(f"rank {rank}", history, column) for rank, history in sorted(run.ranks.items())]
        with self._server.atomic():
            self._empty.visible = run.history.newest is None
            for title, lines in plots.items():
                self._show(title, lines[:MAX_LINES], len(lines))

    def _show(self, title: str, lines: Sequence[tuple[str, History, str]], num_lines: int) -> None:
        """Show a plot. Each line is a tuple: its label, the rows of metrics, and the name of their column."""
        data = _joined([(history, column) for _, history, column in lines])
        labels = tuple(label for label, _, _ in lines)
        is_same = title in self._plots and labels == self._lines[title]
        if is_same and len(data[0]):
            self._plots[title].data = data
            return
        if title in self._plots:
            self._plots.pop(title).remove()
        if not len(data[0]):
            return
        shown = f"{title} (first {len(lines)} of {num_lines})" if num_lines > len(lines) else title
        order = float([*OF_RUN, "reward terms", *OF_RANKS].index(title))
        with self._folder:
            self._plots[title] = add_plot(
                self._server,
                shown,
                "iteration",
                [label or title for label in labels],
                data,
                has_legend=len(lines) > 1,
                order=order,
            )
        self._lines[title] = labels


def _joined(lines: Sequence[tuple[History, str]]) -> tuple[np.ndarray, ...]:
    """Return iterations, and the values of each line, starting at the first iteration at which all lines have values.

    A value can be missing, for example if no episode of a rank has ended. Repeat the previous value then: if there is a
    NaN, uPlot draws nothing.
    """
    values: list[Mapping[float, float]] = []
    for history, column in lines:
        pairs = zip(history.column("iteration"), history.column(column), strict=True)
        values.append({iteration: value for iteration, value in pairs if math.isfinite(value)})
    rows: list[list[float]] = []
    latest: dict[int, float] = {}
    for iteration in sorted(set().union(*values)):
        latest |= {i: line[iteration] for i, line in enumerate(values) if iteration in line}
        if len(latest) == len(lines):
            rows.append([iteration, *(latest[i] for i in range(len(lines)))])
    return tuple(np.array(rows, dtype=np.float64).reshape(-1, 1 + len(lines)).T.copy())
