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
from mjlab_dist.config import PlayConfig, TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.imports import start_up

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    import torch
    from rsl_rl.models import MLPModel

    from mjlab_dist.env import Env

VIDEO_FPS = 30
"""At most as many frames a second as this; steps in between are not drawn."""

DUMP_FPS = 10
"""States a second, where those of a dump are drawn: slowly, since they are few."""

VIDEO_SIZE = (480, 848)
"""Height and width of a frame in pixels; multiples of 16, which video codecs want."""

DRAWN_GROUND_M = 10.0
"""Terrain is drawn so far around the first env's origin: a whole one takes many seconds a frame without a GPU."""


@dataclass(frozen=True, kw_only=True)
class PlayResult:
    """How the episodes went."""

    checkpoint: Path
    """The checkpoint that was played."""
    returns: list[float]
    """Return of each env's first episode."""
    lengths: list[int]
    """Control steps of each env's first episode."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A step that led to a number that is not finite, and the same step taken again."""

    env_id: int
    """Which env of the run."""
    step: int
    """Which step of the rollout, from 1; 0 where the number was there before the first, so that there was no such step."""
    names: dict[str, list[str]]
    """What was not finite, by kind."""
    action: dict[str, float]
    """What the policy had put out, by actuator; empty where there was no step."""
    state: dict[str, tuple[float, ...]]
    """Positions and velocities by joint: before the step, after it as the run saw it, and after it as taken again."""
    ended: bool
    """Whether the run's step ended an episode, so that the state after it is that of a new one."""
    reproduced: bool
    """Whether a number is not finite after the step taken again either."""


def resolve(task: str, config: PlayConfig) -> tuple[TrainConfig, Path]:
    """Find the run's config and its checkpoint (or its dump), before anything heavy is imported.

    Raises:
        UserError: If there is no such run or file, or it is of another task.
    """
    if config.num_envs < 1:
        raise UserError(f"--num-envs {config.num_envs}: must be at least 1")
    if config.video is not None and not Path(config.video).resolve().parent.is_dir():
        raise UserError(f"--video {config.video}: there is no directory {Path(config.video).parent}; make it first")
    if config.video is not None and Path(config.video).suffix not in {".mp4", ".gif", ".webm"}:
        raise UserError(f"--video {config.video}: give a file that ends in .mp4, .webm or .gif")
    if config.nan_dump is not None:
        return _resolve_dump(task, Path(config.nan_dump), config)
    if config.checkpoint in (None, "latest", "best"):
        run_dir = runs.find_run(config.log_root, task, config.run)
        find = runs.find_best if config.checkpoint == "best" else runs.find_checkpoint
        return runs.read_config(run_dir), find(run_dir)
    checkpoint = Path(config.checkpoint)
    if not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: there is no such file; name one, or latest or best of the --run")
    run_dir = checkpoint.resolve().parent.parent
    return runs.read_config(runs.find_run(config.log_root, task, str(run_dir))), checkpoint


def _resolve_dump(task: str, dump: Path, config: PlayConfig) -> tuple[TrainConfig, Path]:
    if config.checkpoint is not None:
        raise UserError(
            f"--nan-dump {dump}: excludes --checkpoint {config.checkpoint}, since no policy is played; drop one of the two"
        )
    if not dump.is_file():
        raise UserError(f"--nan-dump {dump}: there is no such file; name one in a run's {runs.ERRORS} directory")
    run_dir = dump.resolve().parent.parent
    if not (run_dir / runs.CONFIG).is_file():
        raise UserError(
            f"--nan-dump {dump}: lies in no run's {runs.ERRORS} directory, so that the config is not known; leave it where the "
            "run wrote it"
        )
    return runs.read_config(runs.find_run(config.log_root, task, str(run_dir))), dump


def load_env_and_policy(train_config: TrainConfig, checkpoint: Path, num_envs: int, seed: int) -> tuple[Env, MLPModel]:
    """Make a run's env, and the policy that it has learned, on the CPU.

    Args:
        train_config: The run's config.
        checkpoint: The policy.
        num_envs: Envs to make.
        seed: Seeds what they draw.

    Returns:
        The env, and the policy without exploration: from observations to actions.
    """
    os.environ.setdefault("MUJOCO_GL", "egl")  # no screen is needed, nor asked for

    with start_up():
        import torch

        from mjlab_dist.env import Env  # noqa: PLC0415
        from mjlab_dist.learn import load_policy  # noqa: PLC0415
        from mjlab_dist.sim import start_warp  # noqa: PLC0415

    start_warp("cpu")
    torch.manual_seed(seed)
    env = Env(train_config.env, num_envs, "cpu")
    return env, load_policy(env, train_config, checkpoint)


def play(train_config: TrainConfig, checkpoint: Path, config: PlayConfig) -> PlayResult:
    """Play one episode in each env, on the CPU.

    Args:
        train_config: The run's config.
        checkpoint: The policy.
        config: How to play it.
    """
    env, policy = load_env_and_policy(train_config, checkpoint, config.num_envs, config.seed)
    import torch

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


def replay(train_config: TrainConfig, path: Path, config: PlayConfig) -> list[Replayed]:
    """Take the steps again that led to numbers that are not finite, on the CPU.

    Args:
        train_config: The run's config.
        path: What the run kept of them.
        config: Whether to draw the states up to the first.

    Raises:
        UserError: If the file is damaged, is no such dump, or fits another model.
    """
    os.environ.setdefault("MUJOCO_GL", "egl")

    with start_up():
        import torch

        from mjlab_dist.env import Env  # noqa: PLC0415
        from mjlab_dist.learn import finite  # noqa: PLC0415
        from mjlab_dist.sim import copy_state, start_warp  # noqa: PLC0415

    start_warp("cpu")
    dump = finite.load(path, train_config.task)
    # No episode may end here: what the step leads to is to be seen.
    env_config = dataclasses.replace(train_config.env, terminations={}, nan_policy="stop")
    env = Env(env_config, len(dump["env_ids"]), "cpu")
    env.max_episode_length += 1
    env.env_ids.copy_(dump["env_ids"])

    every, steps = torch.arange(env.num_envs), dump["steps"]
    rows = (steps - 1).clamp_min(0)
    before, after = ({name: states[t, every] for name, states in dump["state"].items()} for t in (rows, steps))
    try:
        copy_state(before, {**env.sim.physics, "episode_length": env.episode_length_buf})
    except UserError as error:
        raise UserError(f"--nan-dump {path}: {error}") from error
    nothing = torch.zeros(1, env.num_envs, env.num_actions)  # where no env has taken a step
    actions = torch.cat([dump["actions"], nothing])[rows, every]
    obs, rewards, _, _ = env.step(actions)
    again = {"qpos": env.sim.qpos, "qvel": env.sim.qvel}
    numbers = [*again.values(), env.sim.view("act"), *obs.values(), rewards.unsqueeze(1)]
    finite_again = torch.cat([tensor.flatten(1) for tensor in numbers], dim=1).isfinite().all(dim=1)
    ended = torch.cat([dump["dones"], nothing[..., 0].bool()])[rows, every]

    columns = finite.column_names(env)
    labels = [label for field in again for label in _labels(field, columns[f"physics {field}"])]
    states = [torch.cat([state[field] for field in again], dim=1) for state in (before, after, again)]
    replayed = [
        Replayed(
            env_id=int(dump["env_ids"][i]),
            step=int(steps[i]),
            names=dump["names"][i],
            action=dict(zip(columns["action"], actions[i].tolist(), strict=True)) if steps[i] else {},
            state=dict(zip(labels, zip(*(state[i].tolist() for state in states), strict=True), strict=True)),
            ended=bool(ended[i]),
            reproduced=bool(steps[i] > 0 and not finite_again[i]),
        )
        for i in range(env.num_envs)
    ]
    if config.video:
        poses = {name: dump["state"][name][: replayed[0].step + 1, 0] for name in _poses(env)}
        _draw_states(Path(config.video), env, poses)
    return replayed


def _labels(field: str, names: list[str]) -> list[str]:
    """A label per column: joints of several columns are numbered."""
    return [
        f"{field} {name}" if names.count(name) == 1 else f"{field} {name}[{names[:i].count(name)}]"
        for i, name in enumerate(names)
    ]


def _draw_states(path: Path, env: Env, poses: dict[str, torch.Tensor]) -> None:
    steps = range(len(poses["qpos"]))
    drawable = [step for step in steps if all(states[step].isfinite().all() for states in poses.values())]
    if not drawable:
        print("There is no state to draw: none of the first env is finite.")
        return
    video = _Video(path, env, DUMP_FPS)
    shown = _poses(env)
    for step in drawable:
        for name, pose in shown.items():
            pose.copy_(poses[name][step])
        video.frame()
    video.close()
    print(f"Video: {path}")


class _Video:
    """Frames of env 0, to a file."""

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
        """Draw the current state, if a frame is due."""
        if self._step % self._stride == 0:
            self._writer.append_data(self._render())
        self._step += 1

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def _poses(env: Env) -> dict[str, torch.Tensor]:
    """What says where everything in the first env is, by field of MuJoCo's data: views."""
    return {name: env.sim.physics[name][0] for name in ("qpos", "mocap_pos", "mocap_quat") if name in env.sim.physics}


def _drawn_model(env: Env) -> mujoco.MjModel:
    """The model with the ground around the first env only."""
    from mjlab_dist.sim.terrain import crop_terrain  # noqa: PLC0415 (with MuJoCo, which is slow to import)

    x, y, _ = env.origins[0].tolist()
    return crop_terrain(env.sim.model, (x, y), DRAWN_GROUND_M)


def _renderer(env: Env) -> Callable[[], np.ndarray]:
    """MuJoCo's own renderer where there is EGL (or what MUJOCO_GL names), else MuJoCo Warp's, which needs no OpenGL."""
    import mujoco

    model = _drawn_model(env)
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
        for name, pose in _poses(env).items():
            getattr(data, name)[:] = pose.numpy()
        mujoco.mj_forward(model, data)
        renderer.update_scene(data, camera)
        return renderer.render()

    return draw


def _ray_tracer(env: Env) -> Callable[[], np.ndarray]:
    import mujoco
    import mujoco_warp as mjw
    import numpy as np  # noqa: PLC0415
    import warp as wp

    model = _drawn_model(env)
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
            for name, pose in _poses(env).items():
                getattr(warp_data, name).assign(pose.unsqueeze(0).numpy())
            mjw.kinematics(warp_model, warp_data)
            mjw.camlight(warp_model, warp_data)
            mjw.refit_bvh(warp_model, warp_data, context)
            mjw.render(warp_model, warp_data, context)
            mjw.get_rgb(context, 0, pixels)
        return (pixels.numpy()[0].clip(0, 1) * 255).astype(np.uint8)

    return draw
