"""Check that mirrored states have mirrored observations and equal rewards, in tasks with mirrored samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch

from mjlab_dist.authoring.check.task_checks import Check, failed, passed
from mjlab_dist.authoring.check.watched_env import WatchedEnv
from mjlab_dist.config import EnvConfig
from mjlab_dist.config.task import without_disturbances
from mjlab_dist.errors import UserError, listed
from mjlab_dist.mdp.mirror import ROTATION, VECTOR, Mirror, WithMirrored, with_mirrored
from mjlab_dist.mdp.sensors import Gait

# Pairs of robots: the second one begins as the mirror image of the first one
NUM_PAIRS = 16

# Steps of each pair. Later, small differences of the masses on the left and right matter.
NUM_STEPS = 3

# Number of steps that an episode has already taken. Gaits have begun by then.
START = 25

# Maximum difference of an observation or reward, as a share of its standard deviation. A wrong sign gives 2.
MAX_DIFFERENCE = 0.5

# Difference that is always allowed, as a share of the largest value
NEGLIGIBLE = 1e-3

# Difference of numbers that are 0, except for rounding
ROUNDING = 1e-6


def check_mirror(config: EnvConfig) -> Check:
    """Step robots and their mirror images, and compare observations and rewards."""
    torch.manual_seed(0)
    if config.sim.terrain.parts:
        return passed("mirror", "not checked, because the terrain is not symmetric")
    # Without chance, and without ends of episodes
    calm = without_disturbances(config)
    calm = dataclasses.replace(calm, events={}, curricula={}, terminations={}, metrics={})
    env = WatchedEnv(calm, 2 * NUM_PAIRS)
    try:
        append = WithMirrored(env)
        _place(env, append.mirror)
    except UserError as error:
        return failed("mirror", str(error))
    one, other = torch.arange(2 * NUM_PAIRS).split(NUM_PAIRS)
    values: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for _ in range(NUM_STEPS):
        _, actions = append(env, None, 0.3 * torch.randn(NUM_PAIRS, env.num_actions))
        assert actions is not None
        obs, *_ = env.step(actions)
        both, _ = append(env, obs[:NUM_PAIRS], None)
        assert both is not None
        for group, columns in env.observation_columns().items():
            for name, at in columns.items():
                pair = both[group][other, at], obs[group][other, at]
                values.setdefault(f"observations.{group}.{name}", []).append(pair)
        for name, earned in zip(env.reward_names, env._episodes.earned.clone(), strict=True):
            values.setdefault(f"rewards.{name}", []).append((earned[one], earned[other]))
    wrong = list(_different(values))
    if wrong:
        fix = "correct its mirror image (see mjlab_dist.mdp.mirror), or its left-right asymmetry"
        return failed("mirror", f"{listed(wrong)} differ from the mirror image in mirrored states; {fix}")
    return passed("mirror", f"mirrored states have mirrored observations and equal rewards ({len(values)} terms)")


def _different(values: dict[str, list[tuple[torch.Tensor, torch.Tensor]]]) -> Iterator[str]:
    for name, pairs in values.items():
        expected, found = (torch.stack(rows) for rows in zip(*pairs, strict=True))
        difference = (found - expected).square().mean().sqrt()
        if difference > MAX_DIFFERENCE * expected.std() + NEGLIGIBLE * expected.abs().max() + ROUNDING:
            yield name


def _place(env: WatchedEnv, mirror: Mirror) -> None:
    """Begin episodes in random states. Those of the second half of the envs are images of those of the first half."""
    env.reset()
    rows, sim = slice(NUM_PAIRS), env.sim
    # Positions and velocities of the joints, in all envs; the base is the first free joint
    found = env.find_joints((".*",))
    image, home = mirror.joints(found.names), found.qpos.of(env.reference.qpos)
    bent, speed = 0.1 * torch.randn(2, NUM_PAIRS, len(found.names))
    found.qpos.set(sim.qpos, home + with_mirrored(bent, image))
    found.qvel.set(sim.qvel, with_mirrored(speed, image))
    base = next((joint for joint in env.joints.values() if joint.is_free), None)
    if base is not None:
        pose, twist = sim.qpos[:, base.qpos], sim.qvel[:, base.qvel]
        turned = torch.nn.functional.normalize(pose[rows, 3:] + 0.1 * torch.randn(NUM_PAIRS, 4))
        pose[:, 3:] = with_mirrored(turned, ((0, 1), (1, -1), (2, 1), (3, -1)))
        pose[:, :3] = with_mirrored(pose[rows, :3], VECTOR)
        twist[:, :3] = with_mirrored(0.3 * torch.randn(NUM_PAIRS, 3), VECTOR)
        twist[:, 3:] = with_mirrored(0.3 * torch.randn(NUM_PAIRS, 3), ROTATION)
    # Commands, which must not change afterwards
    for command in env._commands.by_name.values():
        command.value.copy_(with_mirrored(command.value[rows], mirror.term(command)))
    env._commands._resamples, env._commands._follows = [], []
    # The second robot's gait may be half a period ahead, which need not be a whole number of steps
    env.episode_length_buf[:] = START + torch.arange(NUM_PAIRS).repeat(2)
    for sensor in env.terms.values():
        if isinstance(sensor, Gait) and mirror.term(sensor)[0][1] < 0:
            sensor._ahead = sensor._ahead + math.pi * (torch.arange(2 * NUM_PAIRS) >= NUM_PAIRS).unsqueeze(1)
    sim.forward()
