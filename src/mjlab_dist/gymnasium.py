"""Tasks as vector envs of Gymnasium. Importing this module registers every installed task as ``mjlab_dist/<task>``.

Needs the package gymnasium, which the extra ``gym`` installs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mjlab_dist.api import make
from mjlab_dist.config.registry import task_names
from mjlab_dist.errors import UserError, did_you_mean, listed
from mjlab_dist.imports import require_extra

require_extra("gym", "mjlab_dist.gymnasium")

from gymnasium import register, spaces  # noqa: E402
from gymnasium.vector import AutoresetMode, VectorEnv  # noqa: E402
from gymnasium.vector.utils import batch_space  # noqa: E402

# Namespace of the ids of tasks
NAMESPACE = "mjlab_dist"

GROUP = "actor"
"""Observation group that policies read."""

Observation = np.ndarray | dict[str, np.ndarray]
"""Observations of all envs: one group, (num_envs, width), or a dict from the name of each group to its observations."""


class TaskVectorEnv(VectorEnv[Any, np.ndarray, np.ndarray]):
    """The envs of a task, made by :func:`mjlab_dist.make`. With several devices, the ranks simulate them.

    When the episode of an env ends, the env starts its next episode in the same step (``AutoresetMode.SAME_STEP``).
    ``info["_final_obs"]`` is then True for this env, and ``info["final_obs"]`` has its last observation.

    Attributes:
        envs: The object that :func:`mjlab_dist.make` returned.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": ["rgb_array"]}  # noqa: RUF012 (Gymnasium's)

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        *,
        render_mode: str | None = None,
        group: str | None = GROUP,
        quiet: bool = True,
        **fields: Any,
    ) -> None:
        """Make the envs.

        Args:
            task: Name of the task.
            num_envs: Total number of envs, over all ranks.
            render_mode: ``rgb_array``, or None if :meth:`render` is not used.
            group: Observation group to return; None returns all groups in a dict.
            quiet: Print no warnings, and no progress of kernel compilation.
            fields: As in :func:`mjlab_dist.make`, such as ``cpu_ranks=2`` or ``seed=1``.

        Raises:
            UserError: If an argument is wrong, or the task cannot be simulated on this machine.
        """
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f"render_mode {render_mode!r}: takes rgb_array or None")
        self.envs = make(task, arrays="numpy", final_observations=True, total_num_envs=num_envs, quiet=quiet, **fields)
        widths = self.envs.observation_widths
        if group is not None and group not in widths:
            self.envs.close()
            fix = did_you_mean(group, widths, f"use {listed(widths, 'or')}")
            raise UserError(f"group {group}: there is no such observation group; {fix}")
        self.num_envs, self.render_mode, self._group = num_envs, render_mode, group
        self.autoreset_mode = self.metadata["autoreset_mode"]
        self.metadata = {**self.metadata, "render_fps": round(1 / self.envs.step_dt_s)}

        # Spaces
        boxes: dict[str, spaces.Space[Any]] = {
            name: spaces.Box(-np.inf, np.inf, (width,), np.float32) for name, width in widths.items()
        }
        self.single_observation_space = spaces.Dict(boxes) if group is None else boxes[group]
        low, high = np.array(self.envs.action_bounds, dtype=np.float32).T
        self.single_action_space = spaces.Box(low, high, dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode in every env.

        Args:
            seed: Seed of all random numbers from now on; None continues the current sequence of random numbers.
            options: Must be empty: tasks have no options.
        """
        if options:
            raise UserError(f"options {options}: tasks have no options; pass None")
        super().reset(seed=seed)
        return self._picked(self.envs.reset(seed)), {}

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every env by one control step.

        Args:
            actions: (num_envs, num_actions).
        """
        observations, rewards, terminated, truncated, info = self.envs.step(actions)
        final = self._picked(info.pop("final_observations"))
        done = terminated | truncated
        if done.any():
            # An array of observations, with None for envs whose episode continues, as in Gymnasium's own vector envs
            info["final_obs"] = np.full(self.num_envs, None, dtype=object)
            for env in np.flatnonzero(done).tolist():
                info["final_obs"][env] = _row(final, env)
            info["_final_obs"] = done
        return self._picked(observations), rewards, terminated, truncated, info

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Return a picture of each env, (height, width, 3), as uint8; None if render_mode is None."""
        return None if self.render_mode is None else tuple(self.envs.render(env) for env in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002 (Gymnasium's)
        self.envs.close()

    def _picked(self, observations: dict[str, np.ndarray]) -> Observation:
        return observations if self._group is None else observations[self._group]


def _row(observations: Observation, env: int) -> Observation:
    if isinstance(observations, dict):
        return {name: rows[env] for name, rows in observations.items()}
    return observations[env]


for _task in task_names():
    register(
        id=f"{NAMESPACE}/{_task}",
        vector_entry_point=f"{__name__}:{TaskVectorEnv.__name__}",
        kwargs={"task": _task},
    )
