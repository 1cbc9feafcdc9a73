"""Logger for trackio, an optional package that stores runs in a local database and shows them on web pages."""

from __future__ import annotations

import collections
import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.learn.loggers import Logger
from mjlab_dist.messages import emit


class TrackioLogger(Logger):
    """Logger for trackio, which writes in its own thread to its database or a server.

    trackio raises no errors while it logs: it warns, and drops rows that it cannot write.

    Raises:
        ImportError: If the package is not installed.
        Exception: Any error of the library.
    """

    def __init__(self, run_dir: Path, config: TrainConfig, resumed_at: int | None) -> None:
        """Start a run of trackio, or continue it if the run is resumed."""
        import trackio  # an extra, and slow to import

        self._trackio = trackio
        self._step = 0
        self._warnings: collections.deque[str] = collections.deque()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_collected_warnings(Path(trackio.__file__).parent, self._warnings))
            with _text_as_debug():
                self._run = trackio.init(
                    project=config.wandb_project,
                    name=f"{config.task}_{run_dir.name}",
                    group=config.task,
                    config=to_plain(config),
                    resume="never" if resumed_at is None else "allow",
                    embed=False,
                )
            self._closing = stack.pop_all()

    def log(self, row: Mapping[str, float], step: int) -> None:
        self._step = step
        self._run.log(dict(row), step=step)
        self._emit_warnings()

    def video(self, file: Path, iteration: int) -> None:
        """Log a video with the step of the last row."""
        self._run.log({"video": self._trackio.Video(file, caption=f"iteration {iteration}")}, step=self._step)

    def close(self) -> None:
        with self._closing, _text_as_debug():
            self._trackio.finish()
        self._emit_warnings()

    def _emit_warnings(self) -> None:
        while self._warnings:
            emit("warning", text=self._warnings.popleft())


@contextlib.contextmanager
def _text_as_debug() -> Iterator[None]:
    """Show the library's output only with ``--verbose``."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        for line in filter(None, printed.getvalue().splitlines()):
            emit("debug", text=f"trackio: {line}")


@contextlib.contextmanager
def _collected_warnings(package: Path, collected: collections.deque[str]) -> Iterator[None]:
    """Collect the Python warnings of a package, from all threads.

    Otherwise, these warnings would only be in the log files of the ranks.
    """
    show_others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, *args: Any) -> None:
        if Path(filename).is_relative_to(package):
            collected.append(f"trackio: {str(message).partition(chr(10))[0]}")
        else:
            show_others(message, category, filename, *args)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = show_others
