"""Render envs: MuJoCo's renderer if OpenGL works, otherwise MuJoCo Warp's ray tracer. Imports no torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mjlab_dist.errors import UserError
from mjlab_dist.imports import import_triton, patched
from mjlab_dist.messages import emit

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    import torch

    Poses = dict[str, torch.Tensor]
    Renderer = Callable[[Poses], np.ndarray]
    """Function from the poses of an env to its picture, (height, width, 3) of uint8."""

# Default width and height of a video, in pixels
VIDEO_SIZE = (848, 480)

# Maximum distance from an env's origin at which terrain is rendered, in m.
#
# Without a GPU, a complete terrain takes many seconds per frame.
DRAWN_GROUND_M = 10.0

# Maximum width and height of the map from which shadows are drawn, in pixels
MAX_SHADOW_SIZE = 1024


def find_camera(model: mujoco.MjModel, name: str | None) -> int:
    """Return the index of a camera. Without a name, return 0 (the first camera), or -1 if the model has no camera."""
    names = [model.camera(i).name for i in range(model.ncam)]
    if name is None:
        return 0 if names else -1
    if name not in names:
        known = ", ".join(filter(None, names)) or "no cameras with a name; drop --camera"
        raise UserError(f"--camera {name}: there is no such camera; the model has {known}")
    return names.index(name)


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


def _renderer(model: mujoco.MjModel, size: tuple[int, int], camera: int) -> Renderer:
    """Return MuJoCo's renderer if EGL or the backend in MUJOCO_GL works, else MuJoCo Warp's, which needs no OpenGL."""
    import mujoco

    from mjlab_dist.sim.quiet import quiet  # imports MuJoCo

    height, width = size
    model.vis.global_.offheight, model.vis.global_.offwidth = height, width
    # Without a GPU, larger shadow maps and reflections take half of the time of a frame
    model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, MAX_SHADOW_SIZE)
    data = mujoco.MjData(model)
    import_triton()
    try:
        with _egl_by_default():
            renderer = mujoco.Renderer(model, height, width)
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
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
