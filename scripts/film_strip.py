"""Draw a strip of frames of a trained policy, with a camera that follows the robot.

uv run python scripts/film_strip.py logs/quadruped-velocity-flat/<run> --output walking.png

Other flags change the env, as with play: --env.commands.velocity.params.forward-m-s 1 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import imageio.v3 as imageio
import numpy as np
import torch
from PIL import Image, ImageDraw

from mjlab_dist.cli.term_flags import parse_config
from mjlab_dist.play import load_env_and_policy
from mjlab_dist.run_dir import find_checkpoint, read_config_file

if TYPE_CHECKING:
    from mjlab_dist.env import Env


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="default: the run's newest")
    parser.add_argument("--joint", default="root", help="free joint of the robot, which the camera follows")
    parser.add_argument("--frames", type=int, default=7)
    parser.add_argument("--start-s", type=float, default=3.0, help="time of the first frame in the episode")
    parser.add_argument("--every-s", type=float, default=0.1, help="time between frames")
    parser.add_argument("--frame-size", type=int, nargs=2, default=(180, 210), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument(
        "--azimuth", type=float, default=90.0, help="direction of the camera in degrees; 90: from the right"
    )
    parser.add_argument("--elevation", type=float, default=-14.0, help="in degrees; negative: from above")
    parser.add_argument("--distance", type=float, default=1.1, help="from the camera to the robot, in m")
    parser.add_argument("--look-at-m", type=float, default=0.2, help="height of the point that the camera looks at")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("strip.png"))
    args, changes = parser.parse_known_args()

    # Env with the changed flags, and policy
    config = parse_config(read_config_file(args.run), changes, sys.argv[0])
    env, policy = load_env_and_policy(config, args.checkpoint or find_checkpoint(args.run), 1, args.seed)

    # One episode, with a frame at each chosen step
    camera = Camera(env, args)
    shots = [round((args.start_s + i * args.every_s) / env.step_dt_s) for i in range(args.frames)]
    frames: list[np.ndarray] = []
    obs = env.reset()
    with torch.inference_mode():
        for step in range(shots[-1] + 1):
            if step in shots:
                frames.append(camera.frame((step - shots[0]) * env.step_dt_s))
            obs, _, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            if dones.any():
                sys.exit(f"the episode ended after {step + 1} steps; choose another --seed or --start-s")
    # Picture
    imageio.imwrite(args.output, np.concatenate(frames, axis=1))
    print(args.output)


class Camera:
    """Renders the first env from a camera at a fixed distance from the robot."""

    def __init__(self, env: Env, args: argparse.Namespace) -> None:
        """Make a renderer.

        Args:
            env: The envs.
            args: Flags of this script.
        """
        import mujoco  # noqa: PLC0415 (reads MUJOCO_GL, which load_env_and_policy sets)

        self._qpos = env.sim.qpos
        self._columns = env.joints[args.joint].qpos
        self._start: torch.Tensor | None = None
        self._model = env.sim.model
        self._data = mujoco.MjData(self._model)
        width, height = args.frame_size
        # Twice the size, for smooth edges
        self._size = (width, height)
        self._model.vis.global_.offwidth, self._model.vis.global_.offheight = 2 * width, 2 * height
        self._renderer = mujoco.Renderer(self._model, 2 * height, 2 * width)
        self._camera = mujoco.MjvCamera()
        self._camera.azimuth, self._camera.elevation = args.azimuth, args.elevation
        self._camera.distance = args.distance
        self._height_m = args.look_at_m

    def frame(self, time_s: float) -> np.ndarray:
        """Render the current state, (height, width, 3).

        Args:
            time_s: Time since the first frame; it is written on the frame, with the distance since then.
        """
        import mujoco  # noqa: PLC0415

        self._data.qpos[:] = self._qpos[0].numpy()
        mujoco.mj_forward(self._model, self._data)
        place = self._qpos[0, self._columns][:2].clone()
        self._start = place if self._start is None else self._start
        distance_m = torch.dist(place, self._start).item()
        self._camera.lookat[:] = (*place.tolist(), self._height_m)
        self._renderer.update_scene(self._data, self._camera)
        image = Image.fromarray(self._renderer.render()).resize(self._size, Image.Resampling.LANCZOS)
        draw = ImageDraw.Draw(image)
        draw.text((6, 4), f"{time_s:.2f} s, {distance_m:.2f} m", fill="black", font_size=14)
        draw.line((self._size[0] - 1, 0, self._size[0] - 1, self._size[1]), fill="white")
        return np.asarray(image)


if __name__ == "__main__":
    main()
