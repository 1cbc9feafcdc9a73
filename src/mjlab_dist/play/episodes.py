"""Play whole episodes of a trained policy, without exploration noise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.config import PlayConfig, TrainConfig
from mjlab_dist.imports import start_up
from mjlab_dist.seeding import seed_generators

if TYPE_CHECKING:
    from rsl_rl.models import MLPModel

    from mjlab_dist.env import Env

from mjlab_dist.play.video import Video


@dataclass(frozen=True, kw_only=True)
class PlayResult:
    """Returns, lengths, reasons of the end and metrics of the played episodes."""

    checkpoint: Path
    """The checkpoint that was played."""
    returns: list[float]
    """Return of each env's episode."""
    lengths: list[int]
    """Control steps of each env's episode."""
    outcomes: dict[str, float]
    """Means over the episodes by name: shares that ended by ``termination/<reason>``, and metrics."""


def load_env_and_policy(train_config: TrainConfig, checkpoint: Path, num_envs: int, seed: int) -> tuple[Env, MLPModel]:
    """Make a run's env and load its policy, on the CPU.

    Args:
        train_config: The run's config.
        checkpoint: Checkpoint file of the policy.
        num_envs: Number of envs.
        seed: Random seed.

    Returns:
        The env, and the policy without exploration noise, which maps observations to actions.
    """
    os.environ.setdefault("MUJOCO_GL", "egl")  # works without a screen

    with start_up():
        from mjlab_dist.env import Env  # noqa: PLC0415
        from mjlab_dist.learn import load_policy  # noqa: PLC0415
        from mjlab_dist.sim import start_warp  # noqa: PLC0415

    start_warp("cpu")
    seed_generators(seed)
    env = Env(train_config.env, num_envs, "cpu")
    return env, load_policy(env, train_config, checkpoint)


def play(train_config: TrainConfig, checkpoint: Path, config: PlayConfig) -> PlayResult:
    """Play one episode in each env, on the CPU.

    Args:
        train_config: The run's config.
        checkpoint: Checkpoint file of the policy.
        config: Number of episodes, seed, and video file.
    """
    env, policy = load_env_and_policy(train_config, checkpoint, config.num_envs, config.seed)
    import torch

    # Sums over the first episode of each env
    video = Video(Path(config.video), env) if config.video else None
    returns = torch.zeros(config.num_envs)
    lengths = torch.zeros(config.num_envs, dtype=torch.long)
    outcomes = {name: torch.zeros(config.num_envs) for name in env.episode_outcomes()}
    playing = torch.ones(config.num_envs, dtype=torch.bool)
    # Steps, until this episode has ended in every env
    obs = env.reset()
    with torch.inference_mode():
        while playing.any():
            if video and playing[0]:
                video.frame()
            obs, rewards, dones, _ = env.step(policy(obs))
            returns += rewards * playing
            lengths += playing
            for name, value in env.episode_outcomes().items():
                outcomes[name] += value * (playing & dones)
            playing &= ~dones
            policy.reset(dones)
    # Results
    if video:
        video.close()
    return PlayResult(
        checkpoint=checkpoint,
        returns=returns.tolist(),
        lengths=lengths.tolist(),
        outcomes={name: float(values.mean()) for name, values in outcomes.items()},
    )
