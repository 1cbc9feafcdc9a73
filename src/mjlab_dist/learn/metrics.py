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
from mjlab_dist.learn.clock import Clock

Row = dict[str, float | int | None]
"""A row of metrics.jsonl. What is not known yet is None."""

WINDOW_EPISODES = 100
"""Mean return and length are over at least this many of the newest episodes."""


class Sample(NamedTuple):
    """What one rank measured in one iteration. Tensors are scalars on its device unless said otherwise."""

    totals: EpisodeTotals
    """Episodes that ended."""
    reward: torch.Tensor
    """Mean reward per control step."""
    losses: dict[str, torch.Tensor]
    """Means over the mini-batches, by name."""
    kl: torch.Tensor
    """Mean KL divergence over the mini-batches, of the policy in the update from the one that collected the data."""
    learning_rate: torch.Tensor
    """After the update."""
    action_std: torch.Tensor
    """Mean standard deviation of the actions."""
    spread: torch.Tensor
    """Sum over parameters of squared distances from the mean over ranks, before averaging; NaN where nothing was averaged."""
    overflows: torch.Tensor
    """Envs whose contacts or constraints ever outgrew their buffers."""
    collect_s: float
    """Seconds of the rollout."""
    learn_s: float
    """Seconds of the update."""
    wait_s: float
    """Seconds that this rank has spent in collectives since the last sample."""


class Metrics:
    """Turns samples into rows, the same on every rank."""

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        num_samples: int,
        reward_names: tuple[str, ...],
        num_parameters: int,
        clock: Clock,
    ) -> None:
        """Start counting.

        Args:
            rank: Global rank.
            world_size: Number of ranks.
            num_samples: Control steps in one rollout of one rank, over its envs.
            reward_names: Names of the reward terms.
            num_parameters: Parameters of policy and value, for the root of their mean squared spread.
            clock: Counts the time in the collective here.
        """
        self._rank = rank
        self._world_size = world_size
        self._num_samples = num_samples * world_size
        self._reward_names = reward_names
        self._num_parameters = num_parameters
        self._clock = clock
        self._episodes: collections.deque[list[float]] = collections.deque()
        self._started = time.monotonic()

    def row(self, iteration: int, sample: Sample) -> Row:
        """One row of metrics over all ranks; one collective and one transfer to the host.

        Args:
            iteration: Iterations done, this one included.
            sample: What this rank measured.
        """
        sums = self._sum(sample)
        mean = {name: total / self._world_size for name, total in sums.items()}
        self._remember([sums["episodes"], sums["steps"], *(sums[f"reward/{name}"] for name in self._reward_names)])
        count, length, *terms = (sum(column) for column in zip(*self._episodes, strict=True))
        collect_s, learn_s = (
            [sums[f"{name}/{r}"] for r in range(self._world_size)] for name in ("collect_s", "learn_s")
        )
        iteration_s = max(map(sum, zip(collect_s, learn_s, strict=True)))
        spread = math.sqrt(mean["spread"] / self._num_parameters)
        return {
            "iteration": iteration,
            "total_steps": iteration * self._num_samples,
            "elapsed_s": time.monotonic() - self._started,
            "steps_per_s": self._num_samples / iteration_s,
            "collect_s": max(collect_s),
            "learn_s": max(learn_s),
            "wait_s": mean["wait_s"],
            "wait_share": mean["wait_s"] / iteration_s,
            "episodes": round(sums["episodes"]),
            "mean_return": sum(terms) / count if count else None,
            "mean_episode_length": length / count if count else None,
            "mean_step_reward": mean["reward"],
            **{
                f"reward/{name}": term / count if count else None
                for name, term in zip(self._reward_names, terms, strict=True)
            },
            **{f"loss/{name}": mean[f"loss/{name}"] for name in sample.losses},
            "kl": mean["kl"],
            "learning_rate": mean["learning_rate"],
            "action_std": mean["action_std"],
            "parameter_spread": None if math.isnan(spread) else spread,
            "overflowed_envs": round(sums["overflows"]),
        }

    def _sum(self, sample: Sample) -> dict[str, float]:
        """Sums over ranks by name, and every rank's own times, which travel as a row of zeros but for one."""
        device = sample.reward.device
        scalars: dict[str, torch.Tensor] = {
            "episodes": sample.totals.episodes,
            "steps": sample.totals.steps,
            **{f"reward/{name}": t for name, t in zip(self._reward_names, sample.totals.terms, strict=True)},
            "reward": sample.reward,
            **{f"loss/{name}": loss for name, loss in sample.losses.items()},
            "kl": sample.kl,
            "learning_rate": sample.learning_rate,
            "action_std": sample.action_std,
            "spread": sample.spread,
            "overflows": sample.overflows,
        }
        times = {"wait_s": sample.wait_s}
        for r in range(self._world_size):
            own = r == self._rank
            times |= {f"collect_s/{r}": sample.collect_s * own, f"learn_s/{r}": sample.learn_s * own}
        packed = torch.cat(
            [
                torch.stack([s.detach().double() for s in scalars.values()]),
                torch.tensor(list(times.values()), dtype=torch.float64, device=device),
            ]
        )
        with self._clock.waiting():
            sum_over_ranks(packed)
        return dict(zip((*scalars, *times), packed.tolist(), strict=True))

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
