"""Play whole episodes of a trained policy, without exploration noise."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import PlayConfig, TrainConfig
from mjlab_dist.distributed.rank import seed_generators
from mjlab_dist.imports import is_loadable, prepare_opengl, start_up

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rsl_rl.models import MLPModel

    from mjlab_dist.env import Env

from mjlab_dist.policies.choice import STRIP_S
from mjlab_dist.policies.video import Frames, Strip, Video


@dataclass(frozen=True, kw_only=True)
class PlayResult:
    """Returns, lengths, reasons for ending and metrics of the played episodes."""

    # The checkpoint that was played
    checkpoint: Path
    # Return of each episode, in the order in which they ended
    returns: list[float]
    # Control steps of each episode
    lengths: list[int]
    # Means over the episodes, by name: metrics, and for each termination/<reason> the share of the episodes that ended
    # for this reason. Empty if no episode ended.
    outcomes: dict[str, float]
    # Time between two frames of the strip, in s; None without a strip
    frame_interval_s: float | None = None
    # Frames of the video, (num_frames, height, width, 3) of uint8, and their number per second of simulated time. Only
    # if they were asked for
    frames: NDArray[np.uint8] | None = field(default=None, repr=False)
    fps: float | None = None

    def _repr_html_(self) -> str | None:
        """Return the frames as a video, which notebooks show."""
        if self.frames is None:
            return None
        import base64

        import imageio.v3 as imageio  # slow to import

        video: Any = imageio.imwrite("<bytes>", self.frames, extension=".mp4", fps=self.fps, macro_block_size=2)
        source = f"data:video/mp4;base64,{base64.b64encode(video).decode()}"
        return f'<video controls autoplay loop muted src="{source}"></video>'


def load_env_and_policy(train_config: TrainConfig, checkpoint: Path, num_envs: int, seed: int) -> tuple[Env, MLPModel]:
    """Make a run's env and load its policy, on the CPU.

    Returns:
        The env, and the policy, which maps observations to actions without exploration noise.
    """
    env = load_env(train_config, num_envs, seed)

    from mjlab_dist.learn.networks import load_policy

    return env, load_policy(env, train_config, checkpoint)


def load_env(train_config: TrainConfig, num_envs: int, seed: int) -> Env:
    """Make a run's env on the CPU."""
    choose_opengl(os.environ)

    with start_up():
        from mjlab_dist.env import Env
        from mjlab_dist.sim import start_warp

    start_warp("cpu")
    seed_generators(seed)
    return Env(train_config.env, num_envs, "cpu")


def choose_opengl(environ: MutableMapping[str, str]) -> None:
    """Choose EGL for MuJoCo's rendering, because it works without a screen. A choice of the user is kept.

    If EGL's library is missing, disable OpenGL, because otherwise importing MuJoCo would fail. MuJoCo Warp's ray tracer
    then renders. If MuJoCo is already imported, the variable MUJOCO_GL has no effect, and
    :mod:`mjlab_dist.policies.video` chooses EGL.
    """
    if "mujoco" in sys.modules:
        return
    prepare_opengl(environ)
    if "MUJOCO_GL" not in environ:
        environ["MUJOCO_GL"] = "egl" if is_loadable("libEGL.so.1") else "disable"


def play(train_config: TrainConfig, checkpoint: Path, config: PlayConfig, *, keeps_frames: bool = False) -> PlayResult:
    """Play on the CPU: one episode in each env, or all episodes that end within the given time."""
    env, policy = load_env_and_policy(train_config, checkpoint, config.num_played, config.seed)
    return play_policy(env, policy, checkpoint, config, keeps_frames=keeps_frames)


def play_policy(
    env: Env, policy: MLPModel, checkpoint: Path, config: PlayConfig, *, keeps_frames: bool = False
) -> PlayResult:
    """Play a loaded policy, as :func:`play` does."""
    import numpy as np
    import torch

    seconds = STRIP_S if config.seconds is None and config.frames else config.seconds
    num_steps = None if seconds is None else max(1, round(seconds / env.step_dt_s))
    pictures = None
    if config.video:
        pictures = Video(config, env, num_steps or env.max_episode_length)
    elif config.frames:
        pictures = Strip(config, env)
    elif keeps_frames:
        pictures = Frames(config, env, num_steps or env.max_episode_length)
    # Sums over the current episode of each env, and the results of the counted episodes
    current_return = torch.zeros(config.num_played)
    length = torch.zeros(config.num_played, dtype=torch.long)
    result = PlayResult(checkpoint=checkpoint, returns=[], lengths=[], outcomes={})
    outcomes = dict.fromkeys(env.episode_outcomes(), 0.0)
    playing = torch.ones(config.num_played, dtype=torch.bool)
    # Steps: for the given time, or, if no time is given, until an episode has ended in every env
    step = 0
    obs = env.reset()
    with torch.inference_mode():
        while playing.any() if num_steps is None else step < num_steps:
            if pictures:
                pictures.frame()
            obs, rewards, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            step += 1
            current_return += rewards
            length += 1
            # Episodes that end. If no time is given, only the first episode of each env counts, because short episodes
            # would otherwise count more often than long ones.
            counted = dones & playing if num_steps is None else dones
            result.returns.extend(current_return[counted].tolist())
            result.lengths.extend(length[counted].tolist())
            for name, value in env.episode_outcomes().items():
                outcomes[name] += float(value[counted].sum())
            playing &= ~dones
            current_return[dones], length[dones] = 0.0, 0
    # Results
    interval_s = pictures.close() if pictures else None
    if result.returns:
        result.outcomes.update({name: total / len(result.returns) for name, total in outcomes.items()})
    if isinstance(pictures, Frames) and keeps_frames:
        return dataclasses.replace(result, frames=np.stack(pictures.kept), fps=pictures.fps)
    return dataclasses.replace(result, frame_interval_s=interval_s)
