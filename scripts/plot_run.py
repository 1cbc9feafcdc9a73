"""Plot runs' returns and speeds from their metrics.jsonl.

uv run python scripts/plot_run.py logs/cartpole-balance/<run> [more runs] --output return.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from mjlab_dist import runs


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("return.png"))
    args = parser.parse_args()
    figure, (returns, speeds) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for run in args.runs:
        rows = runs.read_metrics(run)
        label = f"{run.parent.name}, {run.name}"
        seen = [row for row in rows if row["mean_return"] is not None]
        returns.plot([row["elapsed_s"] for row in seen], [row["mean_return"] for row in seen], label=label)
        speeds.plot([row["elapsed_s"] for row in rows], [row["steps_per_s"] for row in rows], label=label)
    returns.set(xlabel="seconds since training began", ylabel="mean return", ylim=(0, None))
    speeds.set(xlabel="seconds since training began", ylabel="env steps per second", ylim=(0, None))
    for axes in (returns, speeds):
        axes.grid(alpha=0.3)
    returns.legend(fontsize="small")
    figure.savefig(args.output, dpi=120)
    print(args.output)


if __name__ == "__main__":
    main()
