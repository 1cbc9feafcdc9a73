"""Plot the returns of runs, and their speeds or another column of metrics.jsonl.

uv run python scripts/plot_run.py logs/cartpole-balance/<run> [more runs] --output return.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from mjlab_dist.run_dir import read_metrics


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("return.png"))
    parser.add_argument("--beside", default="steps_per_s", metavar="COLUMN", help="column to plot beside the return")
    args = parser.parse_args()
    figure, (returns, beside) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for run in args.runs:
        rows = read_metrics(run)
        label = f"{run.parent.name}, {run.name}"
        seen = [row for row in rows if row["mean_return"] is not None]
        returns.plot([row["elapsed_s"] for row in seen], [row["mean_return"] for row in seen], label=label)
        beside.plot([row["elapsed_s"] for row in rows], [row[args.beside] for row in rows], label=label)
    returns.set(
        xlabel="seconds since training began", ylabel="mean return", ylim=(min(0.0, returns.get_ylim()[0]), None)
    )
    column = {"steps_per_s": "env steps per second"}.get(args.beside, args.beside)
    beside.set(xlabel="seconds since training began", ylabel=column, ylim=(0, None))
    for axes in (returns, beside):
        axes.grid(alpha=0.3)
    returns.legend(fontsize="small")
    figure.savefig(args.output, dpi=120)
    print(args.output)


if __name__ == "__main__":
    main()
