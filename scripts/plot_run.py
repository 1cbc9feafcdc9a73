"""Plot the returns of runs, and their speeds or another column of metrics.jsonl.

uv run python scripts/plot_run.py logs/cartpole-balance/<run> [more runs] --output return.png
uv run python scripts/plot_run.py logs/cartpole-balance/<run> --ranks --beside memory_mb
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from mjlab_dist.run_dir import RANK_METRICS_FILE, read_metrics


def curves(runs: list[Path], of_ranks: bool) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the label and the rows of each curve: one per run, or one per rank of each run."""
    for run in runs:
        label = f"{run.parent.name}, {run.name}"
        if not of_ranks:
            yield label, read_metrics(run)
            continue
        rows = read_metrics(run, RANK_METRICS_FILE)
        for rank in sorted({row["rank"] for row in rows}):
            yield f"{label}, rank {rank}", [row for row in rows if row["rank"] == rank]


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("return.png"))
    parser.add_argument("--beside", default="steps_per_s", metavar="COLUMN", help="column to plot beside the return")
    parser.add_argument("--ranks", action="store_true", help="one curve per rank, of runs with --log-ranks")
    args = parser.parse_args()
    figure, (returns, beside) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    across = "iteration" if args.ranks else "elapsed_s"
    for label, rows in curves(args.runs, args.ranks):
        seen = [row for row in rows if row["mean_return"] is not None]
        returns.plot([row[across] for row in seen], [row["mean_return"] for row in seen], label=label)
        beside.plot([row[across] for row in rows], [row[args.beside] for row in rows], label=label)
    xlabel = "iteration" if args.ranks else "seconds since training began"
    returns.set(xlabel=xlabel, ylabel="mean return", ylim=(min(0.0, returns.get_ylim()[0]), None))
    column = {"steps_per_s": "env steps per second"}.get(args.beside, args.beside)
    beside.set(xlabel=xlabel, ylabel=column, ylim=(0, None))
    for axes in (returns, beside):
        axes.grid(alpha=0.3)
    returns.legend(fontsize="small")
    figure.savefig(args.output, dpi=120)
    print(args.output)


if __name__ == "__main__":
    main()
