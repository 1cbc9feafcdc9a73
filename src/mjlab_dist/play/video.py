"""Render the first env, and write a video."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    import torch

    from mjlab_dist.env import Env


VIDEO_FPS = 30
"""Maximum number of frames per second; steps in between are not rendered."""


VIDEO_SIZE = (480, 848)
"""Height and width of a frame in pixels; multiples of 16, as video codecs require."""


DRAWN_GROUND_M = 10.0
"""Distance from the first env's origin up to which terrain is rendered, in m.

Without a GPU, a complete terrain takes many seconds per frame.
"""


class Video:
    """Video file of env 0."""

    def __init__(self, path: Path, env: Env, steps_per_s: float | None = None) -> None:
        import imageio  # noqa: PLC0415 (slow to import)

        self._env = env
        self._stride = 1 if steps_per_s else max(1, round(1 / (VIDEO_FPS * env.step_dt_s)))
        self._step = 0
        self._render = _renderer(env)
        fps = steps_per_s or 1 / (env.step_dt_s * self._stride)
        self._writer = (
            imageio.get_writer(path, fps=fps)
            if path.suffix != ".gif"
            else imageio.get_writer(path, duration=1000 / fps)
        )

    def frame(self) -> None:
        """Render the current state, if a frame is due."""
        if self._step % self._stride == 0:
            self._writer.append_data(self._render())
        self._step += 1

    def close(self) -> None:
        """Finish writing the file."""
        self._writer.close()


def poses_of(env: Env) -> dict[str, torch.Tensor]:
    """Return views of the state that defines all poses in the first env, by field of MuJoCo's data."""
    return {name: env.sim.physics[name][0] for name in ("qpos", "mocap_pos", "mocap_quat") if name in env.sim.physics}


def _drawn_model(env: Env) -> mujoco.MjModel:
    """Return the model with only the terrain around the first env."""
    from mjlab_dist.sim.terrain import crop_terrain  # noqa: PLC0415 (with MuJoCo, which is slow to import)

    x, y, _ = env.origins[0].tolist()
    return crop_terrain(env.sim.model, (x, y), DRAWN_GROUND_M)


def _renderer(env: Env) -> Callable[[], np.ndarray]:
    """Return MuJoCo's renderer if EGL (or the backend in MUJOCO_GL) works, else MuJoCo Warp's, without OpenGL."""
    import mujoco

    from mjlab_dist.sim.quiet import quiet  # noqa: PLC0415 (imports MuJoCo)

    model = _drawn_model(env)
    height, width = VIDEO_SIZE
    model.vis.global_.offheight, model.vis.global_.offwidth = height, width
    camera = 0 if model.ncam else -1
    data = mujoco.MjData(model)
    try:
        renderer = mujoco.Renderer(model, height, width)
    except Exception as error:  # noqa: BLE001
        # Without a driver, PyOpenGL raises various errors: AttributeError, ImportError, EGLError, RuntimeError.
        print(f"MuJoCo cannot render here ({error}); using MuJoCo Warp's slower ray tracer.", file=sys.stderr)
        return _ray_tracer(env)

    def draw() -> np.ndarray:
        for name, pose in poses_of(env).items():
            getattr(data, name)[:] = pose.numpy()
        with quiet():
            mujoco.mj_forward(model, data)
        renderer.update_scene(data, camera)
        return renderer.render()

    return draw


def _ray_tracer(env: Env) -> Callable[[], np.ndarray]:
    import mujoco
    import mujoco_warp as mjw
    import numpy as np  # noqa: PLC0415
    import warp as wp

    from mjlab_dist.sim.quiet import quiet  # noqa: PLC0415 (imports MuJoCo)

    # Model, data and renderer of one env
    model = _drawn_model(env)
    height, width = VIDEO_SIZE
    data = mujoco.MjData(model)
    with wp.ScopedDevice("cpu"), quiet():
        warp_model = mjw.put_model(model)
        warp_data = mjw.put_data(model, data, nworld=1)
        context = mjw.create_render_context(
            model,
            nworld=1,
            cam_res=(width, height),
            cam_active=[0],
            render_rgb=True,
            use_shadows=True,
            render_skybox=True,
        )
        pixels: Any = wp.zeros((1, height, width), dtype=wp.vec3)

    # A frame: copy the poses of the first env, and trace rays
    def draw() -> np.ndarray:
        with wp.ScopedDevice("cpu"):
            for name, pose in poses_of(env).items():
                getattr(warp_data, name).assign(pose.unsqueeze(0).numpy())
            mjw.kinematics(warp_model, warp_data)
            mjw.camlight(warp_model, warp_data)
            mjw.refit_bvh(warp_model, warp_data, context)
            mjw.render(warp_model, warp_data, context)
            mjw.get_rgb(context, 0, pixels)
        return (pixels.numpy()[0].clip(0, 1) * 255).astype(np.uint8)

    return draw
