"""The envs of one rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mjlab_dist.config.limits import validate_seed
from mjlab_dist.env import Env
from mjlab_dist.env.observation_group import FinalObservations
from mjlab_dist.errors import UserError, with_notes
from mjlab_dist.sim import start_warp
from mjlab_dist.simulate.draws import Draws
from mjlab_dist.simulate.envs import checked_actions
from mjlab_dist.simulate.make import FINAL, LAST, Job, Sizes, Tensors, require_same

# Number added to the seed of the envs; the sum is the seed of a policy's draws
POLICY_SEED = 7_919

# Names of tensors in the state of an `Env` that are sums over the envs of a rank. Only training uses these sums, so
# the state of a simulation does not include them.
SUMS = ("totals", "outcome_totals", "nan_resets")

# Prefix of the latest observations in the state
OBSERVED = "observed."

# Function from observations, by group, to actions, (num_envs, num_actions)
Policy = Callable[[Tensors], Any]


@dataclass(kw_only=True)
class _Group:
    """The envs of one variant."""

    env: Env
    # Observations before resets, if they were requested
    final: FinalObservations | None
    draws: Draws
    # Position of this group's first env among all envs of the variant
    first: int
    # Rows of this group's envs among the envs of this rank
    rows: slice
    # Prefix of the names of this group's tensors in the state
    prefix: str


class Shard:
    """Contiguous part of all envs, on one device. Each variant has its own env object.

    Results are tensors by name: ``observations.<group>``, and ``final_observations.<group>`` if requested, (num_envs,
    width); ``rewards``, ``terminated`` and ``truncated``, (num_envs,). Later steps do not overwrite them.

    Attributes:
        sizes: Sizes of the envs.
        rows: Global ids of the envs.
        device: Device of the envs.
        shared: Names of the tensors of the state that do not have a row per env.
        observed: The latest observations by group.
    """

    def __init__(self, job: Job, rows: range, device: str) -> None:
        """Build the envs, and start an episode in each."""
        self._job, self.rows, self.device = job, rows, device
        size = job.envs_per_variant
        self._groups = [
            self._build(variant, range(max(rows.start, variant * size), min(rows.stop, (variant + 1) * size)))
            for variant in range(rows.start // size, (rows.stop - 1) // size + 1)
        ]
        self.sizes = self._sizes()
        self._policy_draws = Draws(device, len(rows), rows.start, job.num_envs)
        self._seed(job.seed)
        self.observed = self._observations()
        self._begin = self._before = self.state()
        self.shared = self._begin.keys() - {
            name
            for prefix, _, num_envs, _ in self._spans()
            for name, tensor in self._begin.items()
            if name.startswith(prefix) and tensor.shape[:1] == (num_envs,)
        }

    def execute(self, command: str, *arguments: Any) -> Tensors:
        """Call a method by its name, and return its result; {} if it has none."""
        return getattr(self, command)(*arguments) or {}

    def reset(self, seed: int | None) -> Tensors:
        """Start an episode in every env."""
        if seed is not None:
            self._restore(self._begin)
            self._seed(seed)
        for group in self._groups:
            with group.draws, torch.no_grad():
                group.env.reset()
        self.observed = self._observations()
        return self._named_observations()

    def step(self, actions: torch.Tensor | np.ndarray) -> Tensors:
        """Advance every env of this rank by one control step."""
        actions = torch.as_tensor(actions, device=self.device)
        parts: list[Tensors] = []
        for group in self._groups:
            with group.draws, torch.no_grad():
                _, reward, done, extras = group.env.step(actions[group.rows])
            truncated = extras["time_outs"]
            part = {"rewards": reward, "terminated": done & ~truncated, "truncated": truncated}
            final = group.final.observed if group.final is not None else {}
            parts.append({**part, **_named(FINAL, final)})
        self.observed = self._observations()
        return {**self._named_observations(), **_joined(parts)}

    def rollout(self, policy: Policy, num_steps: int, begin_step: Callable[[], None] = lambda: None) -> Tensors:
        """Let a policy act for several steps.

        Args:
            policy: Function from observations to actions.
            num_steps: Number of steps.
            begin_step: Called before each step.

        Returns:
            ``actions`` and the results of the steps, (num_steps, num_envs, ...), and ``last_observations.<group>``,
            (num_envs, width).
        """
        results: Tensors = {}
        for step in range(num_steps):
            begin_step()
            made = {**self._named_observations(), "actions": self._act(policy)}
            made |= {name: value for name, value in self.step(made["actions"]).items() if name not in made}
            for name, value in made.items():
                if step == 0:
                    results[name] = value.new_empty((num_steps, *value.shape))
                results[name][step].copy_(value)
        return {**results, **_named(LAST, self.observed)}

    def remember(self) -> None:
        """Store the state for :meth:`undo`."""
        self._before = self.state()

    def undo(self) -> None:
        """Restore the state that :meth:`remember` stored last."""
        self._restore(self._before)

    def _act(self, policy: Policy) -> torch.Tensor:
        with self._policy_draws, torch.no_grad():
            try:
                actions = policy(dict(self.observed))
            except Exception as error:
                raise UserError(f"policy: raised {type(error).__name__}: {with_notes(error)}") from error
        return checked_actions("policy", actions, (len(self.rows), self.sizes.num_actions), self.device)

    def poses(self, env: int) -> Tensors:
        """Return the data for a picture of an env: fields of MuJoCo's data, and ``origin``; {} for another rank's."""
        if env not in self.rows:
            return {}
        row = env - self.rows.start
        (group,) = [group for group in self._groups if group.rows.start <= row < group.rows.stop]
        physics, index = group.env.sim.physics, row - group.rows.start
        poses = {name: physics[name][index] for name in ("qpos", "mocap_pos", "mocap_quat") if name in physics}
        return {name: pose.cpu().clone() for name, pose in {**poses, "origin": group.env.origins[index]}.items()}

    def state(self) -> Tensors:
        """Return a copy of the state: the values of each env, (num_envs, ...), and the states of random generators."""
        state = {f"{OBSERVED}{name}": value.clone() for name, value in self.observed.items()}
        state |= {f"policy_draws.{name}": value for name, value in self._policy_draws.state().items()}
        for group in self._groups:
            held = {name: tensor for name, tensor in group.env.state().items() if name not in SUMS}
            held |= {f"draws.{name}": value for name, value in group.draws.state().items()}
            state |= {f"{group.prefix}{name}": tensor for name, tensor in held.items()}
        return state

    def load_state(self, state: Mapping[str, torch.Tensor | np.ndarray]) -> Tensors:
        """Load the state of all envs of all ranks, and return the observations."""
        if missing := sorted(self._begin.keys() - state.keys()):
            raise UserError(f"state: {missing[0]} is missing; load the state of the same task")
        picked = {name: torch.as_tensor(state[name]) for name in self._begin}
        for prefix, first, num_envs, total in self._spans():
            for name in picked.keys() - self.shared:
                if name.startswith(prefix) and picked[name].shape[:1] == (total,):
                    picked[name] = picked[name][first : first + num_envs]
        self._restore(picked, checked=True)
        return self._named_observations()

    def _spans(self) -> list[tuple[str, int, int, int]]:
        """Return the parts of the state: one per variant, and the observations.

        Each part is a tuple: prefix of its names, first env and number of envs of this rank, and total number of envs.
        """
        spans = [(group.prefix, group.first, group.env.num_envs, self._job.envs_per_variant) for group in self._groups]
        return [*spans, (OBSERVED, self.rows.start, len(self.rows), self._job.num_envs)]

    def _restore(self, state: Mapping[str, torch.Tensor], *, checked: bool = False) -> None:
        """Load the result of :meth:`state` of this rank."""
        for group in self._groups:
            held = group.env.state()
            part = {name: state[f"{group.prefix}{name}"] for name in held if name not in SUMS}
            group.env.load_state({**held, **part}, checked=checked)
            group.draws.load_state(_with_prefix(state, f"{group.prefix}draws."))
        self._policy_draws.load_state(_with_prefix(state, "policy_draws."))
        self.observed = {
            name: value.to(self.device, copy=True) for name, value in _with_prefix(state, OBSERVED).items()
        }

    def _build(self, variant: int, ids: range) -> _Group:
        job = self._job
        first = ids.start - variant * job.envs_per_variant
        draws = Draws(self.device, len(ids), first, job.envs_per_variant)
        draws.seed(job.seed)
        with draws, torch.no_grad():
            env = Env(job.configs[variant].env, len(ids), self.device, first)
        return _Group(
            env=env,
            final=FinalObservations(env) if job.final_observations else None,
            draws=draws,
            first=first,
            rows=slice(ids.start - self.rows.start, ids.stop - self.rows.start),
            prefix=f"{variant}/" if len(job.configs) > 1 else "",
        )

    def _sizes(self) -> Sizes:
        found = [
            Sizes(
                observations={name: value.shape[1] for name, value in group.env.get_observations().items()},
                num_actions=group.env.num_actions,
                action_names=tuple(group.env.action_names),
                action_bounds=tuple(
                    term.block.config.clip or (-math.inf, math.inf)
                    for term in group.env.action_terms
                    for _ in term.names
                ),
                step_dt_s=group.env.step_dt_s,
            )
            for group in self._groups
        ]
        return require_same(found)

    def _seed(self, seed: int) -> None:
        validate_seed(seed)
        for group in self._groups:
            group.draws.seed(seed)
        self._policy_draws.seed(seed + POLICY_SEED)

    def _observations(self) -> Tensors:
        return _joined([group.env.get_observations().to_dict() for group in self._groups])

    def _named_observations(self) -> Tensors:
        return _named("observations", self.observed)


class Here:
    """All envs of a job, in this process. Results are tensors on their device."""

    def __init__(self, job: Job, device: str) -> None:
        """Build the envs."""
        if device != "cpu":
            torch.cuda.set_device(device)  # for code that does not name a device; ranks do the same
        start_warp(device)
        self._shard = Shard(job, range(job.num_envs), device)
        self._result: Tensors = {}
        self.device, self.sizes = device, self._shard.sizes

    def begin(self, command: str, *arguments: Any) -> None:
        """Call a method of :class:`Shard`. On a GPU, the call does not wait for a step to end."""
        self._result = self._shard.execute(command, *arguments)

    def end(self) -> Tensors:
        """Return the result of the command."""
        result, self._result = self._result, {}
        return result

    def close(self) -> None:
        """Free the envs."""
        del self._shard, self._result


def _joined(parts: Sequence[Tensors]) -> Tensors:
    """Concatenate the tensors of all groups, by name. With one group, return its tensors without a copy."""
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _named(prefix: str, observations: Tensors) -> Tensors:
    """Return copies, which the caller may change."""
    return {f"{prefix}.{name}": value.clone() for name, value in observations.items()}


def _with_prefix(state: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
