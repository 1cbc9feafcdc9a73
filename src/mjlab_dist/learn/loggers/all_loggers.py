"""Write rows of metrics to metrics.jsonl, and to all loggers of a run. Only rank 0 writes."""

from __future__ import annotations

import contextlib
import json
import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mjlab_dist.config import TrainConfig
from mjlab_dist.learn.checkpoint import CheckpointStore
from mjlab_dist.learn.loggers import Logger, MakeLogger, find_logger
from mjlab_dist.learn.metrics import Row
from mjlab_dist.messages import emit
from mjlab_dist.runs.run_dir import METRICS_FILE, RANK_METRICS_FILE, cut_metrics


class LoggerGroup:
    """The loggers that ``--logger`` lists, in the order of the list. Only rank 0 creates them."""

    def __init__(self, config: TrainConfig, run_dir: Path, resumed_at: int | None) -> None:
        """Create the loggers."""
        self.loggers = [_make(name, run_dir, config, resumed_at) for name in config.logger]

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:
        """Log the row of an iteration, together with the rows of the ranks."""
        for logger in self.loggers:
            logger.log(scalars(row, ranks), int(row["iteration"] or 0))

    def video(self, file: Path, iteration: int) -> None:
        """Pass a video of the policy to all loggers."""
        for logger in self.loggers:
            logger.video(file, iteration)

    def checkpoint(self, file: Path, iteration: int) -> None:
        """Pass a checkpoint to all loggers."""
        for logger in self.loggers:
            logger.checkpoint(file, iteration)

    def close(self) -> None:
        """Close all loggers. If one raises an error, the others are still closed."""
        with contextlib.ExitStack() as stack:
            for logger in reversed(self.loggers):
                stack.callback(logger.close)


class _GuardedLogger(Logger):
    """Calls another logger. If that logger raises an error, a warning is printed, and training continues without it."""

    def __init__(self, name: str, make: MakeLogger, run_dir: Path, config: TrainConfig, resumed_at: int | None) -> None:
        self._name = name
        self._logger: Logger | None = None
        with self._guarded("when it was created"):
            self._logger = make(run_dir, config, resumed_at)

    def log(self, row: Mapping[str, float], step: int) -> None:
        with self._guarded(f"in log() at iteration {step}"):
            if self._logger is not None:
                self._logger.log(row, step)

    def video(self, file: Path, iteration: int) -> None:
        with self._guarded(f"in video() at iteration {iteration}"):
            if self._logger is not None:
                self._logger.video(file, iteration)

    def checkpoint(self, file: Path, iteration: int) -> None:
        with self._guarded(f"in checkpoint() at iteration {iteration}"):
            if self._logger is not None:
                self._logger.checkpoint(file, iteration)

    def close(self) -> None:
        with self._guarded("in close()"):
            if self._logger is not None:
                self._logger.close()

    @contextlib.contextmanager
    def _guarded(self, where: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 (users' loggers raise anything)
            self._logger = None
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            emit(
                "warning",
                text=f"logger {self._name} failed {where} ({reason}); it receives no further rows, but "
                f"{METRICS_FILE} has every row",
            )
            emit("debug", text="".join(traceback.format_exception(error)).rstrip())


def scalars(row: Row, ranks: Sequence[Row] = ()) -> dict[str, float]:
    """Return the numbers to plot for an iteration, by name. Each name starts with a group, such as ``train/``."""
    of_ranks = {f"rank_{name}/{own['rank']}": value for own in ranks for name, value in own.items() if name != "rank"}
    return {
        name if "/" in name else f"{'perf' if name.endswith('_s') else 'train'}/{name}": float(value)
        for name, value in {**row, **of_ranks}.items()
        if value is not None and name != "iteration" and not name.startswith("rank_iteration/")
    }


def _make(name: str, run_dir: Path, config: TrainConfig, resumed_at: int | None) -> Logger:
    if name == "tensorboard":
        from mjlab_dist.learn.loggers.tensorboard_logger import TensorBoardLogger  # slow to import

        return TensorBoardLogger(run_dir, config, resumed_at)
    if name == "wandb":
        from mjlab_dist.learn.loggers.wandb_logger import WandbLogger

        return _GuardedLogger(name, WandbLogger, run_dir, config, resumed_at)
    if name == "trackio":
        from mjlab_dist.learn.loggers.trackio_logger import TrackioLogger

        return _GuardedLogger(name, TrackioLogger, run_dir, config, resumed_at)
    return _GuardedLogger(name, find_logger(name), run_dir, config, resumed_at)


class Writer(Protocol):
    """A destination of rows."""

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:
        """Write one row."""

    def close(self) -> None:
        """Finish writing. :meth:`write` is not called after this."""


class JsonlWriter:
    """metrics.jsonl and rank_metrics.jsonl: one JSON object per line, complete after every iteration."""

    def __init__(self, run_dir: Path, resumed_at: int | None) -> None:
        """Open metrics.jsonl. In a resumed run, remove the rows after the iteration of its checkpoint."""
        if resumed_at is not None:
            for name in (METRICS_FILE, RANK_METRICS_FILE):
                cut_metrics(run_dir, resumed_at, name)
        self._file = (run_dir / METRICS_FILE).open("a", buffering=1)
        self._path_of_ranks = run_dir / RANK_METRICS_FILE

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:
        """Append the row of an iteration to metrics.jsonl, and the rows of the ranks to rank_metrics.jsonl."""
        self._file.write(_line_of(row))
        if ranks:
            with self._path_of_ranks.open("a") as file:
                file.write("".join(map(_line_of, ranks)))

    def close(self) -> None:
        """Close metrics.jsonl."""
        self._file.close()


class CheckpointWriter:
    """Passes checkpoints to the loggers, which must be closed later, after the files are on disk."""

    def __init__(self, store: CheckpointStore, loggers: LoggerGroup) -> None:
        self._store = store
        store.receive = loggers.checkpoint

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:  # noqa: ARG002 (only the loggers write rows)
        """Pass the checkpoints that were written since the last row to the loggers."""
        self._store.pass_on()

    def close(self) -> None:
        """Wait for the last checkpoint, and pass it to the loggers."""
        self._store.wait()


def writers(config: TrainConfig, run_dir: Path, resumed_at: int | None) -> tuple[JsonlWriter, LoggerGroup]:
    """Create the writers of a run, for rank 0: metrics.jsonl, and the loggers.

    ``resumed_at`` is the iteration of the checkpoint, 0 if a resumed run has none, and None for a new run.
    """
    return JsonlWriter(run_dir, resumed_at), LoggerGroup(config, run_dir, resumed_at)


def _line_of(row: Row) -> str:
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"
