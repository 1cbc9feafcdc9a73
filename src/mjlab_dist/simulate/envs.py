"""The envs that :func:`mjlab_dist.make` returns, and the arrays that users pass and receive."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.limits import validate_seed
from mjlab_dist.errors import UserError
from mjlab_dist.messages import Listener, listening
from mjlab_dist.simulate.make import FINAL, LAST, Job, Tensors

if TYPE_CHECKING:
    import mujoco

    from mjlab_dist.sim.render import Renderers
    from mjlab_dist.simulate.ranks import Ranks
    from mjlab_dist.simulate.shard import Here

Observations: TypeAlias = dict[str, Any]
"""Observation groups by name, (num_envs, width) each."""


class Step(NamedTuple):
    """Result of a step of all envs: torch tensors, or NumPy arrays if the envs were made with ``arrays="numpy"``."""

    observations: Observations
    """Observations after resets."""
    rewards: Any
    """Rewards, (num_envs,)."""
    terminated: Any
    """Envs whose episode was terminated in this step, (num_envs,) of bool."""
    truncated: Any
    """Envs whose episode was cut off in this step, such as by the time limit, (num_envs,) of bool."""
    info: dict[str, Any]
    """Further results. If the envs were made with ``final_observations=True``, the key ``final_observations`` has the
    observation groups of all envs before resets. In envs whose episode has ended, they differ from ``observations``."""


class Rollout(NamedTuple):
    """Results of several steps; the first dimension is the step."""

    observations: Observations
    """Observations that the policy received, (num_steps, num_envs, width)."""
    actions: Any
    """Actions of the policy, (num_steps, num_envs, num_actions)."""
    rewards: Any
    """Rewards, (num_steps, num_envs)."""
    terminated: Any
    """Envs whose episode was terminated, (num_steps, num_envs) of bool."""
    truncated: Any
    """Envs whose episode was cut off, (num_steps, num_envs) of bool."""
    last_observations: Observations
    """Observations after the last step, (num_envs, width)."""
    info: dict[str, Any]
    """Further results, as in :class:`Step`."""


class Envs:
    """All envs of a task, in the order of their global ids, on one or several ranks.

    When the episode of an env ends, its next episode starts in the same step. Every call returns new arrays. Use
    the object only in the process that made it, and from one thread at a time.

    Attributes:
        num_envs: Number of envs on all ranks.
        num_actions: Number of actions per env.
        action_names: Name of each action.
        action_bounds: Minimum and maximum to which each action is clipped; infinite if it is not clipped.
        observation_widths: Width of each observation group, by name.
        step_dt_s: Simulated seconds per step.
        device: Device of the returned tensors: the device of the envs if they are in this process, ``cpu`` otherwise.
        configs: Config of each variant; a single config if there are no variants.
    """

    def __init__(self, job: Job, simulator: Here | Ranks, arrays: Literal["torch", "numpy"], listen: Listener) -> None:
        """Wrap a simulator. :meth:`close` also closes it.

        Args:
            job: All envs.
            simulator: Simulates them in this process or in ranks.
            arrays: Type of the returned arrays.
            listen: Receives warnings of renderers.
        """
        self._listen = listen
        self._simulator, self._arrays, self._pid = simulator, arrays, os.getpid()
        self._is_stepping, self._in_use = False, threading.Lock()
        self._close = weakref.finalize(self, simulator.close)
        self._job = job
        self._renderers: dict[tuple[object, ...], Renderers] = {}
        self.configs: Sequence[TrainConfig] = job.configs
        self.num_envs = job.num_envs
        self.num_actions = simulator.sizes.num_actions
        self.action_names = simulator.sizes.action_names
        self.action_bounds = simulator.sizes.action_bounds
        self.observation_widths = dict(simulator.sizes.observations)
        self.step_dt_s = simulator.sizes.step_dt_s
        self.device = simulator.device

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Close the envs."""
        self.close()

    def __repr__(self) -> str:
        """Return the task and the number of envs."""
        return f"<{self.num_envs} envs of {self.configs[0].task}>"

    def reset(self, seed: int | None = None) -> Observations:
        """Start an episode in every env.

        Args:
            seed: Seed of all later random numbers. The same seed gives the same episodes, regardless of earlier steps.
                Startup events do not run again: the values that they set when the envs were made stay the same. With
                None, random numbers continue from the current random state.

        Returns:
            Observation groups by name, (num_envs, width) each.
        """
        if seed is not None:
            validate_seed(seed)
        with self._used("reset"):
            return self._observations(self._call("reset", seed))

    def step(self, actions: Any) -> Step:
        """Advance every env by one control step.

        Args:
            actions: (num_envs, num_actions) of floating-point numbers: a torch tensor, a NumPy array, or any array with
                DLPack's interface, on any device.

        Returns:
            Observations (after resets), rewards, terminated, truncated, and a dict with more results.

        Raises:
            UserError: If the actions have the wrong shape or type, or are not finite. Nothing is simulated then.
            RankError: If a rank ended. The envs are then closed.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a step, and return before it ends. :meth:`step_wait` returns its results.

        Args:
            actions: As in :meth:`step`.
        """
        with self._used("step_async"):
            shape = (self.num_envs, self.num_actions)
            self._simulator.begin("step", checked_actions("actions", actions, shape, self.device))
            self._is_stepping = True

    def step_wait(self) -> Step:
        """Wait for the results of the step that :meth:`step_async` started."""
        if not self._is_stepping:
            raise UserError("step_wait: no step was started; call step_async first")
        self._is_stepping = False
        with self._used("step_wait"):
            return Step(**self._common(self._simulator.end()))

    def rollout(self, policy: Callable[[Tensors], Any], num_steps: int) -> Rollout:
        """Let a policy act for several steps, from the current observations.

        Args:
            policy: Function that maps observations (tensors by group) to actions, (n, num_actions). Ranks get a copy
                of it, pickled by cloudpickle, and call it with the observations of their own n envs. Draws of the
                policy from torch's default generator do not depend on the number of ranks.
            num_steps: Number of control steps.

        Raises:
            UserError: If the policy cannot be pickled, raises an error or returns something other than actions. The
                envs then keep the state that they had before.
            RankError: If a rank ended. The envs are then closed.
        """
        if num_steps < 1:
            raise UserError(f"num_steps {num_steps}: must be at least 1")
        with self._used("rollout"), self._undoing():
            results = self._call("rollout", policy, num_steps)
            return Rollout(
                **self._common(results),
                actions=self._array(results["actions"]),
                last_observations=self._observations(results, LAST),
            )

    def state(self) -> Tensors:
        """Return a copy of the complete state of all envs. It can be loaded with any number of ranks.

        Returns:
            Tensors by name: the values of each env, (num_envs, ...), and the states of the random generators.
        """
        with self._used("state"):
            return self._call("state")

    def set_state(self, state: Mapping[str, Any]) -> Observations:
        """Load the state of all envs. With the same actions, the next steps repeat those that followed this state.

        Args:
            state: Result of :meth:`state` for the same number of envs of the same task.

        Returns:
            The observations of that state.

        Raises:
            UserError: If the state is from another task, has a different number of envs, or is damaged. The envs then
                keep the state that they had before.
        """
        tensors = {name: as_tensor(f"state {name}", value) for name, value in state.items()}
        with self._used("set_state"), self._undoing():
            return self._observations(self._call("load_state", tensors))

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 640, height: int = 480
    ) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a picture of an env, (height, width, 3). It does not show randomized sizes and colors.

        Args:
            env: Global id of the env.
            camera: Name of a camera of the model. Default: the first camera; if the model has none, a view of the whole
                scene.
            width: Width in pixels.
            height: Height in pixels.

        Raises:
            UserError: If there is no such env or camera.
        """
        from mjlab_dist.sim.render import Renderers, find_camera

        if not 0 <= env < self.num_envs:
            raise UserError(f"env {env}: must be at least 0, and less than {self.num_envs}")
        with self._used("render"):
            poses = self._call("poses", env)
        variant = env // self._job.envs_per_variant
        key = (variant, camera, width, height)
        if key not in self._renderers:
            model = self._build_model(variant)
            self._renderers[key] = Renderers(model, (height, width), find_camera(model, camera))
        x, y, _ = poses.pop("origin").tolist()
        with listening(self._listen):
            return self._renderers[key].at((x, y))(poses)

    @functools.cached_property
    def model(self) -> mujoco.MjModel:
        """A copy of the MuJoCo model of variant 0. Changing it has no effect on the simulation."""
        return self._build_model(0)

    def _build_model(self, variant: int) -> mujoco.MjModel:
        from mjlab_dist.sim import build_model

        return build_model(self.configs[variant].env.sim)

    def close(self) -> None:
        """End the ranks, and free the envs. This also happens at garbage collection or when the interpreter ends."""
        if os.getpid() == self._pid:
            self._close()

    @contextmanager
    def _used(self, method: str) -> Iterator[None]:
        """Raise if the envs cannot be used. Close them after an interrupt and after any error except UserError."""
        if os.getpid() != self._pid:
            raise UserError(f"{method}: process {self._pid} made these envs; make others in this process")
        if not self._in_use.acquire(blocking=False):
            raise UserError(f"{method}: another thread uses these envs; use them from one thread at a time")
        try:
            if not self._close.alive:
                raise UserError(f"{method}: these envs are closed; make new ones")
            if self._is_stepping:
                raise UserError(f"{method}: a step is running; call step_wait first")
            yield
        except UserError:
            raise
        except BaseException:
            self._close()
            raise
        finally:
            self._in_use.release()

    def _call(self, command: str, *arguments: Any) -> Tensors:
        """Call a method of all shards."""
        self._simulator.begin(command, *arguments)
        return self._simulator.end()

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        """After a UserError, restore the state of all envs, because the call may have changed a part of them."""
        self._call("remember")
        try:
            yield
        except UserError:
            self._call("undo")
            raise

    def _observations(self, results: Tensors, prefix: str = "observations") -> Observations:
        return {name: self._array(results[f"{prefix}.{name}"]) for name in self.observation_widths}

    def _common(self, results: Tensors) -> dict[str, Any]:
        """Return the fields that steps and rollouts have in common."""
        return {
            "observations": self._observations(results),
            **{name: self._array(results[name]) for name in ("rewards", "terminated", "truncated")},
            "info": {FINAL: self._observations(results, FINAL)} if self._job.final_observations else {},
        }

    def _array(self, tensor: torch.Tensor) -> Any:
        return tensor if self._arrays == "torch" else tensor.cpu().numpy()


def checked_actions(what: str, actions: Any, shape: tuple[int, int], device: str) -> torch.Tensor:
    """Return actions as a float32 tensor on a device. Copy them only if necessary.

    Args:
        shape: The required shape, (num_envs, num_actions).
    """
    tensor = as_tensor(what, actions)
    if tuple(tensor.shape) != shape:
        raise UserError(f"{what}: wrong shape {tuple(tensor.shape)}; give (num_envs, num_actions), here {shape}")
    if not tensor.is_floating_point():
        given = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{what}: wrong type {given}; give floating-point numbers, such as float32")
    tensor = tensor.detach().to(device, torch.float32)
    finite = tensor.isfinite()
    if not finite.all():
        env, action = (~finite).nonzero()[0].tolist()
        raise UserError(f"{what}: action {action} of env {env} is {tensor[env, action].item()}; give finite numbers")
    return tensor


def as_tensor(what: str, array: Any) -> torch.Tensor:
    """Return an array as a tensor, which shares the array's memory if possible."""
    if isinstance(array, torch.Tensor):
        return array
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        return torch.from_dlpack(array)
    try:
        if hasattr(array, "__array__"):
            return torch.from_numpy(np.asarray(array))
        if isinstance(array, Sequence) and not isinstance(array, str):
            return torch.from_numpy(np.asarray(array, dtype=np.float32))
    except (TypeError, ValueError):
        pass  # objects, or sequences of different lengths
    raise UserError(f"{what}: {type(array).__name__} is not an array of numbers; give a tensor or array")
