"""The web page of a player: its controls, charts of an env, and the scene.

All users who have the page open see and control the same envs.
"""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import viser
from viser import uplot

from mjlab_dist.policies.view.gate import guarded
from mjlab_dist.policies.view.player import SOURCES, Frame, Player
from mjlab_dist.policies.view.viser_scene import Scene

# Maximum number of lines in a plot
MAX_LINES = 12

# Height of a plot, in pixels
PLOT_HEIGHT = 170

# Space above, to the right of, below and to the left of a plot, in pixels. There is space on the right because half
# of the last label of the x axis may be beyond the end of the axis.
PADDING = (8, 24, 0, 0)

# Style of the x axis and of the y axis: no ticks, and room for a label such as 1,000,000
AXES: tuple[uplot.Axis, ...] = ({"ticks": {"show": False}, "size": 30}, {"ticks": {"show": False}, "size": 72})

# Time between two updates of the scene, in s
FRAME_S = 1 / 30

# Time between two updates of charts, in s
CHARTS_S = 0.15

# Time between two checks for new checkpoints, in s
FILES_S = 2.0

# Speeds to choose from, relative to real time
SPEEDS = ("0.1", "0.25", "0.5", "1", "2", "4")


class RewardBars:
    """A bar for each reward term. It shows the term's weighted value in the latest step of an env.

    Bars are scaled so that the longest bar of the latest steps has the full width.
    """

    def __init__(self, server: viser.ViserServer, names: Sequence[str]) -> None:
        """Add the bars to the current folder of the page."""
        self._names = names
        self._scale = 0.0
        self._element = server.gui.add_html("")

    def update(self, frame: Frame, env_id: int) -> None:
        """Show a step."""
        values = np.nan_to_num(frame.rewards[:, env_id])
        self._scale = max(0.98 * self._scale, float(np.abs(values).max(initial=0.0)), 1e-9)
        rows = [self._row(name, float(value)) for name, value in zip(self._names, values, strict=True)]
        total = f"<b>sum {values.sum():+.4f}</b> &nbsp; return so far {frame.returns[env_id]:+.2f}"
        self._element.content = f'<div style="font-size:0.8em;padding:0 0.8em">{total}{"".join(rows)}</div>'

    def _row(self, name: str, value: float) -> str:
        color = "#2f9e44" if value >= 0 else "#e03131"
        bar = f"width:{100 * abs(value) / self._scale:.1f}%;height:0.5em;background:{color}"
        label = f'<div style="display:flex;justify-content:space-between"><span>{html.escape(name)}</span>'
        return f'{label}<span>{value:+.4f}</span></div><div style="{bar}"></div>'


class Plot:
    """Plot of values over the latest seconds, with one line per value."""

    def __init__(self, server: viser.ViserServer, title: str, names: Sequence[str]) -> None:
        """Add the plot to the current folder of the page."""
        self._num_lines = min(len(names), MAX_LINES)
        shown = f" (first {MAX_LINES} of {len(names)})" if len(names) > MAX_LINES else ""
        empty = (np.zeros(1),) * (1 + self._num_lines)
        has_legend = self._num_lines <= 6
        self._element = add_plot(server, title + shown, "s", names[:MAX_LINES], empty, has_legend=has_legend)

    def update(self, times_s: np.ndarray, values: np.ndarray) -> None:
        """Show values."""
        lines = np.nan_to_num(values[:, : self._num_lines].astype(np.float64))
        self._element.data = (times_s, *lines.T.copy())

    def remove(self) -> None:
        """Remove the plot from the page."""
        self._element.remove()


def add_plot(
    server: viser.ViserServer,
    title: str,
    x: str,
    lines: Sequence[str],
    data: tuple[np.ndarray, ...],
    *,
    has_legend: bool,
    order: float | None = None,
) -> viser.GuiUplotHandle:
    """Add a plot of lines to the current folder or tab of the page."""
    # Hues of lines differ by the golden angle, so that those of nearby lines are not alike
    series = [
        uplot.Series(label=name, stroke=f"hsl({i * 137.508 % 360:.1f}, 75%, 42%)", width=1.5)
        for i, name in enumerate(lines)
    ]
    return server.gui.add_uplot(
        data=data,
        series=(uplot.Series(label=x), *series),
        title=title,
        scales={"x": uplot.Scale(time=False, auto=True), "y": uplot.Scale(auto=True)},
        axes=AXES,
        legend=uplot.Legend(show=has_legend),
        height=PLOT_HEIGHT,
        padding=PADDING,
        order=order,
    )


class Page:
    """Controls and charts of a player on a server."""

    def __init__(
        self,
        server: viser.ViserServer,
        player: Player,
        checkpoints: Callable[[], Sequence[Path]] | None,
        checkpoint: Path | None = None,
    ) -> None:
        """Add everything to the server's page."""
        self._server, self._player = server, player
        env = player.env
        self.scene = Scene(server, env.sim.model, env.num_envs, player.velocity_command)
        self._look_for_checkpoints: Callable[[], None] = lambda: None
        self._shown: Frame | None = None
        self._is_changed = True
        self._num_clients = 0
        self._charts_due_s = self._files_due_s = 0.0
        # Controls
        self.tabs = tabs = server.gui.add_tab_group()
        with tabs.add_tab("Play"):
            self._status = server.gui.add_html("")
            self._add_time()
            source = server.gui.add_dropdown("Actions", SOURCES, initial_value=player.source)

            @source.on_update
            def _(_: object) -> None:
                player.source = source.value

            if checkpoints is not None:
                self._add_checkpoints(checkpoints, checkpoint)
            for name in env.cfg.commands:
                command = env.find_command(name)
                ranges = command.ranges.tolist()
                if ranges:
                    names = command.drawn_names or tuple(str(i) for i in range(len(ranges)))
                    with server.gui.add_folder(f"Command {name}"):
                        self._add_command(name, dict(zip(names, ranges, strict=True)))
        with tabs.add_tab("Rewards"):
            self._bars = RewardBars(server, env.reward_names)
        self._plots_tab = tabs.add_tab("Plots")
        with self._plots_tab:
            self._add_plots()
        with tabs.add_tab("Show"):
            self._add_scene()

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Show the player until Ctrl-C or until ``is_over`` returns True."""
        while not is_over():
            with guarded():
                self.update()
            if self._player.failure is not None:
                raise self._player.failure
            time.sleep(FRAME_S)

    def update(self) -> None:
        """Show the latest frame. At longer intervals, also update charts and look for new checkpoints."""
        frame, now_s = self._player.frame, time.monotonic()
        num_clients = len(self._server.get_clients())
        is_new = frame is not self._shown or self._is_changed or num_clients > self._num_clients
        self._num_clients = num_clients
        if num_clients and is_new:
            self._is_changed = False
            self._shown = frame
            self.scene.show(frame.state, frame.origins, frame.commands)
        if num_clients and now_s >= self._charts_due_s:
            self._charts_due_s = now_s + CHARTS_S
            self._update_charts(frame)
        if now_s >= self._files_due_s:
            self._files_due_s = now_s + FILES_S
            self._look_for_checkpoints()

    # Time

    def _add_time(self) -> None:
        gui, player = self._server.gui, self._player
        # Pause and single steps
        pause = gui.add_checkbox("Pause", player.paused)
        pause.on_update(lambda _: player.pause(pause.value))
        step = gui.add_button("Single step", icon=viser.Icon.PLAYER_TRACK_NEXT)

        @step.on_click
        def _(_: object) -> None:
            pause.value = True
            player.pause()
            player.step_once()

        # Speed and reset
        speed = gui.add_button_group("Speed", SPEEDS)
        speed.on_click(lambda _: player.set_speed(float(speed.value)))
        reset = gui.add_button("Reset", icon=viser.Icon.REFRESH)

        @reset.on_click
        def _(_: object) -> None:
            player.reset()

        # Pushes
        unit = "m/s" if player.robot.root is not None else "rad/s"
        size = gui.add_slider(f"Push {unit}", min=0.1, max=3.0, step=0.1, initial_value=1.0)
        push = gui.add_button("Push", icon=viser.Icon.HAND_MOVE)

        @push.on_click
        def _(_: object) -> None:
            player.push(size.value)

    # Checkpoints and commands

    def _add_checkpoints(self, checkpoints: Callable[[], Sequence[Path]], checkpoint: Path | None) -> None:
        first = checkpoint.name if checkpoint is not None else "-"
        names = [path.name for path in checkpoints()]
        names = names if first in names else [first, *names]
        chosen = self._server.gui.add_dropdown("Checkpoint", names, initial_value=first)

        def notify(text: str) -> None:
            for client in self._server.get_clients().values():
                client.add_notification("Not done", text, color="red")

        def report(done: Future[None]) -> None:
            if (error := done.exception()) is not None:
                notify(str(error))

        @chosen.on_update
        def _(_: object) -> None:
            paths = {path.name: path for path in (*checkpoints(), *([checkpoint] if checkpoint else []))}
            if chosen.value in paths:
                self._player.load(paths[chosen.value]).add_done_callback(report)
            else:
                notify(f"{chosen.value}: no longer exists")

        def look() -> None:
            found = tuple(path.name for path in checkpoints())
            if found and found != tuple(chosen.options):
                chosen.options = found if chosen.value in found else (chosen.value, *found)

        self._look_for_checkpoints = look

    def _add_command(self, name: str, ranges: dict[str, list[float]]) -> None:
        gui = self._server.gui
        hint = "Set the command by hand instead of sampling it"
        is_manual = gui.add_checkbox("Manual", initial_value=False, hint=hint)
        sliders = [self._add_slider(label, *bounds) for label, bounds in ranges.items()]
        has_heading = heading = None
        if name == self._player.velocity_command:
            hint = "Compute the yaw rate that turns a robot to the heading below"
            has_heading = gui.add_checkbox("Hold heading", initial_value=False, hint=hint)
            heading = gui.add_slider("heading rad", min=-3.14, max=3.14, step=0.01, initial_value=0.0)

        def change(_: object) -> None:
            angle = heading.value if heading is not None and has_heading is not None and has_heading.value else None
            numbers = [slider.value for slider in sliders] if is_manual.value else None
            self._player.hold_command(name, numbers, angle if is_manual.value else None)

        def take_over(event: object) -> None:
            is_manual.value = True
            change(event)

        is_manual.on_update(change)
        for element in (*sliders, has_heading, heading):
            if element is not None:
                element.on_update(take_over)

    def _add_slider(self, label: str, low: float, high: float) -> viser.GuiSliderHandle[float]:
        low, high = (low - 1.0, high + 1.0) if low == high else (low, high)
        step = 10.0 ** math.floor(math.log10((high - low) / 50))
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        start = 0.0 if low <= 0.0 <= high else low
        digits = max(0, -round(math.log10(step)))
        low, high = round(low, digits), round(high, digits)
        return self._server.gui.add_slider(label, min=low, max=high, step=step, initial_value=round(start, digits))

    # Charts

    def _add_plots(self) -> None:
        env, gui = self._player.env, self._server.gui
        columns = env.observation_columns()
        self._terms = {
            f"{group}.{name}": (group, part) for group, terms in columns.items() for name, part in terms.items()
        }
        self._chosen_term = gui.add_dropdown("Observation", list(self._terms))
        self._observation_folder = gui.add_folder(None)
        self._add_observation()
        self._actions = Plot(self._server, "actions", env.action_names)
        self._commands: dict[str, Plot] = {}
        for name, value in self._player.frame.commands.items():
            if width := value.shape[1]:
                drawn = env.find_command(name).drawn_names
                names = drawn if len(drawn) == width else [str(i) for i in range(width)]
                self._commands[name] = Plot(self._server, f"command {name}", names)

    def _add_observation(self) -> None:
        self._term = self._chosen_term.value
        _, part = self._terms[self._term]
        with self._observation_folder:
            names = [str(i) for i in range(part.stop - part.start)]
            self._observation = Plot(self._server, self._term, names)

    def _update_charts(self, frame: Frame) -> None:
        player, env_id, frames = self._player, self.scene.env_id, list(self._player.history)
        # Status
        speed = "paused" if player.paused else f"{player.measured_speed:.2f} x real time (chosen: {player.speed:g} x)"
        episode = f"episode: {frame.episode_steps[env_id] * player.env.step_dt_s:.2f} s"
        self._status.content = (
            f'<div style="font-size:0.85em;padding:0 0.8em 0.4em">{speed}<br/>{episode}, return '
            f"{frame.returns[env_id]:.2f}, step {frame.step}</div>"
        )
        # Bars and plots
        self._bars.update(frame, env_id)
        if self._term != self._chosen_term.value:  # here, because viser calls functions of controls in another thread
            with self._server.atomic():
                self._observation.remove()
                self._add_observation()
        times_s = np.array([one.time_s for one in frames])
        group, part = self._terms[self._term]
        self._observation.update(times_s, np.stack([one.observations[group][env_id, part] for one in frames]))
        self._actions.update(times_s, np.stack([one.actions[env_id] for one in frames]))
        for name, plot in self._commands.items():
            plot.update(times_s, np.stack([one.commands[name][env_id] for one in frames]))

    # Scene

    def _add_scene(self) -> None:
        gui, scene, num_envs = self._server.gui, self.scene, self._player.env.num_envs
        if num_envs > 1:
            env = gui.add_dropdown("Env", [str(i) for i in range(num_envs)])

            @env.on_update
            def _(_: object) -> None:
                scene.env_id = int(env.value)
                self._is_changed = True

        self._add_switch("Follow the robot", "follows_robot")
        self._add_switch("Contact points and forces", "shows_contacts")
        if self._player.velocity_command:
            self._add_switch("Velocities: green commanded, blue measured", "shows_velocities")
        if num_envs > 1:
            self._add_switch("Only this env", "hides_others")
        self._add_switch("Collision shapes", "shows_collision_geoms")

    def _add_switch(self, label: str, attribute: str) -> None:
        switch = self._server.gui.add_checkbox(label, getattr(self.scene, attribute))

        @switch.on_update
        def _(_: object) -> None:
            setattr(self.scene, attribute, switch.value)
            self._is_changed = True
