"""Shows the first env of a player in MuJoCo's own viewer, in a window."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import mujoco
import mujoco.viewer
import numpy as np

from mjlab_dist.errors import UserError
from mjlab_dist.imports import import_triton
from mjlab_dist.messages import emit
from mjlab_dist.play.view.player import Player

# Time between two updates of the window, in s
FRAME_S = 1 / 60

# GLFW's key codes
SPACE, BACKSPACE, RIGHT = 32, 259, 262


def run_native(player: Player) -> None:
    """Show a player until its window is closed. Space pauses, the right arrow steps, backspace resets, and P pushes."""
    # Keys
    keys: dict[int, Callable[[], object]] = {
        SPACE: lambda: player.pause(not player.paused),
        BACKSPACE: player.reset,
        RIGHT: player.step_once,
        ord("P"): player.push,
    }

    def press(key: int) -> None:
        keys.get(key, lambda: None)()

    # Window
    import_triton()
    model = copy.copy(player.env.sim.model)
    data = mujoco.MjData(model)
    try:
        window = mujoco.viewer.launch_passive(model, data, key_callback=press, show_left_ui=False, show_right_ui=False)
    except Exception as error:  # without a usable display, GLFW and MuJoCo raise various errors
        raise UserError(f"--viewer native: no window can be opened ({error}); use --viewer web") from error
    # Show the first env until the window is closed
    with window:
        player.start()
        text = "Viewer: space pauses, right arrow steps, backspace resets, P pushes; close the window to end"
        emit("status", text=text)
        window.cam.type, window.cam.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, player.robot.body
        while window.is_running() and player.failure is None:
            frame = player.frame
            with window.lock():
                for name, value in frame.state.items():
                    if np.isfinite(value[0]).all():
                        getattr(data, name)[:] = value[0]
                mujoco.mj_forward(model, data)
            window.sync()
            time.sleep(FRAME_S)
    if player.failure is not None:
        raise player.failure
