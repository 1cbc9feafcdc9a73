"""Output of a run: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mjlab_dist.errors import RankError, counted, printable
from mjlab_dist.messages import Event, listening
from mjlab_dist.runs.run_dir import CHECKPOINTS_DIR

# Seconds between lines of progress if the output is not a terminal
LINE_EVERY_S = 5.0

# Seconds between updates of the live display
REDRAW_EVERY_S = 0.25

Row = dict[str, Any]


def make_console(**options: Any) -> Console:
    """Return a console that prints text unchanged.

    By default, Rich interprets brackets in paths and messages, such as ``[0]``, as markup, and ``:ok:`` as an emoji.
    Below a cell of a notebook, which cannot move a cursor, a command prints plain lines.
    """
    if "JPY_PARENT_PID" in os.environ:
        options.setdefault("force_terminal", False)
    return Console(highlight=False, markup=False, emoji=False, **options)


def _printable_lines(text: str) -> str:
    """Replace control characters, because names of files and hosts may come from somebody else."""
    return "\n".join(map(printable, text.split("\n")))


class EventPrinter:
    """Prints the progress of compiling and recording and the texts that ranks report, but no metrics. Thread-safe."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        """Create the printer."""
        self._console = console
        self._verbose = verbose
        self._started_at = time.monotonic()
        self._bar: Progress | None = None
        self._printed_at = 0.0
        self._lock = threading.RLock()

    def listen(self, event: Event) -> None:
        """Print an event. Ignore events other than text and progress."""
        if event["kind"] == "compiling":
            if event["done"] == 0:
                modules = counted(event["total"], "module")
                self._console.print(f"Compiling {modules} of physics kernels; later runs load them from the cache.")
            self._show_progress("Compiling", event["done"], event["total"], "modules")
        elif event["kind"] == "recording":
            self._show_progress("Recording", event["done"], event["total"], "frames")
        elif event["kind"] == "warning":
            self._console.print(Text(f"Warning: {_printable_lines(event['text'])}", style="yellow"))
        elif event["kind"] == "status":
            self._console.print(_printable_lines(event["text"]))
        elif event["kind"] == "debug" and self._verbose:
            line = f"[{time.monotonic() - self._started_at:6.2f} s] {event['text']}"
            self._console.print(Text(line, style="dim"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the progress bar, if there is one, and show the cursor again, which the bar hides."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _show_progress(self, what: str, done: int, total: int, unit: str) -> None:
        """Show a bar on a terminal, and a line every few seconds elsewhere."""
        with self._lock:
            if done == 0:
                self.close()  # remove the bar of ranks that ended while they compiled, if the ranks are restarted
                self._printed_at = time.monotonic()
            if not self._console.is_terminal:
                if done and (done == total or time.monotonic() - self._printed_at >= LINE_EVERY_S):
                    self._printed_at = time.monotonic()
                    self._console.print(f"{what} {done} of {total} {unit}")
                return
            if self._bar is None:
                columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
                self._bar = Progress(TextColumn(what), *columns, console=self._console, transient=True)
                self._bar.add_task("", total=total)
                self._bar.start()
            self._bar.update(self._bar.task_ids[0], completed=done)
            if done == total:
                self.close()


class TrainConsole:
    """Output of one training run. Thread-safe."""

    def __init__(self, task: str, console: Console | None = None, *, verbose: bool = False) -> None:
        """Create the output; nothing is printed yet."""
        self._task = task
        self._max_iterations = 0  # a rank reports this number before the first iteration
        self._console = console or make_console(soft_wrap=True)
        self._printer = EventPrinter(self._console, verbose=verbose)
        self._live: Live | None = None
        self._run_dir = Path()
        self._drawn_at = 0.0
        self._row: Row = {}
        self._is_trained = False
        self._lock = threading.RLock()

    def started(self, run_dir: Path, ranks: str) -> None:
        """Print the ranks and their devices, the run directory, and the command that shows the run while it trains."""
        self._run_dir = run_dir
        self.print_line(f"Training {self._task} with {ranks}. Run: {printable(str(run_dir))}")
        self.print_line(f"Watch: uv run mjlab-dist watch {shlex.quote(printable(str(run_dir)))}")

    def listen(self, event: Event) -> None:
        """Show an event of a rank."""
        if event["kind"] == "iteration":
            self._progress(event["row"])
        elif event["kind"] == "length":
            self._max_iterations = event["max_iterations"]
        elif event["kind"] == "last_video":
            self._is_trained = True
            self.print_line(event["text"])
        else:
            self._printer.listen(event)

    def print_line(self, line: str) -> None:
        """Print a line, above the live display if there is one."""
        with self._lock:
            self._console.print(line)

    @property
    def can_stop_gracefully(self) -> bool:
        """Whether at least one iteration is done, so that a checkpoint can be written before the run ends."""
        return bool(self._row)

    def stopping(self, signum: int) -> None:
        """Report that a signal arrived, and how the run ends: after this iteration, or without the last video."""
        if self._is_trained:
            self.print_line(f"{_name(signum)}: ending without the last video.")
            return
        again = " (press Ctrl-C again to end at once)" if signum == signal.SIGINT else ""
        self.print_line(f"{_name(signum)}: after this iteration, the run writes a checkpoint and stops{again}.")

    def stopped(self, signum: int) -> None:
        """Report that a signal ended the run immediately."""
        with self._lock:
            self._close()
            done = self._row.get("iteration", 0)
            when = f"after {done} of {self._max_iterations} iterations" if self._max_iterations else "before training"
            self.print_line(f"Ended at once by {_name(signum)} {when}; all processes have ended.")
            self._print_run_dir()

    def finished(self, run_dir: Path, stopped: bool = False) -> None:
        """Print how the run ended, its directory, and the command that plays it; nothing if no iteration ended."""
        with self._lock:
            self._close()
            row = self._row
            if not row:
                return
            self._run_dir = run_dir
            took = datetime.timedelta(seconds=round(row["elapsed_s"]))
            episodes = "No episode has ended yet."
            if row["mean_return"] is not None:
                episodes = f"Mean return {_number(row['mean_return'])} over the newest episodes."
            how = (
                f"Stopped after {row['iteration']} of {self._max_iterations}"
                if stopped
                else f"Trained {row['iteration']}"
            )
            self.print_line(f"{how} iterations, {row['total_steps']:,} steps, in {took}. {episodes}")
            if stopped:
                self.print_line(f"Resume: uv run train {self._task} --resume {shlex.quote(str(run_dir))}")
            self._print_run_dir()

    def failed(self, report: str, message: str) -> None:
        """Print why a run failed: the traceback, the message, and the run directory if it is known."""
        with self._lock:
            self._close()
            lines = [report.rstrip()] if report else []
            lines.append(f"train: {message}")
            if self._run_dir.name:
                lines.append(f"The run's files are in {self._run_dir}")
            sys.stdout.flush()
            # Write all lines at once: if torchrun started the ranks, other ranks write to the same stream
            sys.stderr.write("\n".join([*lines, ""]))

    def _print_run_dir(self) -> None:
        if not self._run_dir.name:
            return
        self.print_line(f"Run:   {self._run_dir}")
        if any((self._run_dir / CHECKPOINTS_DIR).glob("*.pt")):
            play = f"uv run play {self._task} --run {shlex.quote(str(self._run_dir))}"
            self.print_line(f"Play:  {play} --viewer web")
            self.print_line(f"Video: {play} --video {self._task}.mp4")

    def _progress(self, row: Row) -> None:
        with self._lock:
            self._row = row
            last = row["iteration"] == self._max_iterations
            pace = REDRAW_EVERY_S if self._console.is_terminal else LINE_EVERY_S
            if time.monotonic() - self._drawn_at < pace and not last:
                return
            self._drawn_at = time.monotonic()
            if not self._console.is_terminal:
                self.print_line(self._line(row))
                return
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=False)
                self._live.start()
            self._live.update(self._panel(row), refresh=True)

    def _close(self) -> None:
        self._printer.close()
        if self._live is not None:
            self._live.update(self._panel(self._row), refresh=True)
            self._live.stop()
            self._live = None

    def _time_left(self, row: Row) -> str:
        left = row["elapsed_s"] / row["iteration"] * (self._max_iterations - row["iteration"])
        return str(datetime.timedelta(seconds=round(left)))

    def _line(self, row: Row) -> str:
        return (
            f"iteration {row['iteration']}/{self._max_iterations}  {self._time_left(row)} left  "
            f"{row['steps_per_s']:,.0f} steps/s  return {_number(row['mean_return'])}  "
            f"length {_number(row['mean_episode_length'])}"
        )

    def _panel(self, row: Row) -> Group:
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self._task, style="bold"),
            f"iteration {row['iteration']}/{self._max_iterations}",
            ProgressBar(total=self._max_iterations, completed=row["iteration"], width=24),
            f"{self._time_left(row)} left",
            f"{row['steps_per_s']:,.0f} steps/s",
        )
        body = Table.grid(padding=(0, 2))
        for column in _columns(row):
            body.add_row(*column)
        return Group(head, body)


def _name(signum: int) -> str:
    return "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name


def _columns(row: Row) -> list[tuple[str, Text, str, Text]]:
    """Return table rows: name and value of a metric of the episodes, then name and value of a metric of the update.

    Waiting times, reset envs and overflows are listed after the metrics of the update.
    """
    left = [("return", row["mean_return"]), ("episode length", row["mean_episode_length"])]
    left += [("step reward", row["mean_step_reward"])]
    if "mean_intrinsic_reward" in row:
        left.append(("intrinsic reward", row["mean_intrinsic_reward"]))
    not_of_policy = ("loss/", "curriculum/", "num_termination/")
    left += [(name, value) for name, value in row.items() if "/" in name and not name.startswith(not_of_policy)]
    right = [(name, value) for name, value in row.items() if name.startswith("loss/")]
    names = {"kl": "KL divergence", "value": "value", "entropy": "entropy", "temperature": "temperature"}
    right += [(text, row[name]) for name, text in names.items() if name in row]
    right += [("learning rate", row["learning_rate"]), ("action std", row["action_std"])]
    if row["wait_share"]:
        right.append(("share spent waiting", row["wait_share"]))
    if row["nan_resets"]:
        right.append(("envs reset, not finite", row["nan_resets"]))
    if row["overflowed_envs"]:
        right.append(("envs that overflowed", row["overflowed_envs"]))
    height = max(len(left), len(right))
    blank = [("", None)]
    pairs = zip(left + blank * (height - len(left)), right + blank * (height - len(right)), strict=True)
    return [(a, _cell(a, x), b, _cell(b, y)) for (a, x), (b, y) in pairs]


def _cell(name: str, value: float | None) -> Text:
    return Text(_number(value) if name else "", style="bold")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.4g}"


@contextlib.contextmanager
def waiting_for_ranks(prog: str) -> Iterator[None]:
    """Print events on standard error. At a signal, end the ranks, remove temporary files, and exit."""
    from mjlab_dist.launch.signals import handled_signals  # --help does not need it

    # Handle SIGTERM and SIGHUP like Ctrl-C: end the ranks, remove temporary files, and exit.
    for signum in handled_signals() - {signal.SIGINT}:
        signal.signal(signum, lambda signum, _: sys.exit(128 + signum))
    try:
        with EventPrinter(make_console(stderr=True, soft_wrap=True)) as printer, listening(printer.listen):
            yield
    except KeyboardInterrupt:
        print("Stopped by Ctrl-C; all processes have ended.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except RankError as error:
        print(f"{error.report}{prog}: {error}", file=sys.stderr)
        raise
