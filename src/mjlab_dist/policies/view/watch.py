"""Watch a run while another process trains it: its newest policy, its learning curves, and the other runs."""

from __future__ import annotations

import functools
import html
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import viser

from mjlab_dist.config import TrainConfig, WatchConfig
from mjlab_dist.errors import UserError, printable
from mjlab_dist.policies.policy_episodes import load_env
from mjlab_dist.policies.view.gate import Server, guarded, one_line, report
from mjlab_dist.policies.view.page import MAX_LINES, Page, add_plot
from mjlab_dist.policies.view.runs import STATES, History, Listed, Run, RunList, stamp_of
from mjlab_dist.runs.run_dir import read_config_file

if TYPE_CHECKING:
    from mjlab_dist.env import Env
    from mjlab_dist.policies.view.player import Player

# Columns of metrics.jsonl that are plotted, by the title of the plot
OF_RUN = {"return": "mean_return", "episode length": "mean_episode_length", "steps/s": "steps_per_s"}

# Columns of rank_metrics.jsonl that are plotted, by the title of the plot
OF_RANKS = {"return of each rank": "mean_return", "steps/s of each rank": "steps_per_s"}

# Seed of the start states
START_SEED = 1

# Time between two reads of the files of the run, in s
LOOK_S = 1.0

# Time between two reads of the other runs, in s
LIST_S = 5.0

# Time between two updates of the scene, in s
FRAME_S = 1 / 20

# Text that is shown in a menu without entries
NO_CHOICE: str = "-"

# CSS style of texts on the page
STYLE = "font-size:0.85em;padding:0 0.8em 0.4em"


class Curves:
    """Plots of a run in a tab. They appear when there are rows of metrics."""

    def __init__(self, server: viser.ViserServer) -> None:
        """Add the plots to the current tab of the page."""
        self._server = server
        self._empty = server.gui.add_html('<div style="padding:0 0.8em">The first iteration has not ended yet.</div>')
        self._folder = server.gui.add_folder(None)
        self._plots: dict[str, viser.GuiUplotHandle] = {}
        self._lines: dict[str, tuple[str, ...]] = {}

    def update(self, run: Run) -> None:
        """Show all rows that the run has."""
        plots = {title: [("", run.history, column)] for title, column in OF_RUN.items()}
        terms = [name for name in run.history.newest or {} if name.startswith("reward/")]
        plots["reward terms"] = [(name.removeprefix("reward/"), run.history, name) for name in terms]
        for title, column in OF_RANKS.items():
            plots[title] = [(f"rank {rank}", history, column) for rank, history in sorted(run.ranks.items())]
        with self._server.atomic():
            self._empty.visible = run.history.newest is None
            for title, lines in plots.items():
                self._show(title, lines[:MAX_LINES], len(lines))

    def _show(self, title: str, lines: Sequence[tuple[str, History, str]], num_lines: int) -> None:
        """Show a plot. Each line is a tuple: its label, the rows of metrics, and the name of their column."""
        data = _joined([(history, column) for _, history, column in lines])
        labels = tuple(label for label, _, _ in lines)
        is_same = title in self._plots and labels == self._lines[title]
        if is_same and len(data[0]):
            self._plots[title].data = data
            return
        if title in self._plots:
            self._plots.pop(title).remove()
        if not len(data[0]):
            return
        shown = f"{title} (first {len(lines)} of {num_lines})" if num_lines > len(lines) else title
        order = float([*OF_RUN, "reward terms", *OF_RANKS].index(title))
        with self._folder:
            self._plots[title] = add_plot(
                self._server,
                shown,
                "iteration",
                [label or title for label in labels],
                data,
                has_legend=len(lines) > 1,
                order=order,
            )
        self._lines[title] = labels


def _joined(lines: Sequence[tuple[History, str]]) -> tuple[np.ndarray, ...]:
    """Return iterations, and the values of each line, starting at the first iteration at which all lines have values.

    A value can be missing, for example if no episode of a rank has ended. Repeat the previous value then: if there is a
    NaN, uPlot draws nothing.
    """
    values: list[Mapping[float, float]] = []
    for history, column in lines:
        pairs = zip(history.column("iteration"), history.column(column), strict=True)
        values.append({iteration: value for iteration, value in pairs if math.isfinite(value)})
    rows: list[list[float]] = []
    latest: dict[int, float] = {}
    for iteration in sorted(set().union(*values)):
        latest |= {i: line[iteration] for i, line in enumerate(values) if iteration in line}
        if len(latest) == len(lines):
            rows.append([iteration, *(latest[i] for i in range(len(lines)))])
    return tuple(np.array(rows, dtype=np.float64).reshape(-1, 1 + len(lines)).T.copy())


class Follower:
    """Creates the player of a run when there is a checkpoint, and loads later checkpoints into it.

    A checkpoint that cannot be read is skipped until its file changes: it may have been removed, or may not have been
    copied completely yet.
    """

    def __init__(self, run: Run, train_config: TrainConfig, num_envs: int) -> None:
        """Start without a player."""
        self.run, self.player = run, None
        self.player: Player | None
        self.shown: Path | None = None
        self.chosen: Path | None = None  # the newest
        self._train_config, self._num_envs = train_config, num_envs
        self._env: Env | None = None
        self._loading: tuple[Path, tuple[int, int], Future[None]] | None = None
        self._refused: dict[Path, tuple[int, int]] = {}

    @property
    def unreadable(self) -> Path | None:
        """The checkpoint that should be played but cannot be read; None if there is none."""
        due = self.chosen or next(reversed(self.run.checkpoints.values()), None)
        return due if due is not None and self._is_refused(due) else None

    def update(self) -> None:
        """Create the player when there is a checkpoint. Later, start or finish loading the checkpoint to play."""
        if self.player is None:
            self._make_player()
            return
        if self._loading is not None and self._loading[2].done():
            path, stamp, done = self._loading
            self._loading = None
            if (error := done.exception()) is None:
                self.shown = path
            else:
                self._refuse(path, stamp, error)
        if self._loading is None and (path := self._wanted()) is not None:
            self._loading = (path, stamp_of(path), self.player.load(path))

    def close(self) -> None:
        """Stop the player."""
        if self.player is not None:
            self.player.stop()

    def _make_player(self) -> None:
        from mjlab_dist.learn.networks import load_policy  # imports torch
        from mjlab_dist.policies.view.player import Player  # imports torch

        readable = [path for path in reversed(self.run.checkpoints.values()) if not self._is_refused(path)]
        if readable and self._env is None:
            self._env = load_env(self._train_config, self._num_envs, START_SEED)
        for path in readable:
            assert self._env is not None
            stamp = stamp_of(path)
            try:
                policy = load_policy(self._env, self._train_config, path)
            except Exception as error:  # noqa: BLE001 (a file may be damaged in any way)
                self._refuse(path, stamp, error)
                continue
            self.player = Player(self._env, policy, functools.partial(load_policy, self._env, self._train_config))
            self.shown = path
            return

    def _wanted(self) -> Path | None:
        """Return the checkpoint to load now; None if there is none to load."""
        for path in [self.chosen] if self.chosen is not None else reversed(self.run.checkpoints.values()):
            if path == self.shown:
                return None
            if not self._is_refused(path):
                return path
        return None

    def _refuse(self, path: Path, stamp: tuple[int, int], error: BaseException) -> None:
        self._refused[path] = stamp
        if not isinstance(error, UserError):  # the page names the checkpoint; only other errors need more words
            report(error)

    def _is_refused(self, path: Path) -> bool:
        return path in self._refused and self._refused[path] == stamp_of(path)


class Watcher:
    """A page that shows a run, and can switch to other runs. While the page is not open, only files are read."""

    def __init__(self, server: Server, config: WatchConfig) -> None:
        """Prepare to show runs on a server."""
        torch.set_num_threads(1)
        self._server, self._config = server, config
        self._list = RunList(config.log_root)
        self._wake = threading.Event()
        self._wanted: Path | None = None  # run to switch to
        self._has_switched = False
        self._shown: _Shown

    def open(self, run_dir: Path, train_config: TrainConfig) -> None:
        """Show a run instead of the previous one. The robot appears when the run has a checkpoint."""
        self._server.clear()
        self._server.on_client_connect(lambda _: self._wake.set())
        self._shown = _Shown(self._server, Run(run_dir), train_config, self._config.num_envs, self._want)
        self._look_due_s = self._list_due_s = 0.0

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Show the run until Ctrl-C or until ``is_over`` returns True."""
        while not is_over():
            is_watched = bool(self._server.get_clients())
            is_due = time.monotonic() >= self._look_due_s
            if is_due:
                self._look(is_watched)
            with guarded():
                self._show(is_watched, is_due)
            with guarded():
                self._switch()
            self._wake.wait(FRAME_S if is_watched else LOOK_S)
            self._wake.clear()

    def close(self) -> None:
        """Stop the player."""
        self._shown.follower.close()

    def _want(self, run_dir: Path) -> None:
        self._wanted = run_dir
        self._wake.set()

    def _look(self, is_watched: bool) -> None:
        """Read the files of the run, and load new data."""
        has_more = self._shown.follower.run.look()
        self._look_due_s = time.monotonic() + (0.0 if has_more else LOOK_S)
        try:
            self._shown.load(is_watched)
        except Exception as error:
            if not self._has_switched and self._shown.follower.player is None:
                raise
            self._shown.fail(error)  # the page must continue if the task of another run cannot be built

    def _show(self, is_watched: bool, is_due: bool) -> None:
        if is_due:
            self._shown.show(is_watched)
        if is_due and is_watched and time.monotonic() >= self._list_due_s:
            self._list_due_s = time.monotonic() + LIST_S
            self._shown.show_runs(self._list.look(self._shown.follower.run.run_dir))
        self._shown.update(is_watched)

    def _switch(self) -> None:
        run_dir, self._wanted = self._wanted, None
        if run_dir is None:
            return
        try:
            train_config = read_config_file(run_dir, trust=self._config.trust, uses_ssh=False)
        except Exception as error:  # noqa: BLE001 (a file may be damaged in any way)
            for client in self._server.get_clients().values():
                client.add_notification("Not opened", one_line(error), color="red")
            return
        self._has_switched = True
        self.close()
        self.open(run_dir, train_config)


class _Shown:
    """The page of one run: the state of the run, and below it tabs with the robot's controls, curves and all runs."""

    def __init__(
        self, server: Server, run: Run, train_config: TrainConfig, num_envs: int, want: Callable[[Path], None]
    ) -> None:
        self.follower = Follower(run, train_config, num_envs)
        self._server, self._want = server, want
        self._page: Page | None = None
        self._problem = ""
        self._runs: dict[str, Path] = {}
        self._names: Sequence[str] = ()  # names of checkpoints
        # State and checkpoints
        # The page may switch to another run, but the title of an open page cannot change
        server.entitle(train_config.task, "mjlab_dist watch")
        gui = server.gui
        self._status = gui.add_html("")
        hint = "Load each new checkpoint"
        self._follows = gui.add_checkbox("Follow newest", initial_value=True, hint=hint, visible=False)
        self._checkpoint = gui.add_dropdown("Checkpoint", (NO_CHOICE,), visible=False)
        self._follows.on_update(self._follow_or_stay)
        self._checkpoint.on_update(self._choose)
        # Tabs, until the page of the robot replaces them
        self._tabs = gui.add_tab_group()
        self._add_tabs(self._tabs)

    def load(self, is_watched: bool) -> None:
        """Load the task and its newest policy."""
        follower = self.follower
        if not self._problem and (is_watched or follower.player is None):
            if follower.player is None and follower.run.checkpoints:
                self._show_status("loading the task and its policy ...")
            follower.update()
            if follower.player is not None and self._page is None:
                self._tabs.remove()
                self._page = Page(self._server, follower.player, None)
                self._tabs = self._page.tabs
                self._add_tabs(self._tabs)
                self._follows.visible = self._checkpoint.visible = True
                follower.player.start()

    def show(self, is_watched: bool) -> None:
        """Show the state and the curves."""
        self._show_status(self._policy())
        if is_watched:
            # Checkpoints, newest first
            run = self.follower.run
            if (shown := self.follower.shown) is not None:
                names = tuple(path.name for path in reversed(run.checkpoints.values()))
                names = names if shown.name in names else (shown.name, *names)
                if names != self._names:
                    self._names = names
                    self._checkpoint.options = names
                self._checkpoint.value = (self.follower.chosen or shown).name
            # Curves
            if run.history.newest is not self._newest:
                self._newest = run.history.newest
                self._curves.update(run)

    def update(self, is_watched: bool) -> None:
        """Step the simulation while the page is open, and show the robot."""
        if (player := self.follower.player) is None or self._page is None or self._problem:
            return
        player.watch(is_watched)
        if player.failure is not None:
            self.fail(player.failure)
        elif is_watched:
            self._page.update()

    def fail(self, error: BaseException) -> None:
        """Show the reason why there is no robot, or why it no longer moves."""
        self._problem = f"the robot cannot be shown: {one_line(error)}"
        if not isinstance(error, UserError):
            report(error)

    def show_runs(self, runs: Sequence[Listed]) -> None:
        """Show the list of runs."""
        rows = "".join(map(self._row, runs))
        head = "<tr><th>run</th><th>state</th><th>iteration</th><th>return</th></tr>"
        style = "font-size:0.8em;border-spacing:0.7em 0.2em;text-align:left"
        _set(self._table, f'<table style="{style}">{head}{rows}</table>')
        by_label: dict[str, Path] = {}
        for run in runs:
            label = printable(f"{run.task}/{run.run_dir.name}")
            by_label[printable(str(run.run_dir)) if label in by_label else label] = run.run_dir
        self._runs = by_label
        if tuple(self._runs) != tuple(self._run.options):
            own = self.follower.run.run_dir.resolve()
            self._run.options = tuple(self._runs)
            self._run.value = next(label for label, path in self._runs.items() if path.resolve() == own)

    # Parts of the page

    def _add_tabs(self, tabs: viser.GuiTabGroupHandle) -> None:
        gui = self._server.gui
        with tabs.add_tab("Curves"):
            self._curves = Curves(self._server)
        self._newest: object = None
        with tabs.add_tab("Runs"):
            self._table = gui.add_html("")
            self._run = gui.add_dropdown("Show run", tuple(self._runs) or (NO_CHOICE,))
            self._run.on_update(self._open_other)

    def _show_status(self, policy: str) -> None:
        run = self.follower.run
        lines = (printable(run.run_dir.name), f"{STATES[run.state]}: {run.progress}", policy)
        title, *rest = (f"<div>{html.escape(line)}</div>" for line in lines)
        _set(self._status, f'<div style="{STYLE}"><b>{title}</b>{"".join(rest)}</div>')

    def _policy(self) -> str:
        """Return a description of the policy that is shown."""
        follower = self.follower
        shown = follower.shown
        text = f"policy of iteration {shown.stem.removeprefix('model_')}" if shown else "no checkpoint yet"
        if follower.unreadable is not None:
            text += f"; {follower.unreadable.name} cannot be used"
        return self._problem or text

    # Functions that the controls call. Changes that this process makes have no client, and are ignored.

    def _choose(self, event: viser.GuiEvent[viser.GuiDropdownHandle[str]]) -> None:
        if event.client is not None:
            checkpoints = {path.name: path for path in self.follower.run.checkpoints.values()}
            self.follower.chosen = checkpoints.get(self._checkpoint.value, self.follower.shown)
            self._follows.value = False

    def _follow_or_stay(self, event: viser.GuiEvent[viser.GuiCheckboxHandle]) -> None:
        if event.client is not None:
            self.follower.chosen = None if self._follows.value else self.follower.shown

    def _open_other(self, event: viser.GuiEvent[viser.GuiDropdownHandle[str]]) -> None:
        run_dir = self._runs.get(self._run.value)
        if event.client is not None and run_dir is not None:
            self._want(run_dir)

    @staticmethod
    def _row(run: Listed) -> str:
        iteration = "" if run.iteration is None else f"{run.iteration:,}"
        mean_return = "" if run.mean_return is None else f"{run.mean_return:.1f}"
        name = f"{html.escape(run.task)}<br/>{html.escape(printable(run.run_dir.name))}"
        cells = (name, run.state, iteration, mean_return)
        return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _set(element: viser.GuiHtmlHandle, content: str) -> None:
    """Change a text on the page if it is different."""
    if element.content != content:
        element.content = content
