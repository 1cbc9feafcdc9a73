"""The page of a dump. It shows, step by step, the stored states that led to a number that is not finite."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import mujoco
import numpy as np
import viser

from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.learn import finite
from mjlab_dist.policies.view.gate import guarded
from mjlab_dist.policies.view.player import Robot
from mjlab_dist.policies.view.viser_scene import Scene
from mjlab_dist.sim import build_model

# Time between two checks of the controls, in s
FRAME_S = 0.05

# Fields of the stored states that the scene needs
SHOWN_FIELDS = ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat")


class DumpPage:
    """Shows a slider over the stored states of an env, the numbers that were not finite, and the affected bodies."""

    def __init__(self, server: viser.ViserServer, train_config: TrainConfig, path: Path) -> None:
        """Read a dump, and add everything to the server's page."""
        self._dump = finite.load(path, train_config.task)
        self._model = build_model(train_config.env.sim)
        state = self._dump["state"]
        self._state = {name: state[name].numpy() for name in SHOWN_FIELDS if name in state}
        width = self._state["qpos"].shape[2]
        if width != self._model.nq:
            raise UserError(
                f"--nan-dump {path}: its states have {width} positions (qpos), but the model has {self._model.nq}; "
                "drop the --env flags that change the model"
            )
        self._root = Robot.of(self._model).root
        self._scene = Scene(server, self._model, 1)
        self._server, self._is_changed, self._num_clients = server, True, 0
        self._add_controls()

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Show the state that is chosen on the page, until Ctrl-C or until ``is_over`` returns True."""
        while not is_over():
            num_clients = len(self._server.get_clients())
            if self._is_changed or num_clients > self._num_clients:
                self._is_changed = False
                with guarded():
                    self._show()
            self._num_clients = num_clients
            time.sleep(FRAME_S)

    def _add_controls(self) -> None:
        # Controls
        gui, dump = self._server.gui, self._dump
        self._env = gui.add_dropdown("Env", [str(i) for i in dump["env_ids"].tolist()])
        self._step = gui.add_slider("Step", min=0, max=self._last_step() or 1, step=1, initial_value=self._last_step())
        back = gui.add_button("Previous", icon=viser.Icon.PLAYER_TRACK_PREV)
        ahead = gui.add_button("Next", icon=viser.Icon.PLAYER_TRACK_NEXT)
        follow = gui.add_checkbox("Follow the robot", initial_value=True)
        self._text = gui.add_html("")

        # Functions that the controls call
        @self._env.on_update
        def _(_: object) -> None:
            self._step.max = self._last_step() or 1
            self._step.value = self._last_step()
            self._is_changed = True

        @self._step.on_update
        def _(_: object) -> None:
            self._is_changed = True

        @back.on_click
        def _(_: object) -> None:
            self._step.value = max(0, self._step.value - 1)

        @ahead.on_click
        def _(_: object) -> None:
            self._step.value = min(self._last_step(), self._step.value + 1)

        @follow.on_update
        def _(_: object) -> None:
            self._scene.follows_robot = follow.value
            self._is_changed = True

    def _row(self) -> int:
        """Return the row of the chosen env in the dump."""
        return self._dump["env_ids"].tolist().index(int(self._env.value))

    def _last_step(self) -> int:
        return int(self._dump["steps"][self._row()])

    def _show(self) -> None:
        row, step = self._row(), min(int(self._step.value), self._last_step())
        names = self._dump["names"][row]
        is_finite = [all(np.isfinite(v[t, row]).all() for v in self._state.values()) for t in range(step + 1)]
        shown = max(np.flatnonzero(is_finite).tolist(), default=None)
        with self._server.atomic():
            if shown is not None:
                state = {name: values[shown, row : row + 1] for name, values in self._state.items()}
                # A dump has no origins: show the terrain around the robot
                place = np.zeros((1, 3))
                if self._root is not None:
                    place[:, :2] = state["qpos"][:, self._root.qpos][:, :2]
                self._scene.show(state, place)
                self._scene.mark(concerned_bodies(self._model, names), state)
            self._text.content = self._describe(names, row, step, shown)

    def _describe(self, names: Mapping[str, list[str]], row: int, step: int, shown: int | None) -> str:
        last = self._last_step()
        lines = [f"Step {step} of {last}; in step {last}, these were not finite:"]
        lines += [f"<b>{html.escape(kind)}</b>: {html.escape(', '.join(found))}" for kind, found in names.items()]
        if step > 0:
            actions = ", ".join(f"{value:.4g}" for value in self._dump["actions"][step - 1, row].tolist())
            lines.append(f"actions of step {step}: {actions}")
        for field in ("qpos", "qvel"):
            numbers = ", ".join(f"{value:.4g}" for value in self._state[field][step, row].tolist())
            lines.append(f"{field}: {numbers}")
        if shown is None:
            lines.append("No recorded state is finite; the start pose is shown.")
        elif shown != step:
            lines.append(f"This state is not finite; the picture shows the state after step {shown}.")
        return f'<div style="font-size:0.85em;padding:0 0.8em">{"<br/>".join(lines)}</div>'


def concerned_bodies(model: mujoco.MjModel, names: Mapping[str, list[str]]) -> dict[str, int]:
    """Return the ids of the bodies with joints or actuators whose values were not finite, by name of the body."""
    joints = {model.joint(i).name: int(model.jnt_bodyid[i]) for i in range(model.njnt)}
    driven = {
        model.actuator(i).name: int(model.jnt_bodyid[model.actuator_trnid[i, 0]])
        for i in range(model.nu)
        if model.actuator_trntype[i] == mujoco.mjtTrn.mjTRN_JOINT
    }
    known = {"physics qpos": joints, "physics qvel": joints, "physics act": driven, "action": driven}
    bodies = [
        known[kind][name] for kind, found in names.items() if kind in known for name in found if name in known[kind]
    ]
    return {model.body(body).name or f"body {body}": body for body in bodies}
