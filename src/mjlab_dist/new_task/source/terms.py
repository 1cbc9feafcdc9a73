"""Text of the ``terms.py`` of a new task."""

from __future__ import annotations

from mjlab_dist.new_task.robot import Robot
from mjlab_dist.new_task.source.names import Names


def terms_source(names: Names, robot: Robot) -> str:
    """Return the text of ``terms.py``."""
    # In a checkout the import sorter puts this project's packages after a blank line.
    gap = "\n" if "." in names.module else ""
    head = f'''"""Terms of the task {names.task}. Each term computes one tensor for all envs, with one row per env.

Terms must not wait for the device: do not use .item(), .cpu(), print or if with the values of a tensor. Instead of
indexing a tensor with a mask, use torch.where.
"""

import torch
{gap}from mjlab_dist.env import Env
'''
    return head + _terms_of(robot)


def _terms_of(robot: Robot) -> str:
    if robot.goal == "none":
        return _NO_TERMS
    if robot.base is None:
        return {"reach": _REACH_TERMS, "hold": _FIXED_TERMS}.get(robot.goal, _PENDULUM_TERMS)
    if robot.goal == "hold":
        return _FREE_DRIFT if robot.base.is_free else _DRIFT
    return _FLOATING_TERMS if robot.base.is_free else _PLANAR_TERMS


_NO_TERMS = '''

def your_function(env: Env) -> torch.Tensor:
    """Reward: an example, 1 in every step; (num_envs,)."""
    return torch.ones(env.num_envs, device=env.device)
'''

_PLANAR_TERMS = '''

def forward_speed(env: Env, max_m_s: float, joint: str) -> torch.Tensor:
    """Reward: velocity of a slide joint divided by max_m_s, clipped to [-1, 1]; (num_envs,).

    Args:
        env: The envs.
        max_m_s: Velocity in m/s at which the reward is 1.
        joint: The slide joint along which the robot moves.
    """
    return env.sim.qvel[:, env.joints[joint].qvel][:, 0].clamp(-max_m_s, max_m_s) / max_m_s
'''

_DRIFT = '''

def drift(env: Env, joint: str) -> torch.Tensor:
    """Reward: speed of a slide joint in m/s; (num_envs,).

    Args:
        env: The envs.
        joint: The slide joint along which the robot moves.
    """
    return env.sim.qvel[:, env.joints[joint].qvel][:, 0].abs()
'''

_FREE_DRIFT = '''

def drift(env: Env, joint: str = "root") -> torch.Tensor:
    """Reward: speed of the base in m/s; (num_envs,).

    Args:
        env: The envs.
        joint: The robot's free joint.
    """
    return env.sim.qvel[:, env.joints[joint].qvel][:, :3].norm(dim=1)
'''

_REACH_TERMS = '''from mjlab_dist.env.term import Term


class ToTarget(Term):
    """Observation: vector from a site to the target, in m; (num_envs, 3)."""

    def __init__(self, env: Env, command: str, site: str) -> None:
        """Look up the site.

        Args:
            env: The envs.
            command: Name of the command.
            site: Name of the site.
        """
        self._command = command
        self._site = env.find_sites((site,))

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the vectors, (num_envs, 3)."""
        return env.command(self._command)[:, :3] - self._site.pos[:, 0]


class AtTarget(Term):
    """Reward: exp(-distance^2 / std_m^2) for the distance between a site and the target; (num_envs,)."""

    def __init__(self, env: Env, command: str, site: str, std_m: float) -> None:
        """Look up the site.

        Args:
            env: The envs.
            command: Name of the command.
            site: Name of the site.
            std_m: Distance in m at which the reward is 0.37.
        """
        self._to_target = ToTarget(env, command, site)
        self._std_m = std_m

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the rewards, (num_envs,)."""
        return torch.exp(-self._to_target(env).square().sum(dim=1) / self._std_m**2)


class DistanceCm(Term):
    """Metric: distance between a site and the target, in cm; (num_envs,)."""

    def __init__(self, env: Env, command: str, site: str) -> None:
        """Look up the site.

        Args:
            env: The envs.
            command: Name of the command.
            site: Name of the site.
        """
        self._to_target = ToTarget(env, command, site)

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the distances, (num_envs,)."""
        return 100.0 * self._to_target(env).norm(dim=1)
'''

_PENDULUM_TERMS = '''from mjlab_dist.env.term import Term


class Height(Term):
    """Reward: height of a body's center of mass, 0 at low_m and 1 at high_m; (num_envs,)."""

    def __init__(self, env: Env, body: str, low_m: float, high_m: float) -> None:
        """Look up the body.

        Args:
            env: The envs.
            body: Name of the body.
            low_m: Height in m at which the reward is 0.
            high_m: Height in m at which the reward is 1.
        """
        self._height_m = env.sim.view("xipos")[:, env.sim.model.body(body).id, 2]
        self._low_m, self._range_m = low_m, high_m - low_m

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every reward takes the env)
        """Return the rewards, (num_envs,)."""
        return (self._height_m - self._low_m) / self._range_m


class Below(Term):
    """Termination: whether a body's center of mass is below min_m; (num_envs,) of bool."""

    def __init__(self, env: Env, body: str, min_m: float) -> None:
        """Look up the body.

        Args:
            env: The envs.
            body: Name of the body.
            min_m: Minimum height in m.
        """
        self._height_m = env.sim.view("xipos")[:, env.sim.model.body(body).id, 2]
        self._min_m = min_m

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every termination takes the env)
        """Return whether the body is too low, (num_envs,)."""
        return self._height_m < self._min_m
'''

_FLOATING_TERMS = '''from mjlab_dist.mdp.observations import base_linear_velocity


def forward_speed(env: Env, max_m_s: float, joint: str = "root") -> torch.Tensor:
    """Reward: velocity along the robot's x axis divided by max_m_s, clipped to [-1, 1]; (num_envs,).

    Args:
        env: The envs.
        max_m_s: Velocity in m/s at which the reward is 1.
        joint: The robot's free joint.
    """
    return base_linear_velocity(env, joint)[:, 0].clamp(-max_m_s, max_m_s) / max_m_s
'''

_FIXED_TERMS = '''from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Command, Term
from mjlab_dist.mdp.rotation import wrap_angle


class JointTargets(Command):
    """Command: target positions of joints, in rad or m; (num_envs, joints).

    The env creates one instance. __init__ looks up names and allocates; the other methods run in every step.
    """

    def __init__(self, env: Env, joints: tuple[str, ...], reach: float, resample_s: tuple[float, float]) -> None:
        """Compute the ranges of the targets.

        Args:
            env: The envs.
            joints: Regular expressions that match the names of the joints.
            reach: Maximum distance of a target from the start state, in rad or m.
            resample_s: Range of the time between two targets, in s.
        """
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
    """Observation: distances of joints to their targets, in rad or m; (num_envs, joints).

    For the hinges in endless, the distance is measured in the shorter direction.
    """

    def __init__(self, env: Env, command: str, joints: tuple[str, ...], endless: tuple[str, ...] = ()) -> None:
        """Look up the joints.

        Args:
            env: The envs.
            command: Name of the command.
            joints: Regular expressions that match the names of the joints.
            endless: Regular expressions that match the names of the hinges without limits.
        """
        found = env.find_joints(joints)
        self._command = command
        self._columns = found.qpos
        turning = env.find_joints(endless).names if endless else ()
        self._wraps = torch.tensor([name in turning for name in found.names], device=env.device)

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the distances, (num_envs, joints)."""
        distance = env.command(self._command) - self._columns.of(env.sim.qpos)
        return torch.where(self._wraps, wrap_angle(distance), distance)


class Distance(Term):
    """Reward: mean over joints of the distance divided by half the range of the targets; (num_envs,)."""

    def __init__(self, env: Env, command: str, joints: tuple[str, ...], endless: tuple[str, ...] = ()) -> None:
        """Look up the joints and the ranges of their targets.

        Args:
            env: The envs.
            command: Name of the command.
            joints: Regular expressions that match the names of the joints.
            endless: Regular expressions that match the names of the hinges without limits.
        """
        self._to_target = ToTarget(env, command, joints, endless)
        low, high = env.find_command(command).ranges.unbind(dim=1)
        self._half = 0.5 * (high - low).clamp(min=1e-6)

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the rewards, (num_envs,)."""
        return (self._to_target(env) / self._half).abs().mean(dim=1)


class Reached(Term):
    """Reward: mean over joints of exp(-distance^2 / (std * half range)^2), 1 with all at their targets; (num_envs,)."""

    def __init__(
        self, env: Env, command: str, joints: tuple[str, ...], std: float, endless: tuple[str, ...] = ()
    ) -> None:
        """Look up the joints and the ranges of their targets.

        Args:
            env: The envs.
            command: Name of the command.
            joints: Regular expressions that match the names of the joints.
            std: Distance at which the reward for a joint is 0.37, as a share of half the range of its target.
            endless: Regular expressions that match the names of the hinges without limits.
        """
        self._to_target = ToTarget(env, command, joints, endless)
        low, high = env.find_command(command).ranges.unbind(dim=1)
        self._std = std * 0.5 * (high - low).clamp(min=1e-6)

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the rewards, (num_envs,)."""
        return torch.exp(-(self._to_target(env) / self._std).square()).mean(dim=1)
'''
