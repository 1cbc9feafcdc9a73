"""Render envs, and write a video or a strip of frames."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import PlayConfig
from mjlab_dist.errors import UserError
from mjlab_dist.imports import import_triton
from mjlab_dist.messages import emit
from mjlab_dist.patching import patched
from mjlab_dist.play.choice import grid, num_frames, size_of

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    import torch

    from mjlab_dist.env import Env

    Poses = dict[str, torch.Tensor]
    Renderer = Callable[[Poses], np.ndarray]
    """Function from the poses of an env to its picture, (height, width, 3) of uint8."""


# Approximate maximum number of frames per second of a video. At higher control frequencies, steps are skipped.
VIDEO_FPS = 30


# Pixels between the pictures of two envs
GAP = 2


# Maximum distance from an env's origin at which terrain is rendered, in m.
#
# Without a GPU, a complete terrain takes many seconds per frame.
DRAWN_GROUND_M = 10.0


class Video:
    """Video file of one env, or of several in a grid, row by row."""

    def __init__(self, config: PlayConfig, env: Env, steps_per_s: float | None = None) -> None:
        """Make the renderers, and open the file."""
        assert config.video is not None
        import imageio  # slow to import

        self._stride = 1 if steps_per_s else max(1, round(1 / (VIDEO_FPS * env.step_dt_s)))
        self._step = 0
        width, height = size_of(config)
        self._size = (height, width)
        self._columns, rows = grid(len(config.env))
        self._tile = ((height + GAP) // rows - GAP, (width + GAP) // self._columns - GAP)
        renderers = Renderers(env.sim.model, self._tile, find_camera(env.sim.model, config.camera))
        self._views = [_View(env, index, renderers) for index in config.env]
        fps = steps_per_s or 1 / (env.step_dt_s * self._stride)
        is_gif = config.video.endswith(".gif")
        options: dict[str, Any] = {"duration": 1000 / fps} if is_gif else {"fps": fps, "macro_block_size": 2}
        self._writer = imageio.get_writer(config.video, **options)

    def frame(self) -> None:
        """Render the current state, if a frame is due."""
        import numpy as np

        if self._step % self._stride == 0:
            # Unused parts of the picture are black
            whole = np.zeros((*self._size, 3), dtype=np.uint8)
            height, width = self._tile
            for i, view in enumerate(self._views):
                top, left = i // self._columns * (height + GAP), i % self._columns * (width + GAP)
                whole[top : top + height, left : left + width] = view.picture()
            self._writer.append_data(whole)
        self._step += 1

    def close(self) -> None:
        """Finish writing the file."""
        self._writer.close()


class Strip:
    """Strip of frames of one env, at equal intervals over the whole time. The frames are drawn at the end."""

    def __init__(self, config: PlayConfig, env: Env) -> None:
        """Prepare a strip."""
        assert config.frames is not None
        self._config, self._env, self._file, self._index = config, env, config.frames, config.env[0]
        self._camera = find_camera(env.sim.model, config.camera)
        self._states: list[tuple[tuple[float, float], Poses]] = []
        self._has_ended = False

    def frame(self) -> None:
        """Record the current state."""
        starts_again = bool(self._states) and int(self._env.episode_length_buf[self._index]) == 0
        self._has_ended |= starts_again and self._config.seconds is None
        if not self._has_ended:
            poses = {name: pose.clone() for name, pose in poses_of(self._env, self._index).items()}
            self._states.append((_place(self._env, self._index), poses))

    def close(self) -> float:
        """Draw the frames and write the file. Return the time between two frames, in s."""
        import imageio.v3 as imageio  # slow to import
        import numpy as np

        # Choice of the states to draw
        count = min(num_frames(self._config), len(self._states))
        stride = (len(self._states) - 1) // max(1, count - 1)
        # Frames side by side, on white
        width, height = size_of(self._config)
        tile = (height, (width + GAP) // count - GAP)
        renderers = Renderers(self._env.sim.model, tile, self._camera)
        strip = np.full((height, width, 3), 255, dtype=np.uint8)
        for i in range(count):
            place, poses = self._states[i * stride]
            left = i * (width + GAP) // count
            strip[:, left : left + tile[1]] = renderers.at(place)(poses)
        imageio.imwrite(self._file, strip)
        return stride * self._env.step_dt_s


def poses_of(env: Env, index: int = 0) -> Poses:
    """Return views of the state that defines all poses in an env, by field of MuJoCo's data."""
    fields = ("qpos", "mocap_pos", "mocap_quat")
    return {name: env.sim.physics[name][index] for name in fields if name in env.sim.physics}


def find_camera(model: mujoco.MjModel, name: str | None) -> int:
    """Return the index of a camera. Without a name, return 0 (the first camera), or -1 if the model has no camera."""
    names = [model.camera(i).name for i in range(model.ncam)]
    if name is None:
        return 0 if names else -1
    if name not in names:
        known = ", ".join(filter(None, names)) or "no cameras with a name; drop --camera"
        raise UserError(f"--camera {name}: there is no such camera; the model has {known}")
    return names.index(name)


def _place(env: Env, index: int) -> tuple[float, float]:
    """Return the position of an env's origin on the ground, in m."""
    x, y, _ = env.origins[index].tolist()
    return x, y


class Renderers:
    """Creates renderers of a model. Without terrain to crop, all envs share one renderer."""

    def __init__(self, model: mujoco.MjModel, size: tuple[int, int], camera: int) -> None:
        self._model, self._size, self._camera = model, size, camera
        self._of_whole: Renderer | None = None

    def at(self, origin: tuple[float, float]) -> Renderer:
        """Return a renderer of the model with only the terrain around an origin."""
        from mjlab_dist.sim.terrain import crop_terrain  # with MuJoCo, which is slow to import

        model = crop_terrain(self._model, origin, DRAWN_GROUND_M)
        if model is not self._model:
            return _renderer(model, self._size, self._camera)
        if self._of_whole is None:
            self._of_whole = _renderer(model, self._size, self._camera)
        return self._of_whole


class _View:
    """Picture of one env. If a reset moves the env to another place on the terrain, the renderer changes."""

    def __init__(self, env: Env, index: int, renderers: Renderers) -> None:
        self._env, self._index, self._renderers = env, index, renderers
        self._origin = _place(env, index)
        self._render = renderers.at(self._origin)

    def picture(self) -> np.ndarray:
        origin = _place(self._env, self._index)
        if origin != self._origin:
            self._origin, self._render = origin, self._renderers.at(origin)
        return self._render(poses_of(self._env, self._index))


def _renderer(model: mujoco.MjModel, size: tuple[int, int], camera: int) -> Renderer:
    """Return MuJoCo's renderer if EGL or the backend in MUJOCO_GL works, else MuJoCo Warp's, which needs no OpenGL."""
    import mujoco

    from mjlab_dist.sim.quiet import quiet  # imports MuJoCo

    height, width = size
    model.vis.global_.offheight, model.vis.global_.offwidth = height, width
    data = mujoco.MjData(model)
    import_triton()
    try:
        with _egl_by_default():
            renderer = mujoco.Renderer(model, height, width)
    except Exception as error:  # noqa: BLE001
        # Without a driver, PyOpenGL raises various errors: AttributeError, ImportError, EGLError, RuntimeError.
        emit("warning", text=f"MuJoCo cannot render here ({error}); using MuJoCo Warp's slower ray tracer.")
        return _ray_tracer(model, size, camera)

    def draw(poses: Poses) -> np.ndarray:
        for name, pose in poses.items():
            getattr(data, name)[:] = pose.numpy()
        with quiet():
            mujoco.mj_forward(model, data)
        renderer.update_scene(data, camera)
        return renderer.render()

    return draw


@contextlib.contextmanager
def _egl_by_default() -> Iterator[None]:
    """Make MuJoCo's renderers use EGL, unless the user chose a backend.

    GLFW, MuJoCo's default, needs a screen; without a screen, the second renderer would abort the process. The class
    of MuJoCo's contexts is replaced because setting MUJOCO_GL would have no effect once MuJoCo is imported.
    """
    if "MUJOCO_GL" in os.environ:
        yield
        return
    from mujoco.egl import GLContext
    from mujoco.rendering.classic import gl_context

    with patched(gl_context, "GLContext", GLContext):
        yield


def _ray_tracer(model: mujoco.MjModel, size: tuple[int, int], camera: int) -> Renderer:
    import mujoco
    import mujoco_warp as mjw
    import numpy as np
    import warp as wp

    from mjlab_dist.sim.quiet import quiet  # imports MuJoCo

    # Model, data and renderer of one env
    height, width = size
    data = mujoco.MjData(model)
    with wp.ScopedDevice("cpu"), quiet():
        warp_model = mjw.put_model(model)
        warp_data = mjw.put_data(model, data, nworld=1)
        context = mjw.create_render_context(
            model,
            nworld=1,
            cam_res=(width, height),
            cam_active=[max(camera, 0)],
            render_rgb=True,
            use_shadows=True,
            render_skybox=True,
        )
        pixels: Any = wp.zeros((1, height, width), dtype=wp.vec3)

    # A frame: copy the poses, and trace rays
    def draw(poses: Poses) -> np.ndarray:
        with wp.ScopedDevice("cpu"):
            for name, pose in poses.items():
                getattr(warp_data, name).assign(pose.unsqueeze(0).numpy())
            mjw.kinematics(warp_model, warp_data)
            mjw.camlight(warp_model, warp_data)
            mjw.refit_bvh(warp_model, warp_data, context)
            mjw.render(warp_model, warp_data, context)
            mjw.get_rgb(context, 0, pixels)
        return (pixels.numpy()[0].clip(0, 1) * 255).astype(np.uint8)

    return draw
