"""Combine all loggers of a run into one writer of rows."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mjlab_dist.config import TrainConfig
from mjlab_dist.learn.loggers.base import Logger, MakeLogger, find_logger
from mjlab_dist.learn.metrics import Row
from mjlab_dist.messages import emit
from mjlab_dist.runs.run_dir import METRICS_FILE


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
