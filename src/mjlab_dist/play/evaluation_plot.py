"""Draw the results of an evaluation in which one or two parameters vary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mjlab_dist.errors import UserError
from mjlab_dist.play.evaluate import Evaluated
from mjlab_dist.runs.figure_files import DPI, check_figure_file, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Maximum number of varied parameters that a picture can show
MAX_AXES = 2

# Maximum number of cells of a heat map that contains its values as text
MAX_LABELLED = 150


def check_plot(file: str, num_axes: int) -> None:
    """Raise if a picture cannot be drawn or written."""
    check_figure_file("--plot", file, [".png"])
    if not 1 <= num_axes <= MAX_AXES:
        raise UserError(f"--plot {file}: can show one or two varied parameters, not {num_axes}; add or remove --vary")


def plot(results: Sequence[Evaluated], title: str, file: str) -> None:
    """Draw mean returns: a line with its 95% interval for one varied parameter, or a heat map for two."""
    from matplotlib.figure import Figure  # an extra, and slow to import

    kinds = list(dict.fromkeys(result.actions for result in results))
    is_map = len(results[0].varied) == MAX_AXES
    figure = Figure(figsize=(7.0 * (len(kinds) if is_map else 1), 4.5), dpi=DPI, layout="constrained")
    figure.suptitle(title)
    if is_map:
        for i, kind in enumerate(kinds):
            axes = figure.add_subplot(1, len(kinds), i + 1)
            axes.set_title(f"{kind} actions" if len(kinds) > 1 else "")
            _draw_map(axes, [result for result in results if result.actions == kind])
    else:
        axes = figure.add_subplot()
        for kind in kinds:
            _draw_line(axes, [result for result in results if result.actions == kind], f"{kind} actions")
        if len(kinds) > 1:
            axes.legend()
    save_png(figure, "--plot", file)


def _draw_line(axes: Axes, results: Sequence[Evaluated], label: str) -> None:
    (name,) = results[0].varied
    values = [result.varied[name] for result in results]
    returns = [result.columns["return"] for result in results]
    (line,) = axes.plot(values, [one.mean for one in returns], marker="o", label=label)
    if all(one.low is not None for one in returns):
        axes.fill_between(values, [one.low for one in returns], [one.high for one in returns], alpha=0.2)  # pyright: ignore[reportArgumentType]
    axes.set_xlabel(name)
    axes.set_ylabel("mean return, with its 95% interval")
    axes.grid(alpha=0.3)
    line.set_clip_on(False)


def _draw_map(axes: Axes, results: Sequence[Evaluated]) -> None:
    # Columns of the heat map: first parameter. Rows: second parameter, which varies fastest in the results
    first, second = results[0].varied
    columns, rows = (list(dict.fromkeys(result.varied[name] for result in results)) for name in (first, second))
    means = [result.columns["return"].mean for result in results]
    table = [[means[c * len(rows) + r] for c in range(len(columns))] for r in range(len(rows))]
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis")
    axes.set_xticks(range(len(columns)), [f"{value:.3g}" for value in columns])
    axes.set_yticks(range(len(rows)), [f"{value:.3g}" for value in rows])
    axes.set_xlabel(first)
    axes.set_ylabel(second)
    axes.figure.colorbar(image, ax=axes, label="mean return")
    if len(results) <= MAX_LABELLED:
        middle = (min(means) + max(means)) / 2
        for r, row in enumerate(table):
            for c, mean in enumerate(row):
                color = "white" if mean < middle else "black"
                axes.text(c, r, f"{mean:.3g}", ha="center", va="center", color=color, fontsize="small")
