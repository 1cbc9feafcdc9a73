"""Train cartpole-swingup with different numbers of ranks and values of --sync.period, and plot the mean returns.

All runs have the same total number of envs.

uv run scripts/plot_synchronisation.py --output docs/pictures/synchronisation.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

import mjlab_dist
from mjlab_dist.config import SyncConfig

TASK = "cartpole-swingup"

RANKS = (1, 2, 4)
PERIODS = (1, 4, 16)

SEEDS = tuple(range(1, 1 + 3 * max(RANKS), max(RANKS)))
"""Rank r uses seed + r, so seeds of independent runs must be at least the number of ranks apart."""


def returns(args: argparse.Namespace, ranks: int, period: int) -> tuple[np.ndarray, np.ndarray]:
    """Train with each seed. Return the steps, (iterations,), and the mean returns, (seeds, iterations)."""
    results = [
        mjlab_dist.train(
            TASK,
            cpu_ranks=ranks,
            total_num_envs=args.total_num_envs,
            max_iterations=args.iterations,
            seed=seed,
            log_root=args.log_root,
            run_name=f"ranks{ranks}-period{period}-seed{seed}",
            sync=SyncConfig(period=period),
        )
        for seed in args.seeds
    ]
    return results[0].history["total_steps"], np.stack([r.history["mean_return"] for r in results])


def draw(axes: Axes, title: str, curves: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Plot returns against steps: the mean over seeds, and the band from minimum to maximum."""
    for label, (steps, values) in curves.items():
        (line,) = axes.plot(steps / 1e6, values.mean(axis=0), label=label)
        axes.fill_between(steps / 1e6, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.15)
    axes.set(title=title, xlabel="env steps of all ranks, in millions", ylim=(0, 1000))
    axes.grid(alpha=0.3)
    axes.legend()


def main() -> None:
    """Train and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-num-envs", type=int, default=512)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--log-root", default="logs")
    parser.add_argument("--output", type=Path, default=Path("synchronisation.png"))
    args = parser.parse_args()
    keys = [*((ranks, 1) for ranks in RANKS), *((2, period) for period in PERIODS if period > 1)]
    runs = {key: returns(args, *key) for key in keys}
    figure, (by_ranks, by_period) = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    draw(by_ranks, "gradients averaged", {f"{r} rank{'s' * (r > 1)}": runs[r, 1] for r in RANKS})
    draw(by_period, "2 ranks", {f"period {p}": runs[2, p] for p in PERIODS})
    by_ranks.set(ylabel=f"mean return of {TASK}")
    figure.savefig(args.output, dpi=120)
    print(args.output)


if __name__ == "__main__":
    main()
