"""Step envs in real time, and handle requests from viewers, such as pause, reset, push and commands."""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import mujoco
import torch

from mjlab_dist.env.finding import Joint
from mjlab_dist.mdp.commands import Velocity

if TYPE_CHECKING:
    import numpy as np
    from tensordict import TensorDict

    from mjlab_dist.env import Env

# Where actions come from: the policy, zeros, or uniform numbers in [-1, 1]
Source = Literal["policy", "zero", "random"]

# All sources of actions
SOURCES: tuple[Source, ...] = ("policy", "zero", "random")

# Length of the plots: simulated time of the steps that are kept, in s
HISTORY_S = 6.0

# Maximum delay behind real time that the player makes up with faster steps, in s. The player ignores the rest of a
# longer delay, because otherwise it would run too fast for a long time.
MAX_LAG_S = 0.1


class Robot(NamedTuple):
    """The tree of bodies that actuators move; objects and markers are not part of it."""

    # Id of the body that the camera follows: the first movable body of the tree
    body: int
    # Columns of qpos and qvel of a floating base's free joint; None for a fixed robot
    root: Joint | None
    # Columns of qvel of all joints of the robot
    joints: list[int]

    @classmethod
    def of(cls, model: mujoco.MjModel) -> Robot:
        """Find the robot of a model: the tree that the first joint actuator moves, or else that of the first joint."""
        trees = [int(model.body_rootid[body]) for body in model.jnt_bodyid]
        joint_transmission = int(mujoco.mjtTrn.mjTRN_JOINT)
        driven = [
            int(model.actuator_trnid[i, 0]) for i in range(model.nu) if model.actuator_trntype[i] == joint_transmission
        ]
        tree = trees[driven[0] if driven else 0]
        own = [joint for joint, root in enumerate(trees) if root == tree]
        is_free = model.jnt_type[own[0]] == mujoco.mjtJoint.mjJNT_FREE
        root = None
        if is_free:
            qpos, qvel = int(model.jnt_qposadr[own[0]]), int(model.jnt_dofadr[own[0]])
            root = Joint(slice(qpos, qpos + 7), slice(qvel, qvel + 6))
        bodies = {int(model.jnt_bodyid[joint]) for joint in own}
        return cls(min(bodies), root, [dof for dof in range(model.nv) if int(model.dof_bodyid[dof]) in bodies])


class Policy(Protocol):
    """Source of actions: a trained network of rsl_rl, or any other function of the observations."""

    def __call__(self, obs: TensorDict, /) -> torch.Tensor:
        """Return actions, (num_envs, num_actions)."""
        ...

    def reset(self, dones: torch.Tensor, /) -> None:
        """Reset the hidden state of the envs for which ``dones``, (num_envs,) of bool, is True."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Result of one step of all envs. Arrays are copies on the host, with one row per env unless noted."""

    # Number of steps since the start
    step: int
    # Simulated time since the start
    time_s: float
    # Fields of MuJoCo's data that define the poses and the forces: qpos, qvel, ctrl, act, mocap_pos, mocap_quat
    state: Mapping[str, np.ndarray]
    # Start position of each env's episode in the world frame, in m, (num_envs, 3)
    origins: np.ndarray
    # Observations by group, after resets
    observations: Mapping[str, np.ndarray]
    # Actions of the step
    actions: np.ndarray
    # Values of the commands by name, after resets
    commands: Mapping[str, np.ndarray]
    # Weighted reward of each term in the step, (num_terms, num_envs)
    rewards: np.ndarray
    # Return of the running episode up to this step, (num_envs,)
    returns: np.ndarray
    # Length of the running episode in steps, (num_envs,)
    episode_steps: np.ndarray


class Player:
    """Envs with a policy, stepped by one thread at the speed of real time or a multiple of it.

    Methods may be called from any thread. Requests that change the envs return futures: the thread that steps the envs
    handles them between two steps. If :meth:`start` is not called, :meth:`step` handles them.

    Attributes:
        env: The envs. Only the thread that steps the envs may access their tensors.
        frame: Result of the latest step.
        history: Frames of the latest seconds, oldest first.
        paused: Whether the simulation is paused.
        is_watched: Whether a page is open. While no page is open, the simulation pauses, but requests are handled.
        speed: Simulated seconds per second of real time.
        source: Source of the actions.
        robot: The parts of the model that belong to the robot.
        velocity_command: Name of the first velocity command; None if the task has none.
        measured_speed: Measured speed over about half a second, relative to real time; 0 while paused.
        failure: The error that ended the thread, if there was one.
    """

    def __init__(self, env: Env, policy: Policy, load: Callable[[Path], Policy] | None = None) -> None:
        """Start episodes."""
        self.env = env
        self.paused, self.speed = False, 1.0
        self.is_watched = True
        self.source: Source = "policy"
        self.measured_speed = 0.0
        self.failure: BaseException | None = None
        self.robot = Robot.of(env.sim.model)
        commands = [name for name in env.cfg.commands if isinstance(env.find_command(name), Velocity)]
        self.velocity_command = commands[0] if commands else None
        self._policy, self._load = policy, load
        self._requests: collections.deque[tuple[Callable[[], None], Future[None]]] = collections.deque()
        self._wake, self._is_stopping = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._num_due = 0  # single steps requested while paused
        self._num_steps = 0
        self._returns = torch.zeros(env.num_envs)
        self.history: collections.deque[Frame] = collections.deque(maxlen=max(2, round(HISTORY_S / env.step_dt_s)))
        with torch.inference_mode():
            self._reset()

    # Requests

    def pause(self, paused: bool = True) -> None:
        """Pause or continue the simulation."""
        self.paused = paused
        self._wake.set()

    def watch(self, is_watched: bool) -> None:
        """Pause the simulation while no page is open, and continue it when a page is opened."""
        if is_watched != self.is_watched:
            self.is_watched = is_watched
            self._wake.set()

    def step_once(self) -> None:
        """Step once while paused."""
        self._num_due += 1
        self._wake.set()

    def set_speed(self, speed: float) -> None:
        """Change the speed."""
        assert 0.01 <= speed <= 100
        self.speed = speed
        self._wake.set()

    def reset(self) -> Future[None]:
        """Start a new episode in every env."""
        return self._ask(self._reset)

    def push(self, size: float = 1.0) -> Future[None]:
        """Add a velocity in a random direction to each robot."""

        def push() -> None:
            velocities = self.env.sim.qvel
            if self.robot.root is None:
                velocities[:, self.robot.joints] += size * torch.randn(self.env.num_envs, len(self.robot.joints))
            else:
                angle = 2.0 * math.pi * torch.rand(self.env.num_envs)
                start = self.robot.root.qvel.start
                velocities[:, start : start + 2] += size * torch.stack([angle.cos(), angle.sin()], dim=1)
            self._publish(self.env.actions)

        return self._ask(push)

    def hold_command(
        self, name: str, numbers: Sequence[float] | None, heading_rad: float | None = None
    ) -> Future[None]:
        """Set a command to the given numbers instead of random ones, starting with the next step."""

        def hold() -> None:
            command = self.env.find_command(name)
            command.hold(numbers)
            if isinstance(command, Velocity):
                command.hold_heading(heading_rad)

        return self._ask(hold)

    def load(self, checkpoint: Path) -> Future[None]:
        """Replace the policy. If the checkpoint cannot be loaded, the future raises a ``UserError``."""

        def replace() -> None:
            assert self._load is not None
            with torch.inference_mode(False):
                self._policy = self._load(checkpoint)

        return self._ask(replace)

    def _ask(self, request: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._requests.append((request, future))
        self._wake.set()
        return future

    # Time

    def start(self) -> None:
        """Start the thread that steps."""
        self._thread = threading.Thread(target=self._run, name="player", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait until its current step has ended."""
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def step(self) -> Frame:
        """Handle all requests, make one step and return its result. Do not call this after :meth:`start`."""
        with torch.inference_mode():
            self._obey()
            self._step()
        return self.frame

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self._keep_time()
        except BaseException as error:  # noqa: BLE001 (the thread that shows the frames raises it)
            self.failure = error

    def _keep_time(self) -> None:
        due_s = since_s = time.monotonic()
        num_before = self._num_steps
        while not self._is_stopping:
            self._wake.clear()
            self._obey()
            now_s = time.monotonic()
            # Measure the speed twice per second
            if now_s - since_s > 0.5:
                self.measured_speed = (self._num_steps - num_before) * self.env.step_dt_s / (now_s - since_s)
                since_s, num_before = now_s, self._num_steps
            # Paused: single steps only
            if self.paused or not self.is_watched:
                if self._num_due > 0:
                    self._num_due -= 1
                    self._step()
                else:
                    self._wake.wait(0.5)
                due_s = time.monotonic()
                continue
            # A step, when it is due
            self._num_due = 0
            if now_s < due_s:
                self._wake.wait(due_s - now_s)
                continue
            self._step()
            due_s = max(due_s, now_s - MAX_LAG_S) + self.env.step_dt_s / self.speed

    def _obey(self) -> None:
        for _ in range(len(self._requests)):  # not those that arrive meanwhile, so that a flood of them stops no step
            request, future = self._requests.popleft()
            try:
                request()
            except Exception as error:  # noqa: BLE001 (the future raises it in the caller)
                future.set_exception(error)
            else:
                future.set_result(None)

    # Envs

    def _step(self) -> None:
        actions = self._act()
        self._observations, reward, dones, _ = self.env.step(actions)
        self._policy.reset(dones)
        self._num_steps += 1
        self._returns = (self._returns + reward).masked_fill(dones, 0.0)
        self._publish(actions)

    def _act(self) -> torch.Tensor:
        if self.source == "policy":
            return self._policy(self._observations)
        shape = (self.env.num_envs, self.env.num_actions)
        return torch.zeros(shape) if self.source == "zero" else torch.rand(shape).mul_(2.0).sub_(1.0)

    def _reset(self) -> None:
        self._observations = self.env.reset()
        self._policy.reset(torch.ones(self.env.num_envs, dtype=torch.bool))
        self._returns = torch.zeros(self.env.num_envs)
        self._publish(torch.zeros(self.env.num_envs, self.env.num_actions))

    def _publish(self, actions: torch.Tensor) -> None:
        env = self.env
        fields = [
            name for name in ("qpos", "qvel", "ctrl", "act", "mocap_pos", "mocap_quat") if name in env.sim.physics
        ]
        self.frame = Frame(
            step=self._num_steps,
            time_s=self._num_steps * env.step_dt_s,
            state={name: env.sim.physics[name].numpy().copy() for name in fields},
            origins=env.origins.numpy().copy(),
            observations={name: self._observations[name].numpy().copy() for name in env.cfg.observations},
            actions=actions.numpy().copy(),
            commands={name: env.command(name).numpy().copy() for name in env.cfg.commands},
            rewards=env.reward_terms().numpy(),
            returns=self._returns.numpy().copy(),
            episode_steps=env.episode_length_buf.numpy().copy(),
        )
        if self.history and self.history[-1].step == self._num_steps:
            self.history[-1] = self.frame  # of the same step, after a reset or a push; the page never sees no frame
        else:
            self.history.append(self.frame)
