"""The number of operations of a control step has a maximum, so that added operations are noticed.

With a GPU, each operation takes 4 to 6 µs on the host. On a CPU with few envs, a step spends most of its time on the
overhead of operations. If a count falls, lower the maximum. If a count must rise, explain the reason in the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from every_task import NAMES, config_of
from operations import counted

from mjlab_dist.distributed import Rank
from mjlab_dist.env import Env
from mjlab_dist.learn.runner import Runner


class Count(NamedTuple):
    """Number of operations of a control step. Operations that only create a view of a tensor are not counted."""

    env: int
    """Operations in ``Env.step``."""
    whole: int
    """Operations in the training loop: policy, envs, and storage of the step."""


MAXIMA = {
    "arm-lift-cube": Count(121, 167),
    "arm-reach": Count(71, 117),
    "cartpole-balance": Count(36, 76),
    "cartpole-swingup": Count(36, 76),
    "gym-ant": Count(47, 103),
    "gym-half-cheetah": Count(26, 82),
    "gym-hopper": Count(65, 121),
    "gym-humanoid": Count(59, 117),
    "gym-inverted-pendulum": Count(34, 90),
    "gym-reacher": Count(54, 110),
    "gym-walker2d": Count(49, 105),
    "humanoid-velocity-flat": Count(153, 199),
    "quadruped-tracking": Count(296, 336),
    "quadruped-velocity-flat": Count(152, 192),
    "quadruped-velocity-rough": Count(187, 227),
    "template": Count(38, 84),
    "everything": Count(267, 325),
}


def count(env: Env, runner: Runner) -> Count:
    """Count the operations of the second step, because rsl_rl allocates its storage in the first step."""
    obs, actions = env.get_observations(), torch.zeros(env.num_envs, env.num_actions)
    with torch.inference_mode():
        obs = runner._control_step(0, obs)
        with counted() as whole:
            runner._control_step(1, obs)
        with counted() as of_env:
            env.step(actions)
    return Count(of_env.num, whole.num)


@pytest.mark.parametrize("task", NAMES)
def test_a_step_takes_no_more_operations_than_before(task: str, build_env: Callable[[str], Env]) -> None:
    env = build_env(task)
    runner = Runner(env, config_of(task), Rank())
    runner.alg.train_mode()
    found, most = count(env, runner), MAXIMA[task]
    assert found.env <= most.env
    assert found.whole <= most.whole


def test_views_are_not_counted_and_lists_and_programs_count_once(build_env: Callable[[str], Env]) -> None:
    env, x = build_env("cartpole-balance"), torch.zeros(4, 3)
    with torch.inference_mode(), counted() as operations:
        _ = x[:, 1:].unsqueeze(1).expand(4, 2, 2).flatten(0, 0)
        _ = torch.empty_like(x)
    assert operations.num == 0
    with torch.inference_mode(), counted() as operations:
        torch._foreach_copy_([x, x], [x + 1.0, x * 2.0])  # pyright: ignore[reportPrivateImportUsage]
        env.sim.step()
    assert operations.num == 4
