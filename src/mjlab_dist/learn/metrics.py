"""Metrics of an iteration: summed over all ranks in one collective, smoothed over episodes, written by rank 0."""

from __future__ import annotations

import collections
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from mjlab_dist import runs
from mjlab_dist.config import TrainConfig, to_plain
from mjlab_dist.distributed.group import sum_over_ranks
from mjlab_dist.env import EpisodeTotals

Row = dict[str, float | int | None]
"""A row of metrics.jsonl. What is not known yet is None."""

WINDOW_EPISODES = 100
"""Mean return and length are over at least this many of the newest episodes."""


class Sample(NamedTuple):
    """What one rank measured in one iteration."""

    totals: EpisodeTotals
    """Episodes that ended."""
    reward: torch.Tensor
    """Mean reward per control step, a scalar."""
    losses: dict[str, float]
    """Mean losses over the mini-batches, by name."""
    overflows: torch.Tensor
    """Envs whose contacts or constraints ever outgrew their buffers, a scalar."""
    collect_s: float
    """Wall-clock seconds of the rollout."""
    learn_s: float
    """Wall-clock seconds of the update."""


class Metrics:
    """Turns samples into rows, the same on every rank."""

    def __init__(self, rank: int, world_size: int, num_samples: int, reward_names: tuple[str, ...]) -> None:
        """Start counting.

        Args:
            rank: Global rank.
            world_size: Number of ranks.
            num_samples: Control steps in one rollout of one rank, over its envs.
            reward_names: Names of the reward terms.
        """
        self._rank = rank
        self._world_size = world_size
        self._num_samples = num_samples * world_size
        self._reward_names = reward_names
        self._episodes: collections.deque[list[float]] = collections.deque()
        self._started = time.monotonic()

    def row(self, iteration: int, sample: Sample, learning_rate: float, action_std: torch.Tensor) -> Row:
        """One row of metrics over all ranks; one collective and one transfer to the host.

        Args:
            iteration: Iterations done, this one included.
            sample: What this rank measured.
            learning_rate: The learning rate after the update; the same on every rank.
            action_std: Standard deviation of the actions, a scalar; the same on every rank.
        """
        total, collect_s, learn_s = self._sum(sample, action_std)
        episodes, (reward, overflows, std, *losses) = (
            total[: 2 + len(self._reward_names)],
            total[2 + len(self._reward_names) :],
        )
        self._remember(episodes)
        count, length, *terms = (sum(column) for column in zip(*self._episodes, strict=True))
        iteration_s = max(map(sum, zip(collect_s, learn_s, strict=True)))
        slowest_s = max(collect_s)
        return {
            "iteration": iteration,
            "total_steps": iteration * self._num_samples,
            "elapsed_s": time.monotonic() - self._started,
            "steps_per_s": self._num_samples / iteration_s,
            "collect_s": slowest_s,
            "learn_s": max(learn_s),
            "wait_s": slowest_s - sum(collect_s) / self._world_size,
            "episodes": round(episodes[0]),
            "mean_return": sum(terms) / count if count else None,
            "mean_episode_length": length / count if count else None,
            "mean_step_reward": reward / self._world_size,
            **{
                f"reward/{name}": term / count if count else None
                for name, term in zip(self._reward_names, terms, strict=True)
            },
            **{f"loss/{name}": loss / self._world_size for name, loss in zip(sample.losses, losses, strict=True)},
            "learning_rate": learning_rate,
            "action_std": std / self._world_size,
            "overflowed_envs": round(overflows),
        }

    def _sum(self, sample: Sample, action_std: torch.Tensor) -> tuple[list[float], list[float], list[float]]:
        """Sums over ranks, and every rank's own times, which travel as a row of zeros but for one."""
        device = action_std.device
        times = torch.zeros(2, self._world_size, device=device)
        times[:, self._rank] = torch.tensor([sample.collect_s, sample.learn_s], device=device)
        packed = sum_over_ranks(
            torch.cat(
                [
                    sample.totals.episodes.view(1),
                    sample.totals.steps.view(1),
                    sample.totals.terms,
                    sample.reward.view(1),
                    sample.overflows.view(1),
                    action_std.detach().view(1),
                    torch.tensor(list(sample.losses.values()), device=device),
                    times.flatten(),
                ]
            ).double()
        ).tolist()
        split = len(packed) - 2 * self._world_size
        return packed[:split], packed[split : split + self._world_size], packed[split + self._world_size :]

    def _remember(self, episodes: list[float]) -> None:
        self._episodes.append(episodes)
        while sum(e[0] for e in self._episodes) - self._episodes[0][0] >= WINDOW_EPISODES:
            self._episodes.popleft()


class Writer(Protocol):
    """Where rows go."""

    def write(self, row: Row) -> None:
        """Take one row."""

    def close(self) -> None:
        """Finish; nothing is written afterwards."""


class JsonlWriter:
    """metrics.jsonl: a JSON object a line, complete after every iteration."""

    def __init__(self, run_dir: Path) -> None:
        self._file = (run_dir / runs.METRICS).open("a", buffering=1)

    def write(self, row: Row) -> None:
        """Append one row."""
        self._file.write(json.dumps({k: _jsonable(v) for k, v in row.items()}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardWriter:
    """TensorBoard's event file, against the iteration."""

    def __init__(self, run_dir: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (slow to import, and only rank 0 writes)

        self._writer = SummaryWriter(log_dir=str(run_dir), flush_secs=10)

    def write(self, row: Row) -> None:
        """Add one scalar per metric."""
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["iteration"])

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


class WandbWriter:
    """Weights & Biases, online or offline as its own variables say."""

    def __init__(self, run_dir: Path, config: TrainConfig) -> None:
        import wandb  # noqa: PLC0415 (slow to import, and rarely chosen)

        self._run: Any = wandb.init(
            project=config.wandb_project,
            name=run_dir.name,
            dir=str(run_dir),
            config=to_plain(config),
            settings=wandb.Settings(silent=True),
        )

    def write(self, row: Row) -> None:
        """Log one row."""
        self._run.log(scalars(row), step=row["iteration"])

    def close(self) -> None:
        """Upload what is left and end the run."""
        self._run.finish()


def writers(config: TrainConfig, run_dir: Path) -> list[Writer]:
    """The writers of a run, for rank 0: metrics.jsonl always, and the chosen logger."""
    chosen: Writer = WandbWriter(run_dir, config) if config.logger == "wandb" else TensorBoardWriter(run_dir)
    return [JsonlWriter(run_dir), chosen]


def scalars(row: Row) -> dict[str, float]:
    """What of a row can be plotted, grouped by name as TensorBoard and Weights & Biases show it."""
    return {
        name if "/" in name else f"{'perf' if name.endswith('_s') else 'train'}/{name}": float(value)
        for name, value in row.items()
        if value is not None and name != "iteration"
    }


def _jsonable(value: float | int | None) -> float | int | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
