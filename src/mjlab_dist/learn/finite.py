"""Find non-finite numbers in a rollout without waiting for the device, and dump the envs with such numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjlab_dist.env import Env, EpisodeTotals
from mjlab_dist.errors import UserError, listed
from mjlab_dist.learn import checkpoint
from mjlab_dist.runs.run_dir import ERRORS_DIR
from mjlab_dist.sim import check_limits

# Maximum number of envs in a dump. If more envs fail, the dump contains those that failed first.
MAX_KEPT = 64

# Maximum number of names, or envs, that a message lists
_LISTED = 4

# Parts of the physics state that are checked. A non-finite number in another part spreads to these in one step.
_STATE = ("qpos", "qvel", "act")


class Dump(TypedDict):
    """States of envs in which a number was not finite: tensors on the CPU, and plain values.

    There are k envs. T is the largest of ``steps``. Row t of ``state`` and ``observations`` contains the values after t
    steps.
    """

    task: str
    # Number of envs in which a number was not finite; k is at most MAX_KEPT
    num_envs: int
    # IDs of the envs, which are unique over all ranks, (k,). The env that failed first is first.
    env_ids: torch.Tensor
    # Steps of the rollout before the first non-finite number, (k,); 0 if the initial state already contained one
    steps: torch.Tensor
    # For each env, the joints, terms and actuators whose numbers were not finite after the steps in steps, by kind
    names: list[dict[str, list[str]]]
    # Simulation.physics and episode_length, (T + 1, k, ...)
    state: dict[str, torch.Tensor]
    # Observations by group, (T + 1, k, ...)
    observations: dict[str, torch.Tensor]
    # The policy's output in each step, (T, k, num_actions)
    actions: torch.Tensor
    # Rewards of the learner, (T, k). They include intrinsic rewards, and the discounted value at a time-out.
    rewards: torch.Tensor
    # Whether the step ended an episode, (T, k) of bool. If so, the state after it belongs to the next episode.
    dones: torch.Tensor


class _Part(NamedTuple):
    """One of the checked tensors."""

    kind: str
    # (rows, num_envs, ..., columns)
    values: torch.Tensor
    # Number of steps of the rollout that come before row 0
    first: int


class FiniteCheck:
    """Stores the states of the current rollout, and checks them and the learner's storage."""

    def __init__(self, env: Env, storage: RolloutStorage) -> None:
        """Allocate room for the states."""
        self._env = env
        self._storage = storage
        self._num_steps = storage.num_transitions_per_env
        live = {**env.sim.physics, "episode_length": env.episode_length_buf}
        self._live = list(live.values())
        self._states = {name: t.new_zeros(self._num_steps + 1, *t.shape) for name, t in live.items()}
        self._rows = [list(row) for row in zip(*self._states.values(), strict=True)]
        self._last_obs: Mapping[str, Any] = {}

    def record(self, step: int) -> None:
        """Store the state before a step."""
        torch._foreach_copy_(self._rows[step], self._live)  # pyright: ignore[reportPrivateImportUsage]

    def count(self, obs: TensorDict) -> torch.Tensor:
        """Check a whole rollout.

        Returns:
            Number of envs in which a number was not finite, a scalar on the device.
        """
        self.record(self._num_steps)
        self._last_obs = dict(obs.items())
        # A maximum propagates NaN, and takes a tenth of the time of checking every number.
        largest = [part.values.abs().amax(dim=0).flatten(1).amax(dim=1) for part in self._parts()]
        return (~torch.stack(largest).isfinite().all(dim=0)).sum()

    def dump(self, task: str, totals: EpisodeTotals) -> Dump:
        """Dump the envs in which :meth:`count` found a non-finite number. Call this before the next rollout.

        The method waits for the device.
        """
        # Find the envs with non-finite numbers, and the first step of each
        broken = self._storage.dones.new_zeros(self._num_steps + 1, self._env.num_envs, dtype=torch.bool)
        for part in self._parts():
            rows = slice(part.first, part.first + len(part.values))
            broken[rows] |= ~part.values.isfinite().flatten(2).all(dim=2)
        steps, (found,) = broken.int().argmax(dim=0), broken.any(dim=0).nonzero(as_tuple=True)
        kept = found[steps[found].argsort(stable=True)][:MAX_KEPT]
        end = int(steps[kept].max())
        # Name the non-finite numbers, and copy the envs
        finite = totals.terms.isfinite().tolist()
        terms = [name for name, is_finite in zip(self._env.reward_names, finite, strict=True) if not is_finite]
        reward = ", ".join(terms) or "the value at a time-out, or the intrinsic reward"
        columns = {**column_names(self._env), "value": ["critic"], "reward": [reward]}
        storage = self._storage
        return Dump(
            task=task,
            num_envs=len(found),
            env_ids=self._env.env_ids[kept].cpu(),
            steps=steps[kept].cpu(),
            names=[self._names(env, int(steps[env]), columns) for env in kept.tolist()],
            state={name: states[: end + 1, kept].cpu() for name, states in self._states.items()},
            observations={
                name: torch.cat([group[:, kept], last[:, kept]])[: end + 1].cpu()
                for name, group, last in self._observations()
            },
            actions=storage.actions[:end, kept].cpu(),
            rewards=storage.rewards[:end, kept].squeeze(2).cpu(),
            dones=storage.dones[:end, kept].squeeze(2).bool().cpu(),
        )

    def _parts(self) -> Iterator[_Part]:
        """Yield the checked tensors in the order in which a non-finite number spreads."""
        yield _Part("action", self._storage.actions, 1)
        for name in _STATE:
            if name in self._states:
                yield _Part(f"physics {name}", self._states[name], 0)
        for name, group, last in self._observations():
            yield _Part(f"observation {name}", group, 0)
            yield _Part(f"observation {name}", last, self._num_steps)
        yield _Part("value", self._storage.values, 1)
        yield _Part("reward", self._storage.rewards, 1)

    def _observations(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Yield the name and the values of each group of observations.

        There are two tensors of values: before each step, (steps, num_envs, ...), and after the last step,
        (1, num_envs, ...).
        """
        for name, last in self._last_obs.items():
            yield name, self._storage.observations.get(name), last.unsqueeze(0)

    def _names(self, env: int, step: int, columns: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return the names of the numbers that were not finite in an env after a step, by kind."""
        names: dict[str, list[str]] = {}
        for part in self._parts():
            if not 0 <= step - part.first < len(part.values):
                continue
            row = part.values[step - part.first, env]
            broken = (~row.isfinite()).reshape(-1, row.shape[-1]).any(dim=0).tolist()
            found = [name for name, is_broken in zip(columns[part.kind], broken, strict=True) if is_broken]
            if found:
                names[part.kind] = list(dict.fromkeys(found))
        return names


def load(path: Path, task: str) -> Dump:
    """Read a dump."""
    content: Any = checkpoint.load(path, "cpu")
    if content.keys() != Dump.__required_keys__:
        raise UserError(f"--nan-dump {path}: contains no states of envs; give a file {ERRORS_DIR}/nan_rank<N>.pt")
    if content["task"] != task:
        raise UserError(
            f"--nan-dump {path}: was saved by a run of {content['task']}, not of {task}; play {content['task']}"
        )
    for name, most in (("env_ids", math.inf), ("steps", len(content["actions"]))):
        check_limits(f"--nan-dump {path}: {name}", content[name], torch.int64, (0, most))
    return content


def column_names(env: Env) -> dict[str, list[str]]:
    """Return the names of the columns of actions, observations and states, by kind."""
    columns = {
        "action": env.action_names,
        "physics qpos": [f"column {i}" for i in range(env.sim.model.nq)],
        "physics qvel": [f"column {i}" for i in range(env.sim.model.nv)],
        "physics act": [f"column {i}" for i in range(env.sim.model.na)],
    }
    for name, joint in env.joints.items():
        for kind, where in (("physics qpos", joint.qpos), ("physics qvel", joint.qvel)):
            columns[kind][where] = [name] * len(columns[kind][where])
    for group, terms in env.observation_columns().items():
        columns[f"observation {group}"] = [
            name for name, where in terms.items() for _ in range(where.start, where.stop)
        ]
    return columns


def describe(dump: Dump) -> str:
    """Describe a dump in one line: what was not finite, in which envs, and when."""
    kinds: dict[str, dict[str, None]] = {}
    for names in dump["names"]:
        for kind, columns in names.items():
            kinds.setdefault(kind, {}).update(dict.fromkeys(columns))
    what = ", ".join(f"{kind} ({_listed(list(columns))})" for kind, columns in kinds.items())
    envs = f"env{'s' * (dump['num_envs'] > 1)} {_listed(dump['env_ids'].tolist(), dump['num_envs'])}"
    step = int(dump["steps"].min())
    when = f"first at step {step} of the rollout" if step else "already before the first step of the rollout"
    return f"not finite: {what}; {envs}, {when}"


def _listed(items: Sequence[object], total: int | None = None) -> str:
    rest = (total or len(items)) - len(items[:_LISTED])
    return listed([*items[:_LISTED], f"{rest} more"] if rest else items)
