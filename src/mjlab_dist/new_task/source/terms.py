"""Text of the ``terms.py`` of a new task."""

from __future__ import annotations

from mjlab_dist.new_task.robot import Robot
from mjlab_dist.new_task.source.names import Names


def terms_source(names: Names, robot: Robot) -> str:
    """Return the text of ``terms.py``.

    Args:
        names: Names of the task and its files.
        robot: The robot in the MJCF.
    """
    # In a checkout the import sorter puts this project's packages after a blank line.
    gap = "\n" if "." in names.module else ""
    head = f'''"""Terms of the task {names.task}. Each term computes one tensor for all envs, with one row per env.

Terms must not wait for the device: do not use .item(), .cpu(), print or if on tensor values, and do not index with a
mask; use torch.where.
"""

import torch
{gap}from mjlab_dist.env import Env
'''
    return head + (_FLOATING_TERMS if robot.base else _FIXED_TERMS)


_FLOATING_TERMS = '''from mjlab_dist.mdp.observations import base_linear_velocity


def forward_speed(env: Env, max_m_s: float, joint: str = "root") -> torch.Tensor:
    """Reward: velocity along the robot's x axis divided by max_m_s, clipped to [-1, 1]; (num_envs,)."""
    return base_linear_velocity(env, joint)[:, 0].clamp(-max_m_s, max_m_s) / max_m_s
'''

_FIXED_TERMS = '''from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Command, Term


class JointTargets(Command):
    """Command: target positions of joints, in rad or m; (num_envs, joints).

    The env creates one instance. __init__ looks up names and allocates; the other methods run in every step.
    """

    def __init__(self, env: Env, joints: tuple[str, ...], reach: float, resample_s: tuple[float, float]) -> None:
        found = env.find_joints(joints)
        start = found.qpos.of(env.reference.qpos)[0].clamp(found.lower, found.upper)
        low = torch.maximum(found.lower, start - reach)
        high = torch.minimum(found.upper, start + reach)
        ranges = list(zip(low.tolist(), high.tolist(), strict=True))
        super().__init__(env, ranges, len(ranges), resample_s)

    def draw(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002 (every command takes the env)
        """Draw targets for the envs in a mask, (num_envs,) of bool."""
        write_rows(self.value, mask, self.uniform())


class ToTarget(Term):
    """Observation: distances of joints to their targets, in rad or m; (num_envs, joints)."""

    def __init__(self, env: Env, command: str, joints: tuple[str, ...]) -> None:
        self._command = command
        self._columns = env.find_joints(joints).qpos

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the distances, (num_envs, joints)."""
        return env.command(self._command) - self._columns.of(env.sim.qpos)


class Distance(Term):
    """Reward: mean distance of joints from their targets, in rad or m; (num_envs,)."""

    def __init__(self, env: Env, command: str, joints: tuple[str, ...]) -> None:
        self._to_target = ToTarget(env, command, joints)

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the rewards, (num_envs,)."""
        return self._to_target(env).abs().mean(dim=1)


class Reached(Term):
    """Reward: mean over joints of exp(-distance^2 / std^2), 1 with all joints at their targets; (num_envs,)."""

    def __init__(self, env: Env, command: str, joints: tuple[str, ...], std: float) -> None:
        self._to_target = ToTarget(env, command, joints)
        self._std = std

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the rewards, (num_envs,)."""
        return torch.exp(-(self._to_target(env) / self._std).square()).mean(dim=1)
'''
