"""Terms of new tasks with the goal hold, for a robot that is fixed to the world."""

import torch

from mjlab_dist.env import Env
from mjlab_dist.env.columns import write_rows
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
