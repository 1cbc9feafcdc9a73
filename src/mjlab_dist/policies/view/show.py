"""Show a policy in a viewer: on a web page until Ctrl-C, or in MuJoCo's own window."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.config import PlayConfig, TrainConfig, WatchConfig
from mjlab_dist.errors import UserError
from mjlab_dist.imports import import_triton
from mjlab_dist.messages import emit
from mjlab_dist.policies import load_env_and_policy
from mjlab_dist.policies.choice import choose_viewer, is_reachable_from_elsewhere
from mjlab_dist.runs.pack_file import is_pack
from mjlab_dist.runs.run_dir import CHECKPOINTS_DIR, list_checkpoints
from mjlab_dist.runs.run_files import run_of

if TYPE_CHECKING:
    from mjlab_dist.policies.view.gate import Server
    from mjlab_dist.policies.view.player import Player

# Number added to the niceness of a process that watches a run, so that ranks on the same cores have priority
NICE = 10

# Time between two updates of the window, in s
FRAME_S = 1 / 60

# GLFW's key codes
SPACE, BACKSPACE, RIGHT = 32, 259, 262


def view(train_config: TrainConfig, checkpoint: Path, config: PlayConfig) -> None:
    """Play a policy in a viewer until Ctrl-C, or until the native viewer's window is closed.

    The viewer's threads are still running when this function returns, so the caller must end the process.
    """
    with contextlib.suppress(KeyboardInterrupt):
        if choose_viewer(config, os.environ) == "native":
            # Needs a display. Imported before the env is loaded, which would choose another MUJOCO_GL
            import mujoco.viewer  # noqa: F401

            _show_in_window(_load(train_config, checkpoint, config))
            return

        server = serve(config)
        server.entitle(train_config.task, train_config.task)
        player = _load(train_config, checkpoint, config)

        from mjlab_dist.policies.view.page import Page  # imports viser

        def checkpoints() -> list[Path]:
            in_run = checkpoint.resolve().parent.name == CHECKPOINTS_DIR and not is_pack(checkpoint)
            return list(list_checkpoints(run_of(checkpoint)).values()) if in_run else [checkpoint]

        page = Page(server, player, checkpoints, checkpoint)
        player.start()
        emit("status", text=f"Viewer: {server.url}  (Ctrl-C ends it)")
        page.run()


def view_dump(train_config: TrainConfig, path: Path, config: PlayConfig) -> None:
    """Show a page with the states that led to numbers that are not finite, until Ctrl-C.

    The viewer's threads are still running when this function returns, so the caller must end the process.
    """
    with contextlib.suppress(KeyboardInterrupt):
        server = serve(config)

        from mjlab_dist.policies.view.dump import DumpPage  # imports viser

        server.entitle(train_config.task, f"{train_config.task} {path.name}")
        page = DumpPage(server, train_config, path)
        emit("status", text=f"Viewer: {server.url}  (Ctrl-C ends it)")
        page.run()


def watch(run_dir: Path, train_config: TrainConfig, config: WatchConfig) -> None:
    """Show a page that follows a run while another process trains it, until Ctrl-C.

    The viewer's threads are still running when this function returns, so the caller must end the process.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # only the training uses GPUs
    with contextlib.suppress(KeyboardInterrupt):
        server = serve(config)

        from mjlab_dist.policies.view.watch import Watcher  # imports torch

        os.nice(NICE)  # after the imports: with this priority, they would take a minute while a run trains
        watcher = Watcher(server, config)
        watcher.open(run_dir, train_config)
        emit("status", text=f"Viewer: {server.url}  (Ctrl-C ends it)")
        watcher.run()


def _load(train_config: TrainConfig, checkpoint: Path, config: PlayConfig) -> Player:
    env, policy = load_env_and_policy(train_config, checkpoint, config.num_played, config.seed)

    from mjlab_dist.learn.networks import load_policy  # imports torch
    from mjlab_dist.policies.view.player import Player  # imports torch

    return Player(env, policy, functools.partial(load_policy, env, train_config))


def serve(config: PlayConfig | WatchConfig) -> Server:
    """Start the server of a page. Call this before slow steps, so that the user learns at once if the port is taken."""
    from mjlab_dist.policies.view.gate import open_server  # imports viser

    if is_reachable_from_elsewhere(config.host):
        emit(
            "warning",
            text=f"--host {config.host}: other machines can open the page with the token in its address, and the "
            "connection is not encrypted; an SSH tunnel to 127.0.0.1 is safer",
        )
    return open_server(config.host, config.port)


def _show_in_window(player: Player) -> None:
    """Show a player until its window is closed. Space pauses, the right arrow steps, backspace resets, and P pushes."""
    import mujoco.viewer

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
