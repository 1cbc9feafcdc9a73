"""The interface of loggers, which show the metrics of a run. ``--logger package.module:Class`` adds your own.

docs/run-files.md explains the interface, and docs/examples/csv_logger.py is an example. Only rank 0 creates loggers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.run import BUILT_IN
from mjlab_dist.config.terms import resolve
from mjlab_dist.errors import UserError
from mjlab_dist.imports import require_extra


class Logger:
    """Base class of loggers. A logger of your own must implement :meth:`log`.

    Rank 0 creates one instance after all ranks have built their envs, and calls it between iterations, in the thread
    that trains. Training waits for each call: a slow logger makes iterations longer, and a call that takes longer than
    ``--hang-timeout`` ends the run. A logger must not call collectives of ``torch.distributed``, because they need all
    ranks, and the other ranks have no logger.

    If a call raises an error, training continues without this logger, after one warning. It is not called again.
    """

    def __init__(self, run_dir: Path, config: TrainConfig, resumed_at: int | None) -> None:
        """Open the logger.

        Args:
            run_dir: Absolute path of the run directory, which exists. The logger may write files into it.
            config: The run's config.
            resumed_at: Number of iterations of the checkpoint from which the run resumes; 0 if the run had no
                checkpoint yet. Iterations after this checkpoint are repeated, so their earlier rows are obsolete. None
                for a new run.
        """

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Receive the metrics of one iteration, right after it.

        Args:
            row: Values by name. The columns are those of metrics.jsonl (docs/run-files.md), with the group in front:
                ``train/mean_return``, ``perf/steps_per_s``, ``reward/<term>``. With ``--log-ranks``, there are also
                ``rank_steps_per_s/<rank>`` and so on. A value that is not known is not in the row. A value may
                be NaN or infinite.
            step: Number of completed iterations, from 1.
        """
        raise NotImplementedError

    def video(self, file: Path, iteration: int) -> None:
        """Receive a video of the policy (``--video-interval``), within a few iterations after it is finished.

        Args:
            file: The mp4 file. It stays in the run directory.
            iteration: Number of completed iterations of the checkpoint that the video shows. It may be less than the
                last ``step`` of :meth:`log`.
        """

    def checkpoint(self, file: Path, iteration: int) -> None:
        """Receive a checkpoint after it is written, and before :meth:`log` receives the row of a later iteration.

        Args:
            file: The file. ``--checkpoint.keep-last`` removes this file later: read or copy it at once.
            iteration: Number of completed iterations of the checkpoint.
        """

    def close(self) -> None:
        """Close the logger: at the end of training, after a stop by Ctrl-C or SIGTERM, and after most errors.

        It is not called if the process is killed.
        """


class MakeLogger(Protocol):
    """A logger class, or a function that creates a logger."""

    def __call__(self, run_dir: Path, config: TrainConfig, resumed_at: int | None, /) -> Logger:
        """Create a logger. The arguments are those of :class:`Logger`."""
        ...


def check_loggers(names: Sequence[str]) -> None:
    """Raise if a logger cannot be created: its package is not installed, or there is no such class.

    Args:
        names: Value of ``--logger``, which has passed :func:`~mjlab_dist.config.run.validate_loggers`.

    Raises:
        UserError: One line that names the flag, its value and the fix.
    """
    for name in names:
        if name in {"trackio", "wandb"}:
            require_extra(name, f"--logger {name}")
        elif name not in BUILT_IN:
            find_logger(name)


def find_logger(name: str) -> MakeLogger:
    """Return the class of a user's logger, without creating an instance.

    Args:
        name: The class, as ``package.module:Class``.

    Raises:
        UserError: If the class cannot be imported, does not take the arguments of :class:`Logger`, or lacks a method.
    """
    flag = f"--logger {name}"
    try:
        found = resolve(name)
    except Exception as error:  # importing a module can raise any error
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{flag}: cannot be imported ({reason}); give package.module:Class") from error
    for method in ("log", "video", "checkpoint", "close"):
        own = getattr(found, method, None)
        if not callable(own) or own is Logger.log:
            raise UserError(
                f"{flag}: has no method {method}; derive the class from mjlab_dist.Logger, and define {method}"
            )
    try:
        inspect.signature(found).bind("run_dir", "config", "resumed_at")
    except (TypeError, ValueError) as error:
        raise UserError(f"{flag}: {error}; let the class take run_dir, config and resumed_at") from error
    return found
