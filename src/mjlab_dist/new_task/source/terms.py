"""The text of a new task's ``terms.py``."""

from __future__ import annotations

from mjlab_dist.new_task.robot import Robot
from mjlab_dist.new_task.source.names import Names


def terms_source(names: Names, robot: Robot) -> str:
    """Return the text of ``terms.py``.

    Args:
        names: Names of the task and its files.
        robot: What was found in the MJCF.
    """
    # In a checkout the import sorter puts this project's packages after a blank line.
    gap = "\n" if "." in names.module else ""
    head = f'''"""Terms of the task {names.task}: each works on all copies of the robot at once, on the device.

Each row of a tensor is a copy of the robot. Nothing here may wait for the device: no .item(), .cpu(), print or if on a
tensor's numbers, and no mask as an index; use torch.where.
"""

import torch
{gap}from mjlab_dist.env import Env
'''
    return head + (_FLOATING_TERMS if robot.base else _FIXED_TERMS)


_FLOATING_TERMS = '''from mjlab_dist.mdp.observations import base_linear_velocity


def forward_speed(env: Env, max_m_s: float, joint: str = "root") -> torch.Tensor:
    """Reward: the robot's speed along its own x axis divided by max_m_s, between -1 and 1; (num_envs,)."""
    return base_linear_velocity(env, joint)[:, 0].clamp(-max_m_s, max_m_s) / max_m_s
'''

_FIXED_TERMS = '''from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Command, Term


class JointTargets(Command):
    """Command: positions for joints, in rad or m; (num_envs, joints).

    An instance is made once, with the env: __init__ looks up names and allocates. It is then called in every step.
    """

    def __init__(self, env: Env, joints: tuple[str, ...], reach: float, resample_s: tuple[float, float]) -> None:
        found = env.find_joints(joints)
        start = found.qpos.of(env.reference.qpos)[0].clamp(found.lower, found.upper)
        low = torch.maximum(found.lower, start - reach)
        high = torch.minimum(found.upper, start + reach)
        ranges = list(zip(low.tolist(), high.tolist(), strict=True))
        super().__init__(env, ranges, len(ranges), resample_s)

    def draw(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002 (every command takes the env)
        """Draw targets for the envs of a mask, (num_envs,) of bool."""
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
