"""Write a video, or a strip of frames."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import PlayConfig
from mjlab_dist.messages import emit
from mjlab_dist.policies.choice import grid, num_frames, size_of
from mjlab_dist.runs.outputs import writing
from mjlab_dist.sim.render import Renderers, find_camera

if TYPE_CHECKING:
    import numpy as np

    from mjlab_dist.env import Env
    from mjlab_dist.sim.render import Poses

# Approximate maximum number of frames per second of a video. At higher control frequencies, steps are skipped.
VIDEO_FPS = 30

# Pixels between the pictures of two envs
GAP = 2


class Frames:
    """Frames of one env, or of several in a grid, row by row."""

    def __init__(self, config: PlayConfig, env: Env, max_steps: int, steps_per_s: float | None = None) -> None:
        """Make the renderers."""
        self._stride = 1 if steps_per_s else max(1, round(1 / (VIDEO_FPS * env.step_dt_s)))
        self._step, self._max_steps = 0, max_steps
        width, height = size_of(config)
        self._size = (height, width)
        self._columns, rows = grid(len(config.env))
        self._tile = ((height + GAP) // rows - GAP, (width + GAP) // self._columns - GAP)
        renderers = Renderers(env.sim.model, self._tile, find_camera(env.sim.model, config.camera))
        self._views = [_View(env, index, renderers) for index in config.env]
        self.fps = steps_per_s or 1 / (env.step_dt_s * self._stride)
        self.kept: list[np.ndarray] = []

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
            self._keep(whole)
            done, total = self._step // self._stride + 1, math.ceil(self._max_steps / self._stride)
            emit("recording", done=done, total=total)
        self._step += 1

    def close(self) -> None:
        """Do what is left to do after the last frame."""

    def _keep(self, picture: np.ndarray) -> None:
        self.kept.append(picture)


class Video(Frames):
    """Video file of the frames."""

    def __init__(self, config: PlayConfig, env: Env, max_steps: int, steps_per_s: float | None = None) -> None:
        """Make the renderers, and open the file."""
        assert config.video is not None
        super().__init__(config, env, max_steps, steps_per_s)
        import imageio  # slow to import

        self._file = config.video
        options: dict[str, Any] = {"fps": self.fps, "macro_block_size": 2, "ffmpeg_log_level": "quiet"}
        if config.video.endswith(".gif"):
            options = {"duration": 1000 / self.fps}
        self._writer = imageio.get_writer(config.video, **options)

    def close(self) -> None:
        """Finish writing the file."""
        with writing("--video", self._file):
            self._writer.close()

    def _keep(self, picture: np.ndarray) -> None:
        with writing("--video", self._file):
            self._writer.append_data(picture)


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


def _place(env: Env, index: int) -> tuple[float, float]:
    """Return the position of an env's origin on the ground, in m."""
    x, y, _ = env.origins[index].tolist()
    return x, y


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
