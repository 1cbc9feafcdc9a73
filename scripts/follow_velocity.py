"""Measure how well the policy of a velocity task follows commands without exploration, and how many robots fall.

uv run python scripts/follow_velocity.py logs/quadruped-velocity-flat/<run> --forward-m-s 0.5 1.0

Every robot gets one forward velocity for a whole episode. Noise, randomization and pushes are as in training, but
--no-pushes leaves out the pushes. The exit code is 1 if more than one robot in twenty falls, or if the reward for
following the linear velocity, averaged over robots and steps, is below 80% of its maximum.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from mjlab_dist.config import EnvConfig
from mjlab_dist.mdp.observations import base_linear_velocity
from mjlab_dist.mdp.rewards import track_linear_velocity
from mjlab_dist.play import load_env_and_policy
from mjlab_dist.runs.run_dir import find_checkpoint, read_config_file

MAX_FALLS = 0.05
MIN_TRACKING = 0.8


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="default: the newest checkpoint of the run")
    parser.add_argument("--forward-m-s", type=float, nargs=2, default=(0.5, 1.0), metavar=("LOW", "HIGH"))
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-pushes", action="store_true")
    parser.add_argument("--seconds", type=float, help="length of an episode; default: as in the task")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    args = parser.parse_args()
    torch.set_num_threads(1)

    # Build the env, with one command per episode, and load the policy
    config = read_config_file(args.run)
    config = dataclasses.replace(config, env=_with_one_command(config.env, args))
    checkpoint = args.checkpoint or find_checkpoint(args.run)
    env, policy = load_env_and_policy(config, checkpoint, args.num_envs, args.seed)

    # Step all envs for the length of one episode
    # If a robot falls, its env starts another episode. The reward continues to be summed; further falls don't count.
    tracking, speed = torch.zeros(2, args.num_envs)
    fell = torch.zeros(args.num_envs, dtype=torch.bool)
    obs = env.reset()
    with torch.inference_mode():
        for _ in range(env.max_episode_length):
            obs, _, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            tracking += track_linear_velocity(env, "velocity")
            speed += base_linear_velocity(env)[:, 0]
            fell |= env.terminated
    # Compute and print the results
    steps = env.max_episode_length
    share = tracking.mean().item() / steps
    figures = {
        "robots": args.num_envs,
        "seconds": steps * env.step_dt_s,
        "tracking": share,
        "worst_tracking": tracking.min().item() / steps,
        "speed_m_s": speed.mean().item() / steps,
        "told_m_s": env.command("velocity")[:, 0].mean().item(),
        "fell": int(fell.sum()),
        "steps": steps,
        "walks": share >= MIN_TRACKING and fell.float().mean().item() <= MAX_FALLS,
    }
    print(json.dumps(figures) if args.json else f"{checkpoint}: {_in_words(figures)}")
    sys.exit(not figures["walks"])


def _with_one_command(config: EnvConfig, args: argparse.Namespace) -> EnvConfig:
    """Return the config with one forward velocity per episode."""
    told = config.commands["velocity"]
    params = {
        **told.params,
        "forward_m_s": tuple(args.forward_m_s),
        "left_m_s": (0.0, 0.0),
        "yaw_rad_s": (0.0, 0.0),
        "resample_s": (1e9, 1e9),
        "standing_share": 0.0,
        "heading_share": 0.0,
    }
    return dataclasses.replace(
        config,
        commands={**config.commands, "velocity": dataclasses.replace(told, params=params)},
        events={name: event for name, event in config.events.items() if not (args.no_pushes and name == "push")},
        episode_length_s=args.seconds or config.episode_length_s,
    )


def _in_words(figures: dict[str, Any]) -> str:
    """Return the results as lines of text."""
    return (
        f"{figures['robots']} robots, {figures['seconds']:.0f} s\n"
        f"reward for following the linear velocity: {figures['tracking']:.1%} of its maximum, "
        f"{figures['worst_tracking']:.1%} for the worst robot\n"
        f"speed {figures['speed_m_s']:.3f} m/s, commanded {figures['told_m_s']:.3f} m/s (means)\n"
        f"fell: {figures['fell']} of {figures['robots']}"
    )


if __name__ == "__main__":
    main()
