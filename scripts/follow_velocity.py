"""Measure how well the policy of a velocity task follows commands without exploration, how it walks, and who falls.

uv run python scripts/follow_velocity.py logs/quadruped-velocity-flat/<run>

Each command is given to --num-envs robots for a whole episode: the ends of the task's ranges of velocities and yaw
rate, half of the forward velocity, a curve and a diagonal. Noise, randomization and pushes are as in training, but
--nominal leaves out randomization and pushes. --full-physics uses the options of the MJCF instead of those of training.
The figures of a robot end with its first fall. The exit code is 1 if more than one robot in a hundred falls, or if the
mean error of the velocity exceeds 0.15 m/s.

- lift: height of the feet, 95th minus 5th percentile
- strides: dominant frequency of the feet's heights
- path: angle between the heading after one second, because robots start with random velocities, and the way from there
  to the end; only for commands to walk straight ahead
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from mjlab_dist.config import EnvConfig, OptionsConfig
from mjlab_dist.env import Env
from mjlab_dist.mdp.rotation import wrap_angle
from mjlab_dist.mdp.sensors import Gait
from mjlab_dist.policies import load_env_and_policy
from mjlab_dist.runs.run_dir import find_checkpoint, read_config_file
from mjlab_dist.sim import build_model

MAX_FALLS = 0.01
MAX_ERROR_M_S = 0.15


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="default: the newest checkpoint of the run")
    parser.add_argument("--num-envs", type=int, default=32, help="robots per command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nominal", action="store_true")
    parser.add_argument("--full-physics", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of an episode")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args()
    torch.set_num_threads(1)

    # Build the env, and load the policy
    config = read_config_file(args.run)
    config = dataclasses.replace(config, env=_for_measurement(config.env, args))
    checkpoint = args.checkpoint or find_checkpoint(args.run)
    commands = _commands(config.env)
    env, policy = load_env_and_policy(config, checkpoint, len(commands) * args.num_envs, args.seed)
    told = torch.tensor(list(commands.values())).repeat_interleave(args.num_envs, dim=0)
    figures, upright = _walk(env, policy, told)

    # Compute and print the results
    rows = {}
    for i, name in enumerate(commands):
        of_command = slice(i * args.num_envs, (i + 1) * args.num_envs)
        standing = upright[of_command]
        rows[name] = {key: values[of_command][standing].mean().item() for key, values in figures.items()}
        rows[name]["fell"] = int((~standing).sum())
    error, fell = figures["error_m_s"].nanmean().item(), (~upright).float().mean().item()
    walks = error <= MAX_ERROR_M_S and fell <= MAX_FALLS
    results = {"robots": env.num_envs, "error_m_s": error, "fell": fell, "walks": walks, "commands": rows}
    print(json.dumps(results) if args.json else f"{checkpoint}\n{_in_words(results, commands)}")
    sys.exit(not walks)


def _walk(env: Env, policy: Any, told: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Play an episode in each env.

    Args:
        env: The envs.
        policy: The policy.
        told: Command of each robot, (num_envs, 3).

    Returns:
        Figures of each robot until it falls, (num_envs,) each, NaN if it fell in the first step; and which robots did
        not fall, (num_envs,) of bool.
    """
    command, feet, base = env.find_command("velocity"), env.sensor("gait", Gait).feet, env.base("root")
    obs = env.reset()
    start, heading = env.sim.qpos[:, :2].clone(), base.heading.clone()
    end = start.clone()
    upright = torch.ones(env.num_envs, dtype=torch.bool)
    sums, heights = torch.zeros(env.num_envs, 7), []
    with torch.inference_mode():
        for step in range(env.max_episode_length - 1):  # the last step would start another episode
            command.value.copy_(told)
            obs, _, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            upright &= ~env.terminated
            velocity = torch.cat([base.level_velocity[:, :2], env.sim.qvel[:, 5:6]], dim=1)
            error = velocity - told
            tilt = torch.acos((-base.gravity[:, 2:]).clamp(-1.0, 1.0))
            now = [torch.ones_like(tilt), error[:, :2].norm(dim=1, keepdim=True), error[:, 2:].abs(), velocity, tilt]
            sums[upright] += torch.cat(now, dim=1)[upright]
            if step == round(1.0 / env.step_dt_s):
                start, heading = env.sim.qpos[:, :2].clone(), base.heading.clone()
            end[upright] = env.sim.qpos[upright, :2]
            heights.append(feet.pos[..., 2].clone())
    way = end - start
    height = torch.stack(heights)
    spectrum = torch.fft.rfft(height - height.mean(dim=0), dim=0).abs().mean(dim=2)
    _, error, yaw_error, forward, left, yaw, tilt = (sums / sums[:, :1]).unbind(dim=1)
    figures = {
        "error_m_s": error,
        "yaw_error_rad_s": yaw_error,
        "forward_m_s": forward,
        "left_m_s": left,
        "yaw_rad_s": yaw,
        "tilt_deg": tilt.rad2deg(),
        "lift_cm": 100.0 * (height.quantile(0.95, dim=0) - height.quantile(0.05, dim=0)).mean(dim=1),
        "strides_hz": spectrum.argmax(dim=0) / (len(height) * env.step_dt_s),
        "path_deg": wrap_angle(torch.atan2(way[:, 1], way[:, 0]) - heading).rad2deg().abs(),
    }
    return figures, upright


def _commands(config: EnvConfig) -> dict[str, tuple[float, float, float]]:
    """Return commands of the task by name: forward and left velocity in m/s, and yaw rate in rad/s."""
    params: dict[str, Any] = config.commands["velocity"].params
    (back, forward), (right, left) = params["forward_m_s"], params["left_m_s"]
    clockwise, turn = params["yaw_rad_s"]
    return {
        "stand": (0.0, 0.0, 0.0),
        "forward": (forward, 0.0, 0.0),
        "half": (forward / 2, 0.0, 0.0),
        "back": (back, 0.0, 0.0),
        "left": (0.0, left, 0.0),
        "right": (0.0, right, 0.0),
        "turn left": (0.0, 0.0, turn),
        "turn right": (0.0, 0.0, clockwise),
        "curve": (forward, 0.0, turn),
        "diagonal": (forward / 2, right, 0.0),
    }


def _for_measurement(config: EnvConfig, args: argparse.Namespace) -> EnvConfig:
    """Return the config with one command per episode."""
    told = config.commands["velocity"]
    params = {**told.params, "resample_s": (1e9, 1e9), "standing_share": 0.0, "heading_share": 0.0}
    sim = config.sim
    if args.full_physics:
        full = dataclasses.replace(sim, options=OptionsConfig())
        steps = [sim.decimation * build_model(one).opt.timestep for one in (sim, full)]
        sim = dataclasses.replace(full, decimation=round(sim.decimation * steps[0] / steps[1]))
    return dataclasses.replace(
        config,
        sim=sim,
        commands={**config.commands, "velocity": dataclasses.replace(told, params=params)},
        events={name: event for name, event in config.events.items() if not (args.nominal and name == "push")},
        randomizations={} if args.nominal else config.randomizations,
        episode_length_s=args.seconds,
    )


def _in_words(figures: dict[str, Any], commands: dict[str, tuple[float, float, float]]) -> str:
    """Return the results as a table."""
    lines = ["command     forward, left, yaw: told, measured     error    fell  tilt     lift   strides    path"]
    for name, row in figures["commands"].items():
        told = " ".join(f"{one:+.2f}" for one in commands[name])
        measured = f"{row['forward_m_s']:+.2f} {row['left_m_s']:+.2f} {row['yaw_rad_s']:+.2f}"
        path = f"{row['path_deg']:6.1f}°" if name in ("forward", "half") else ""
        lines.append(
            f"{name:11} {told:>17}  {measured:>17}  {row['error_m_s']:.3f}  {row['fell']:5}  {row['tilt_deg']:4.1f}° "
            f"{row['lift_cm']:5.1f} cm  {row['strides_hz']:5.2f} Hz{path}"
        )
    lines.append(f"{figures['robots']} robots: error {figures['error_m_s']:.3f} m/s, {figures['fell']:.1%} fell")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
