"""Measure on which terrain the policy of a velocity task walks out of its tile, and on which it falls.

uv run python scripts/cross_terrain.py logs/quadruped-velocity-rough/<run>

Five robots start on each tile, face random directions, and are told to walk straight ahead at 0.8 m/s, in the direction
in which they start, for a whole episode. Noise, randomization and pushes are as in training. A robot has crossed its
tile when its distance from the middle exceeds half the tile's side.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch

from mjlab_dist.config import EnvConfig
from mjlab_dist.policies import load_env_and_policy
from mjlab_dist.runs.run_dir import find_checkpoint, read_config_file

ROBOTS_PER_TILE = 5
FORWARD_M_S = 0.8


def main() -> None:
    """Print the shares of the robots that have crossed their tiles or fallen, by level and by kind of terrain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="default: the newest checkpoint of the run")
    args = parser.parse_args()
    torch.set_num_threads(1)

    # Play an episode
    config = read_config_file(args.run)
    config = dataclasses.replace(config, env=_for_measurement(config.env))
    ground = config.env.sim.terrain
    num_envs = ROBOTS_PER_TILE * ground.num_levels * ground.num_columns
    checkpoint = args.checkpoint or find_checkpoint(args.run)
    env, policy = load_env_and_policy(config, checkpoint, num_envs, seed=1)
    obs, start = env.reset(), env.origins.clone()
    crossed, fell = torch.zeros(2, env.num_envs, dtype=torch.bool)
    with torch.inference_mode():
        for _ in range(env.max_episode_length - 1):  # the last step would start another episode
            obs, _, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            fell |= env.terminated & ~crossed
            away = (env.sim.qpos[:, :2] - start[:, :2]).norm(dim=1) > 0.5 * ground.tile_size_m
            crossed |= away & ~fell

    # Print the shares
    level, column = env.env_ids // ground.num_columns % ground.num_levels, env.env_ids % ground.num_columns
    is_hard = level >= ground.num_levels - ground.num_levels // 3
    groups = {f"level {i}": level == i for i in range(ground.num_levels)}
    groups |= {"all levels": level >= 0, "hardest third": is_hard}
    for part in ground.parts:
        columns = [i for i, name in enumerate(ground.column_parts()) if name == part]
        groups[f"  {part}"] = is_hard & torch.isin(column, torch.tensor(columns))
    print(f"{checkpoint}\n{'':16}crossed   fell")
    for name, of_group in groups.items():
        print(f"{name:16}{crossed[of_group].float().mean():7.1%}{fell[of_group].float().mean():7.1%}")


def _for_measurement(config: EnvConfig) -> EnvConfig:
    """Return the config with one command per episode, and robots that stay on their levels."""
    told = config.commands["velocity"]
    straight = {"forward_m_s": (FORWARD_M_S, FORWARD_M_S), "left_m_s": (0.0, 0.0), "yaw_rad_s": (0.0, 0.0)}
    params = {**told.params, **straight, "resample_s": (1e9, 1e9), "standing_share": 0.0, "heading_share": 0.0}
    return dataclasses.replace(
        config,
        commands={**config.commands, "velocity": dataclasses.replace(told, params=params)},
        terminations={name: one for name, one in config.terminations.items() if not one.time_out},
        curricula={},
    )


if __name__ == "__main__":
    main()
