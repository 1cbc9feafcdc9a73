"""Watch a run while another process trains it: its newest policy, its learning curves, and the other runs."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import viser

from mjlab_dist.config import TrainConfig, WatchConfig
from mjlab_dist.errors import UserError
from mjlab_dist.play.view.curves import Curves
from mjlab_dist.play.view.follow import Follower
from mjlab_dist.play.view.gate import Server
from mjlab_dist.play.view.guard import guarded, one_line, report
from mjlab_dist.play.view.page import Page
from mjlab_dist.play.view.runs import STATES, Listed, Run, RunList
from mjlab_dist.runs.run_dir import read_config_file
from mjlab_dist.wording import printable

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
        self._server, self._task, self._want = server, train_config.task, want
        self._page: Page | None = None
        self._problem = ""
        self._runs: dict[str, Path] = {}
        self._names: Sequence[str] = ()  # names of checkpoints
        # State and checkpoints
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
        with tabs.add_tab("Curves", viser.Icon.CHART_LINE):
            self._curves = Curves(self._server)
        self._newest: object = None
        with tabs.add_tab("Runs", viser.Icon.LIST):
            self._table = gui.add_html("")
            self._run = gui.add_dropdown("Show run", tuple(self._runs) or (NO_CHOICE,))
            self._run.on_update(self._open_other)

    def _show_status(self, policy: str) -> None:
        run = self.follower.run
        lines = (printable(f"{self._task} {run.run_dir.name}"), f"{STATES[run.state]}: {run.progress}", policy)
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
