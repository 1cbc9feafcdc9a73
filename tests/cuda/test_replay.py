"""A control step can be recorded and replayed: each step runs the same operations on the same memory, for any data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import mujoco_warp as mjw
import pytest
import torch
from every_task import NAMES, config_of
from legged import term
from manipulator import BLOCKS
from manipulator import CONFIG as ARM_CONFIG
from tensordict import TensorDict

from mjlab_dist.authoring.check.step_replay import Recorder, Recording, ReplayError
from mjlab_dist.config import PpoConfig, TrainConfig
from mjlab_dist.distributed import Rank
from mjlab_dist.env import Env
from mjlab_dist.learn.ppo import PPO
from mjlab_dist.learn.runner import Runner
from mjlab_dist.sim import start_warp

NUM_STEPS = 60
NUM_RECORDED = 5
AGE_STEPS = 45
"""Every episode reaches its time limit within this many steps."""
TIMER_STEPS = 20
"""The first new commands and the first events are due within this many steps."""


class Start(NamedTuple):
    """State in which a comparison starts."""

    env: dict[str, torch.Tensor]
    memory: dict[str, torch.Tensor]
    obs: dict[str, torch.Tensor]


class Trace(NamedTuple):
    """Tensors of many steps."""

    steps: list[dict[str, torch.Tensor]]
    """For each step, a dict of the tensors after the step."""
    end: dict[str, torch.Tensor]
    """Dict of the tensors after the last step."""


class Loop:
    """Collects rollouts as the training loop does, but one control step at a time."""

    def __init__(self, env: Env, config: TrainConfig) -> None:
        torch.manual_seed(0)
        self.env = env
        self.runner = Runner(env, config, Rank())
        self.runner.alg.train_mode()
        self.num_rows = config.agent.num_steps_per_env
        self._allocate()

    @torch.inference_mode()
    def _allocate(self) -> None:
        """Store a transition, because rsl_rl allocates some of its memory when it stores the first transition."""
        alg, obs = self.runner.alg, self.env.get_observations()
        nothing = torch.zeros(self.env.num_envs)
        alg.act(obs)
        alg.process_env_step(obs, nothing, nothing.bool(), {"time_outs": nothing.bool()})
        alg.storage.clear()

    def rollout(self) -> dict[str, torch.Tensor]:
        """Return a dict of the buffers of a rollout. Each step writes to a different row of these buffers."""
        alg, storage = self.runner.alg, self.runner.alg.storage
        buffers = {f"storage.{name}": value for name, value in vars(storage).items() if isinstance(value, torch.Tensor)}
        buffers |= {f"storage.observations.{name}": group for name, group in _groups(storage.observations).items()}
        buffers |= {f"storage.params[{i}]": params for i, params in enumerate(storage.distribution_params or ())}
        buffers |= {f"finite.{name}": states for name, states in self.runner._finite._states.items()}
        assert isinstance(alg, PPO)
        return buffers | ({"raw rewards": alg._raw_rewards} if alg._raw_rewards.numel() else {})

    @torch.inference_mode()
    def start(self) -> Start:
        """Return a state in which the ends of episodes, new commands and events are only a few steps away."""
        env = self.env
        env.reset()
        state = env.state()
        ages = torch.arange(1, env.num_envs + 1) * AGE_STEPS // env.num_envs
        state["episode_length"] = (env.max_episode_length - ages).clamp_min(0)
        for name in self.timers(state):
            state[name] = torch.rand_like(state[name]) * TIMER_STEPS * env.step_dt_s
        obs = {name: group.clone() for name, group in _groups(env.get_observations()).items()}
        memory = {name: tensor.clone() for name, tensor in self.runner.alg.memory().items()}
        return Start(state, memory, obs)

    @staticmethod
    def timers(state: Mapping[str, torch.Tensor]) -> list[str]:
        """Return the names of the tensors that contain the time until the next command or event."""
        return [name for name in state if name.endswith(("left_s", "until_event_s")) and state[name].numel()]

    @torch.inference_mode()
    def restore(self, start: Start) -> dict[str, torch.Tensor]:
        """Restore the start state and return its observations."""
        self.env.load_state(start.env)
        self.runner.alg.load_memory(start.memory)
        self.runner.alg.storage.clear()
        self.runner._reward.zero_()
        for buffer in self.rollout().values():
            buffer.zero_()
        torch.manual_seed(1)
        return {name: group.clone() for name, group in start.obs.items()}

    def step(self, index: int, obs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run a step and return its observations."""
        row = index % self.num_rows
        if row == 0:
            self.runner.alg.storage.clear()
        given = TensorDict(dict(obs), batch_size=[self.env.num_envs])
        return _groups(self.runner._control_step(row, given))

    @torch.inference_mode()
    def record(self, obs: dict[str, torch.Tensor], num_steps: int = NUM_RECORDED) -> Recording:
        """Record consecutive steps."""
        recorder = Recorder(self.env.sim, self.rollout())
        for index in range(num_steps):
            before = obs
            obs = recorder.record(lambda i=index, o=before: self.step(i, o), before, index % self.num_rows)
        return recorder.recording

    @torch.inference_mode()
    def trace(
        self, obs: dict[str, torch.Tensor], step: Callable[[int, dict[str, torch.Tensor]], dict[str, torch.Tensor]]
    ) -> Trace:
        """Run many steps and return copies of their tensors."""
        steps, env, storage = [], self.env, self.runner.alg.storage
        for index in range(NUM_STEPS):
            obs = step(index, obs)
            row = index % self.num_rows
            timers = self.timers(state := env._held())
            seen = {
                "qpos": env.sim.qpos,
                "qvel": env.sim.qvel,
                "rewards": storage.rewards[row],
                "dones": storage.dones[row],
                "episode_length": env.episode_length_buf,
                **{name: state[name] for name in timers},
                **{f"observations.{name}": group for name, group in obs.items()},
            }
            steps.append({name: tensor.clone() for name, tensor in seen.items()})
        end = {**env.state(), **self.rollout(), **self.runner.alg.memory()}
        end |= {"reward": self.runner._reward, "random": torch.get_rng_state()}
        return Trace(steps, {name: tensor.clone() for name, tensor in end.items()})


def _groups(obs: TensorDict) -> dict[str, torch.Tensor]:
    return {str(name): group for name, group in obs.items() if isinstance(group, torch.Tensor)}


# Every task


HEAVY = {"humanoid-velocity-flat", "gym-humanoid", "quadruped-tracking"}
"""Tasks whose step takes longest."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [pytest.param(name, marks=pytest.mark.long) if name in HEAVY else name for name in NAMES]
)
def test_a_step_is_replayed_bit_for_bit(task: str, build_env: Callable[[str], Env]) -> None:
    compare(Loop(build_env(task), config_of(task)))


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_a_step_with_each_class_of_actions_is_replayed_bit_for_bit(name: str) -> None:
    env = dataclasses.replace(ARM_CONFIG, actions={name: BLOCKS[name]}, episode_length_s=1.5)
    config = TrainConfig(task="arm", env=env, agent=PpoConfig(num_steps_per_env=7))
    start_warp("cpu")
    compare(Loop(Env(env, 4, "cpu"), config))


@pytest.mark.slow
def test_replayed_steps_read_scheduled_parameters() -> None:
    points = {
        "rewards.linear.params.std_m_s": ((0, 0.5), (1, 0.1)),
        "terminations.tilted.params.max_rad": ((0, 0.6), (1, 0.2)),
        "events.push.params.linear_m_s": ((0, -0.5, 0.5), (1, 1.0, 3.0)),
        "events.root.params.z_m": ((0, 0.0, 0.0), (1, 0.1, 0.3)),
        "events.joints.params.position": ((0, -0.1, 0.1), (1, -0.5, 0.5)),
        "observations.actor.joints.uniform_noise": ((0, 0.0), (1, 0.3)),
        "randomizations.friction.high": ((0, 1.2), (1, 3.0)),
    }
    curricula = {
        f"it{i}": term("curricula:Schedule", parameter=parameter, points=values)
        for i, (parameter, values) in enumerate(points.items())
    }
    config = config_of("everything")
    env = dataclasses.replace(config.env, curricula=config.env.curricula | curricula)
    start_warp("cpu")
    loop = Loop(Env(env, 4, "cpu"), dataclasses.replace(config, env=env))

    def end_iteration() -> None:
        loop.env.end_iteration(loop.env.pop_episode_totals())
        assert [loop.env.find_parameter(name).tolist() for name in points] == [
            pytest.approx(list(values[-1][1:])) for values in points.values()
        ]

    compare(loop, end_iteration)


def compare(loop: Loop, after_recording: Callable[[], None] = lambda: None) -> None:
    """Compare a replay of recorded operations with the Python code that was recorded, over many steps."""
    start = loop.start()
    recording = loop.record(loop.restore(start))
    after_recording()
    start = loop.start()
    python = loop.trace(loop.restore(start), loop.step)
    replay = loop.trace(loop.restore(start), lambda index, obs: recording.replay(obs, index % loop.num_rows))
    for index, (mine, theirs) in enumerate(zip(replay.steps, python.steps, strict=True)):
        assert not (different := differing(mine, theirs)), f"step {index}: {different}"
    assert not differing(replay.end, python.end)
    # Check that the steps covered these cases: episodes ended, and commands and events were due within episodes.
    done = torch.stack([step["dones"] for step in python.steps]).squeeze(2).bool()
    assert done.any(dim=0).all()
    assert (done.any(dim=1) & ~done.all(dim=1)).any()
    for name in loop.timers(python.steps[0]):
        left_s = torch.stack([step[name] for step in python.steps]).view(*done.shape, -1)
        drawn = (left_s.diff(dim=0) > 0).any(dim=2)
        assert (drawn & ~done[1:]).any(), f"{name} never ran out"


def differing(mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that are not equal bit for bit."""
    assert mine.keys() == theirs.keys()
    return [name for name, tensor in mine.items() if not torch.equal(_bits(tensor), _bits(theirs[name]))]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("task", ["everything", "gym-humanoid", "quadruped-velocity-rough"])
def test_steps_of_all_iterations_are_the_same(
    task: str, build_env: Callable[[str], Env], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(task)
    agent = dataclasses.replace(config.agent, num_steps_per_env=2, num_learning_epochs=1, num_mini_batches=1)
    loop = Loop(build_env(task), dataclasses.replace(config, agent=agent))
    runner, env = loop.runner, loop.env
    recorder = Recorder(env.sim, loop.rollout())
    step = runner._control_step

    def recorded(index: int, obs: TensorDict) -> TensorDict:
        after = recorder.record(lambda: _groups(step(index, obs)), _groups(obs), index)
        return TensorDict(dict(after), batch_size=[env.num_envs])

    monkeypatch.setattr(runner, "_control_step", recorded)
    env.reset()
    obs = env.get_observations()
    for iteration in range(3):
        obs, sample = runner._iteration(obs, iteration)
        env.end_iteration(sample.totals)
    assert len(recorder.recording.operations) > 100


# Steps that cannot be replayed are refused


@pytest.fixture
def loop(build_env: Callable[[str], Env]) -> Loop:
    """Collects rollouts of a task. Each test replaces the task's reward."""
    config = config_of("cartpole-balance")
    return Loop(Env(config.env, build_env("cartpole-balance").num_envs, "cpu"), config)


class _Reward:
    """A reward that a CUDA graph cannot compute correctly in every step."""

    kept: torch.Tensor | None = None

    def __init__(self, env: Env, compute: Callable[[_Reward, torch.Tensor], torch.Tensor]) -> None:
        self.calls = 0
        self.now, self.before = torch.zeros(2, env.num_envs)
        self.sim = env.sim
        self.compute = compute

    def __call__(self, env: Env) -> torch.Tensor:
        self.calls += 1
        return self.compute(self, env.sim.qpos[:, 0])


def _allocates_later(it: _Reward, position: torch.Tensor) -> torch.Tensor:
    if it.calls == 2:
        it.now = torch.zeros_like(position)
    return it.now.copy_(position)


def _allocates_in_the_first_step(it: _Reward, position: torch.Tensor) -> torch.Tensor:
    if it.kept is None:
        it.kept = torch.zeros_like(position)
    return it.kept.copy_(position)


def _swaps(it: _Reward, position: torch.Tensor) -> torch.Tensor:
    it.now, it.before = it.before, it.now
    return it.now.copy_(position)


def _keeps_a_result(it: _Reward, position: torch.Tensor) -> torch.Tensor:
    change = position - it.before
    it.before = position.clone()
    return change


def _launches_kernels(it: _Reward, position: torch.Tensor) -> torch.Tensor:
    mjw.kinematics(it.sim._warp_model, it.sim._data)
    return position


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda it, x: x * it.calls, r"aten\.mul\.Tensor, test_replay\.py:\d+: argument 1 is 2, and was 1 before"),
        (lambda _, x: x if x.sum() > 0 else x.neg(), r"aten\._local_scalar_dense\.default, test_replay\.py:\d+: waits"),
        (lambda _, x: x if x.numpy().sum() > 0 else x.neg(), r"numpy"),
        (lambda it, x: x if it.calls < 3 else x.neg(), r"aten\.neg\.default, test_replay\.py:\d+: was aten\.\w+"),
        (_allocates_later, r"aten\.zeros_like\.default, test_replay\.py:\d+: was aten\.copy_"),
        (_allocates_in_the_first_step, r"aten\.copy_\.default, test_replay\.py:\d+: .* an earlier step"),
        (_swaps, r"aten\.copy_\.default, test_replay\.py:\d+: argument 0 is the memory float32\[4\]"),
        (_keeps_a_result, r"aten\.sub\.Tensor, test_replay\.py:\d+: .* an earlier step"),
        (lambda _, x: x * torch.tensor(2.0), r"aten\.lift_fresh\.default, test_replay\.py:\d+: "),
        (
            lambda it, x: x + torch.rand(len(x), it.calls).sum(dim=1),
            r"aten\.rand\.default, test_replay\.py:\d+: argument 0 is \(4, 2\), and was \(4, 1\)",
        ),
        (_launches_kernels, r"Warp's kernel \S+, test_replay\.py:\d+: "),
    ],
)
def test_a_step_that_cannot_be_replayed_is_refused(
    loop: Loop, compute: Callable[[_Reward, torch.Tensor], torch.Tensor], message: str
) -> None:
    loop.env._rewards[0] = _Reward(loop.env, compute)
    start = loop.start()
    with pytest.raises(ReplayError, match=message):
        loop.record(loop.restore(start))


def test_a_carried_tensor_must_be_declared(loop: Loop) -> None:
    recorder = Recorder(loop.env.sim, loop.rollout())
    first = loop.restore(loop.start())
    with torch.inference_mode():
        obs = recorder.record(lambda: loop.step(0, first), first, 0)
        with pytest.raises(ReplayError, match="an earlier step"):
            recorder.record(lambda: loop.step(1, obs), {}, 1)


@pytest.mark.slow
def test_a_replay_that_differs_is_detected(loop: Loop) -> None:
    loop.env._rewards[0] = _Reward(loop.env, lambda it, x: x * (1.0 if it.calls < 2 * NUM_RECORDED else 2.0))
    with pytest.raises(AssertionError, match=r"step \d+: \['rewards'\]"):
        compare(loop)


def test_a_recurrent_policy_is_refused(build_env: Callable[[str], Env]) -> None:
    config = config_of("cartpole-balance")
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, rnn="lstm", rnn_hidden_dim=8))
    loop = Loop(build_env("cartpole-balance"), config)
    with pytest.raises(ReplayError):
        loop.record(loop.restore(loop.start()))
