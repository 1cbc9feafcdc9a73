"""What a trained policy does: whole episodes without exploration noise, their returns, and a video of the first env."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist import runs
from mjlab_dist.config import PlayConfig, SyncConfig, TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.worker import start_up

if TYPE_CHECKING:
    import numpy as np

    from mjlab_dist.env import Env

VIDEO_FPS = 30
"""At most as many frames a second as this; steps in between are not drawn."""

VIDEO_SIZE = (480, 848)
"""Height and width of a frame in pixels; multiples of 16, which video codecs want."""


@dataclass(frozen=True, kw_only=True)
class PlayResult:
    """How the episodes went."""

    checkpoint: Path
    """The checkpoint that was played."""
    returns: list[float]
    """Return of each env's first episode."""
    lengths: list[int]
    """Control steps of each env's first episode."""


def resolve(task: str, config: PlayConfig) -> tuple[TrainConfig, Path]:
    """Find the run's config and its checkpoint, before anything heavy is imported.

    Raises:
        UserError: If there is no such run or checkpoint, or it is of another task.
    """
    if config.num_envs < 1:
        raise UserError(f"--num-envs {config.num_envs}: must be at least 1")
    if config.video is not None and not Path(config.video).resolve().parent.is_dir():
        raise UserError(f"--video {config.video}: there is no directory {Path(config.video).parent}; make it first")
    if config.video is not None and Path(config.video).suffix not in {".mp4", ".gif", ".webm"}:
        raise UserError(f"--video {config.video}: give a file that ends in .mp4, .webm or .gif")
    if config.checkpoint is None:
        run_dir = runs.find_run(config.log_root, task, config.run)
        return runs.read_config(run_dir), runs.find_checkpoint(run_dir)
    checkpoint = Path(config.checkpoint)
    if not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: there is no such file")
    run_dir = checkpoint.resolve().parent.parent
    return runs.read_config(runs.find_run(config.log_root, task, str(run_dir))), checkpoint


def play(train_config: TrainConfig, checkpoint: Path, config: PlayConfig, announce: Callable[[], None]) -> PlayResult:
    """Play one episode in each env, on the CPU.

    Args:
        train_config: The run's config.
        checkpoint: The policy.
        config: How to play it.
        announce: Called if kernels have to be compiled, which takes a while.
    """
    os.environ.setdefault("MUJOCO_GL", "egl")  # no screen is needed, nor asked for

    with start_up():
        import torch

        from mjlab_dist.distributed import Rank  # noqa: PLC0415
        from mjlab_dist.env import Env  # noqa: PLC0415
        from mjlab_dist.learn import Runner  # noqa: PLC0415
        from mjlab_dist.sim import start_warp  # noqa: PLC0415

    start_warp("cpu")
    torch.manual_seed(config.seed)
    env = Env(train_config.env, config.num_envs, "cpu", announce)
    # One rank, however many trained: there is nobody to share parameters with.
    alone = dataclasses.replace(train_config, sync=SyncConfig(), fsdp_devices=1)
    runner = Runner(env, alone, Rank())
    runner.load(str(checkpoint), load_cfg={"actor": True, "critic": False, "optimizer": False, "iteration": False})
    policy = runner.get_inference_policy()

    video = _Video(Path(config.video), env) if config.video else None
    returns = torch.zeros(config.num_envs)
    lengths = torch.zeros(config.num_envs, dtype=torch.long)
    playing = torch.ones(config.num_envs, dtype=torch.bool)
    obs = env.reset()
    with torch.inference_mode():
        while playing.any():
            if video and playing[0]:
                video.frame()
            obs, rewards, dones, _ = env.step(policy(obs))
            returns += rewards * playing
            lengths += playing
            playing &= ~dones
            policy.reset(dones)
    if video:
        video.close()
    return PlayResult(checkpoint=checkpoint, returns=returns.tolist(), lengths=lengths.tolist())


class _Video:
    """Frames of env 0, to a file."""

    def __init__(self, path: Path, env: Env) -> None:
        import imageio  # noqa: PLC0415 (slow to import)

        self._env = env
        self._stride = max(1, round(1 / (VIDEO_FPS * env.step_dt_s)))
        self._step = 0
        self._render = _renderer(env)
        fps = 1 / (env.step_dt_s * self._stride)
        self._writer = (
            imageio.get_writer(path, fps=fps)
            if path.suffix != ".gif"
            else imageio.get_writer(path, duration=1000 / fps)
        )

    def frame(self) -> None:
        """Draw the current state, if a frame is due."""
        if self._step % self._stride == 0:
            self._writer.append_data(self._render())
        self._step += 1

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def _renderer(env: Env) -> Callable[[], np.ndarray]:
    """MuJoCo's own renderer where there is EGL (or what MUJOCO_GL names), else MuJoCo Warp's, which needs no OpenGL."""
    import mujoco

    model = env.sim.model
    height, width = VIDEO_SIZE
    model.vis.global_.offheight, model.vis.global_.offwidth = height, width
    camera = 0 if model.ncam else -1
    data = mujoco.MjData(model)
    try:
        renderer = mujoco.Renderer(model, height, width)
    except Exception as error:  # noqa: BLE001
        # Without a driver PyOpenGL fails in ways of its own: AttributeError, ImportError, EGLError, RuntimeError.
        print(f"MuJoCo cannot draw here ({error}); MuJoCo Warp's slower ray tracer does.", file=sys.stderr)
        return _ray_tracer(env)

    def draw() -> np.ndarray:
        data.qpos[:] = env.sim.qpos[0].numpy()
        mujoco.mj_forward(model, data)
        renderer.update_scene(data, camera)
        return renderer.render()

    return draw


def _ray_tracer(env: Env) -> Callable[[], np.ndarray]:
    import mujoco
    import mujoco_warp as mjw
    import numpy as np  # noqa: PLC0415
    import warp as wp

    model = env.sim.model
    height, width = VIDEO_SIZE
    data = mujoco.MjData(model)
    with wp.ScopedDevice("cpu"):
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

    def draw() -> np.ndarray:
        with wp.ScopedDevice("cpu"):
            warp_data.qpos.assign(env.sim.qpos[:1].numpy())
            mjw.kinematics(warp_model, warp_data)
            mjw.camlight(warp_model, warp_data)
            mjw.refit_bvh(warp_model, warp_data, context)
            mjw.render(warp_model, warp_data, context)
            mjw.get_rgb(context, 0, pixels)
        return (pixels.numpy()[0].clip(0, 1) * 255).astype(np.uint8)

    return draw
