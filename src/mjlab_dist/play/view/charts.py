"""Charts of a page: a bar per reward term, and plots of observations, actions and commands over time."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
import viser
from viser import uplot

from mjlab_dist.play.view.player import Frame

# Maximum number of lines in a plot
MAX_LINES = 12

# Height of a plot, in pixels
PLOT_HEIGHT = 170

# Space above, to the right of, below and to the left of a plot, in pixels. There is space on the right because half
# of the last label of the x axis may be beyond the end of the axis.
PADDING = (8, 24, 0, 0)

# Style of the x axis and of the y axis: no ticks, and room for a label such as 1,000,000
AXES: tuple[uplot.Axis, ...] = ({"ticks": {"show": False}, "size": 30}, {"ticks": {"show": False}, "size": 72})


class RewardBars:
    """A bar for each reward term. It shows the term's weighted value in the latest step of an env.

    Bars are scaled so that the longest bar of the latest steps has the full width.
    """

    def __init__(self, server: viser.ViserServer, names: Sequence[str]) -> None:
        """Add the bars to the current folder of the page."""
        self._names = names
        self._scale = 0.0
        self._element = server.gui.add_html("")

    def update(self, frame: Frame, env_id: int) -> None:
        """Show a step."""
        values = np.nan_to_num(frame.rewards[:, env_id])
        self._scale = max(0.98 * self._scale, float(np.abs(values).max(initial=0.0)), 1e-9)
        rows = [self._row(name, float(value)) for name, value in zip(self._names, values, strict=True)]
        total = f"<b>sum {values.sum():+.4f}</b> &nbsp; return so far {frame.returns[env_id]:+.2f}"
        self._element.content = f'<div style="font-size:0.8em;padding:0 0.8em">{total}{"".join(rows)}</div>'

    def _row(self, name: str, value: float) -> str:
        color = "#2f9e44" if value >= 0 else "#e03131"
        bar = f"width:{100 * abs(value) / self._scale:.1f}%;height:0.5em;background:{color}"
        label = f'<div style="display:flex;justify-content:space-between"><span>{html.escape(name)}</span>'
        return f'{label}<span>{value:+.4f}</span></div><div style="{bar}"></div>'


class Plot:
    """Plot of values over the latest seconds, with one line per value."""

    def __init__(self, server: viser.ViserServer, title: str, names: Sequence[str]) -> None:
        """Add the plot to the current folder of the page."""
        self._num_lines = min(len(names), MAX_LINES)
        shown = f" (first {MAX_LINES} of {len(names)})" if len(names) > MAX_LINES else ""
        empty = (np.zeros(1),) * (1 + self._num_lines)
        has_legend = self._num_lines <= 6
        self._element = add_plot(server, title + shown, "s", names[:MAX_LINES], empty, has_legend=has_legend)

    def update(self, times_s: np.ndarray, values: np.ndarray) -> None:
        """Show values."""
        lines = np.nan_to_num(values[:, : self._num_lines].astype(np.float64))
        self._element.data = (times_s, *lines.T.copy())

    def remove(self) -> None:
        """Remove the plot from the page."""
        self._element.remove()


def add_plot(
    server: viser.ViserServer,
    title: str,
    x: str,
    lines: Sequence[str],
    data: tuple[np.ndarray, ...],
    *,
    has_legend: bool,
    order: float | None = None,
) -> viser.GuiUplotHandle:
    """Add a plot of lines to the current folder or tab of the page."""
    # Hues of lines differ by the golden angle, so that those of nearby lines are not alike
    series = [
        uplot.Series(label=name, stroke=f"hsl({i * 137.508 % 360:.1f}, 75%, 42%)", width=1.5)
        for i, name in enumerate(lines)
    ]
    return server.gui.add_uplot(
        data=data,
        series=(uplot.Series(label=x), *series),
        title=title,
        scales={"x": uplot.Scale(time=False, auto=True), "y": uplot.Scale(auto=True)},
        axes=AXES,
        legend=uplot.Legend(show=has_legend),
        height=PLOT_HEIGHT,
        padding=PADDING,
        order=order,
    )
