"""Plot learning curves, with one panel per task and one line per seed, and print a table of the final values.

If there are runs of several algorithms, each has its own color.

uv run python scripts/plot_curves.py logs/gym-hopper/* --published gym-hopper=2382.86 --output curves.png
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from mjlab_dist.runs.run_dir import read_config_file, read_metrics


def main() -> None:
    """Write the picture and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument(
        "--minutes", action="store_true", help="plot over the time of training instead of control steps"
    )
    parser.add_argument("--metric", default="mean_return", help="column of metrics.jsonl to plot")
    parser.add_argument(
        "--published",
        nargs="*",
        default=[],
        metavar="TASK=RETURN",
        help="published results, drawn as dashed lines",
    )
    parser.add_argument("--output", type=Path, default=Path("curves.png"))
    args = parser.parse_args()
    # Group the runs by task and algorithm
    published = {task: float(value) for task, _, value in (pair.partition("=") for pair in args.published)}
    tasks: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for run in args.runs:
        tasks[run.parent.name][read_config_file(run).agent.algorithm].append(run)
    # Draw one panel, and print one row of the table, per task
    columns = min(3, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(4.2 * columns, 3.1 * rows), layout="constrained", squeeze=False
    )
    print("| task | algorithm | seeds | control steps | minutes per run | final values | mean and standard deviation |")
    print("|---|---|---|---|---|---|---|")
    for axes, (task, algorithms) in zip(panels.flat, tasks.items(), strict=False):
        for number, (algorithm, found) in enumerate(algorithms.items()):
            color = f"C{number}" if len(algorithms) > 1 else None
            _plot(axes, (task, algorithm), found, args.metric, color=color, minutes=args.minutes)
        axes.set(title=task, xlabel="minutes" if args.minutes else "million control steps")
        axes.set(ylabel=args.metric.replace("_", " "))
        axes.grid(alpha=0.3)
        if task in published:
            axes.axhline(published[task], color="black", linestyle="--", linewidth=1, label="published")
        if len(algorithms) > 1 or task in published:
            axes.legend(fontsize="small", loc="lower right")
    for axes in panels.flat[len(tasks) :]:
        axes.remove()
    # Write the picture
    figure.savefig(args.output, dpi=110)
    print(f"\n{args.output}")


def _plot(
    axes: Axes, names: tuple[str, str], found: list[Path], metric: str, *, color: str | None, minutes: bool
) -> None:
    """Draw the curves of an algorithm and print its row."""
    ends: list[float] = []
    steps: list[int] = []
    times: list[float] = []
    for run in found:
        rows = [row for row in read_metrics(run) if row.get(metric) is not None]
        if not rows:
            raise SystemExit(f"{run}: no iteration has {metric}; leave the run out, or use another --metric")
        x = [row["elapsed_s"] / 60 if minutes else row["total_steps"] / 1e6 for row in rows]
        label = names[1].upper() if color is not None and not ends else None
        axes.plot(x, [row[metric] for row in rows], linewidth=1.2, color=color, label=label)
        ends.append(rows[-1][metric])
        steps.append(rows[-1]["total_steps"])
        times.append(rows[-1]["elapsed_s"] / 60)
    spread = f" ± {statistics.pstdev(ends):,.4g}" if len(ends) > 1 else ""
    print(
        f"| {' | '.join(names)} | {len(ends)} | {max(steps):,} | {', '.join(f'{value:.1f}' for value in times)} | "
        f"{', '.join(f'{value:,.4g}' for value in ends)} | {statistics.mean(ends):,.4g}{spread} |"
    )


if __name__ == "__main__":
    main()
