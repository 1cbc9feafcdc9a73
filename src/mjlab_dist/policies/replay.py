"""Repeat the control steps that led to numbers that are not finite."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.config import PlayConfig, TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.imports import start_up

if TYPE_CHECKING:
    import torch

    from mjlab_dist.env import Env

from mjlab_dist.policies.policy_episodes import choose_opengl
from mjlab_dist.policies.video import Video, poses_of

# Frame rate of a dump's video, in states per second. A dump has few states, so they are shown slowly.
DUMP_FPS = 10


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A step that led to a number that is not finite, and its repetition."""

    # Id of the env in the run
    env_id: int
    # Index of the step in the rollout, from 1; 0 if the number occurred before the first step
    step: int
    # Names of the quantities that were not finite, by kind
    names: dict[str, list[str]]
    # The policy's output, by actuator; empty if step is 0
    action: dict[str, float]
    # Positions and velocities by joint. Three values each: before the step, after the step in the run, and after the
    # repetition of the step.
    state: dict[str, tuple[float, ...]]
    # Whether the step ended an episode in the run, so that the state after it belongs to a new episode
    ended: bool
    # Whether the repetition also leads to a number that is not finite
    reproduced: bool


def replay(train_config: TrainConfig, path: Path, config: PlayConfig) -> list[Replayed]:
    """Repeat, on the CPU, the steps that led to numbers that are not finite."""
    choose_opengl(os.environ)

    with start_up():
        import torch

        from mjlab_dist.env import Env
        from mjlab_dist.learn import finite
        from mjlab_dist.sim import copy_state, start_warp

    # Dump, and envs of the same model
    start_warp("cpu")
    dump = finite.load(path, train_config.task)
    # No episode may end in the repetition, because a reset would replace the state after the step.
    env_config = dataclasses.replace(train_config.env, terminations={}, nan_policy="stop")
    env = Env(env_config, len(dump["env_ids"]), "cpu")
    env.max_episode_length += 1
    env.env_ids.copy_(dump["env_ids"])

    # States before and after each step in the run; then repeat the step from the state before it
    every, steps = torch.arange(env.num_envs), dump["steps"]
    rows = (steps - 1).clamp_min(0)
    before, after = ({name: states[t, every] for name, states in dump["state"].items()} for t in (rows, steps))
    try:
        copy_state(before, {**env.sim.physics, "episode_length": env.episode_length_buf}, env.sim.limits())
    except UserError as error:
        raise UserError(f"--nan-dump {path}: {error}") from error
    nothing = torch.zeros(1, env.num_envs, env.num_actions)  # for envs whose step is 0
    actions = torch.cat([dump["actions"], nothing])[rows, every]
    obs, rewards, _, _ = env.step(actions)
    again = {"qpos": env.sim.qpos, "qvel": env.sim.qvel}
    numbers = [*again.values(), env.sim.view("act"), *obs.values(), rewards.unsqueeze(1)]
    finite_again = torch.cat([tensor.flatten(1) for tensor in numbers], dim=1).isfinite().all(dim=1)
    ended = torch.cat([dump["dones"], nothing[..., 0].bool()])[rows, every]

    # Results
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
        poses = {name: dump["state"][name][: replayed[0].step + 1, 0] for name in poses_of(env)}
        _draw_states(config, env, poses)
    return replayed


def _labels(field: str, names: list[str]) -> list[str]:
    """Return one label per column. If a joint has several columns, they are numbered."""
    return [
        f"{field} {name}" if names.count(name) == 1 else f"{field} {name}[{names[:i].count(name)}]"
        for i, name in enumerate(names)
    ]


def _draw_states(config: PlayConfig, env: Env, poses: dict[str, torch.Tensor]) -> None:
    steps = range(len(poses["qpos"]))
    drawable = [step for step in steps if all(states[step].isfinite().all() for states in poses.values())]
    if not drawable:
        print("There is no state to draw: no state of the first env is finite.")
        return
    video = Video(config, env, len(drawable), DUMP_FPS)
    shown = poses_of(env)
    for step in drawable:
        for name, pose in shown.items():
            pose.copy_(poses[name][step])
        video.frame()
    video.close()
    print(f"Video: {config.video}")
