"""--num-envs auto: the calculation, the estimated memory of an env, and a rank that trains with the result."""

from __future__ import annotations

import dataclasses
import json
import re
import weakref
from pathlib import Path
from typing import Any

import legged
import pytest
import rollouts
import torch
from conftest import Command
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mjlab_dist.config import ActionConfig, PpoConfig, RndConfig, SymmetryConfig, TrainConfig, registry
from mjlab_dist.distributed import RankDevice, RankPlan
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.env import Env, sizing
from mjlab_dist.env.sizing import MAX_NUM_ENVS, Room, choose_num_envs
from mjlab_dist.errors import UserError
from mjlab_dist.launch import worker
from mjlab_dist.learn import update
from mjlab_dist.machine.memory import learner_bytes, min_env_bytes
from mjlab_dist.messages import listening
from mjlab_dist.runs.run_dir import checkpoint_path, create_run_dir

CPU = RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo")


# The calculation of the number of envs


def room(env_bytes: int, usable_bytes: int) -> Room:
    return Room(env_bytes=env_bytes, usable_bytes=usable_bytes)


@pytest.mark.parametrize(
    ("env_bytes", "usable_bytes", "num_envs"),
    [(10, 10, 1), (10, 19, 1), (10, 20, 2), (1000, 127_999, 64), (1000, 128_000, 128), (1, 2**40, MAX_NUM_ENVS)],
)
def test_the_largest_power_of_two_that_fits(env_bytes: int, usable_bytes: int, num_envs: int):
    assert choose_num_envs([room(env_bytes, usable_bytes)])[0] == num_envs


def test_the_rank_with_the_least_memory_determines_the_number_of_envs_and_is_named():
    num_envs, line = choose_num_envs([room(1000, 10**6), room(2000, 10**6), room(1000, 600_000)])
    assert num_envs == 256
    assert line.startswith("--num-envs auto: 256 ")
    assert all(part in line for part in (" 2.0 kB", " rank 1 ", " 1.0 MB"))


@pytest.mark.parametrize(("usable_bytes", "capped"), [(1000 * MAX_NUM_ENVS - 1, False), (10**12, True)])
def test_the_cap_is_reported(usable_bytes: int, capped: bool):
    _, line = choose_num_envs([room(1000, usable_bytes)])
    assert line.startswith(f"--num-envs auto: {MAX_NUM_ENVS} ") == capped
    assert "\n" not in line


def test_too_little_memory_for_one_env_is_refused():
    with pytest.raises(UserError, match=r"^--num-envs auto: .*5\.0 GB.* rank 1 .*900 bytes"):
        choose_num_envs([room(10, 10**9), room(5 * 10**9, 900)])


# Memory of the learner


@pytest.mark.parametrize("widths", [{"actor": 5}, {"actor": 48, "critic": 235}])
def test_the_counted_rollout_equals_the_storage_of_rsl_rl(widths: dict[str, int]):
    num_envs, steps, num_actions = 8, 4, 12
    obs = TensorDict({name: torch.zeros(num_envs, width) for name, width in widths.items()}, batch_size=[num_envs])
    storage = RolloutStorage("rl", num_envs, steps, obs, [num_actions])
    step = RolloutStorage.Transition()
    step.observations, step.actions = obs, torch.zeros(num_envs, num_actions)
    step.rewards = step.dones = step.values = step.actions_log_prob = torch.zeros(num_envs, 1)
    step.distribution_params = (torch.zeros(num_envs, num_actions), torch.ones(num_envs, num_actions))
    storage.add_transition(step)
    held: list[Any] = [*storage.observations.values(), *(storage.distribution_params or ()), *vars(storage).values()]
    stored = sum(tensor.nbytes for tensor in held if isinstance(tensor, torch.Tensor)) / num_envs

    no_networks = PpoConfig(num_steps_per_env=steps, actor_hidden_dims=(), critic_hidden_dims=())
    counted = learner_bytes(no_networks, widths, num_actions, "cpu")
    assert 2 * stored <= counted < 2.4 * stored  # the rollout is stored once and copied once


def test_networks_and_mini_batches_are_counted():
    def counted(**changes: Any) -> int:
        return learner_bytes(dataclasses.replace(PpoConfig(), **changes), {"actor": 10}, 2, "cpu")

    assert counted(actor_hidden_dims=(512, 512)) > counted()
    assert counted(num_mini_batches=1) > counted() > counted(num_mini_batches=8)
    assert counted(num_steps_per_env=64) == 2 * counted()
    assert counted(rnn="gru") > counted()
    assert counted(rnn="gru", rnn_num_layers=2) > counted(rnn="gru", rnn_hidden_dim=300) > counted(rnn="gru")


class PeakMemory(TorchDispatchMode):
    """Measures the maximum memory of all tensors that operations have created and that still exist."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and id(storage := tensor.untyped_storage()) not in given:
                self._add(storage)
        self.peak = max(self.peak, sum(self._sizes.values()))
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        if id(storage) not in self._sizes:
            self._sizes[id(storage)] = storage.nbytes()
            weakref.finalize(storage, self._sizes.pop, id(storage))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"obs_normalization": False},
        {"actor_hidden_dims": (4,), "critic_hidden_dims": (4,)},
        {"num_mini_batches": 1, "actor_hidden_dims": (256, 128)},
        {"symmetry": SymmetryConfig(func="rollouts:mirrored", use_data_augmentation=True, mirror_loss_coef=1.0)},
        {"symmetry": SymmetryConfig(func="rollouts:mirrored", use_data_augmentation=True), "num_mini_batches": 1},
        {"rnd": RndConfig(weight=1.0, state_normalization=True, reward_normalization=True), "obs_normalization": False},
        {"rnd": RndConfig(weight=1.0, predictor_hidden_dims=(256, 256), target_hidden_dims=(8,))},
    ],
    ids=str,
)
def test_an_update_allocates_at_most_the_counted_bytes(changes: dict[str, Any]) -> None:
    agent = dataclasses.replace(rollouts.AGENT, **changes)

    def peak(num_envs: int) -> int:
        data = rollouts.make_data(num_envs, 0)
        with PeakMemory() as memory:
            learner = rollouts.make_learner(rollouts.train_config(agent), num_envs)
            rollouts.collect(learner, data)
            learner.update()
        return memory.peak

    per_env = (peak(256) - peak(64)) / 192
    assert 0.5 < per_env / learner_bytes(agent, rollouts.NUM_OBS, rollouts.NUM_ACTIONS, "cpu") < 1.0


def test_the_mini_batch_of_recorded_updates_is_counted_on_a_gpu() -> None:
    agent, num_envs = rollouts.AGENT, 64
    learner = rollouts.make_learner(rollouts.train_config(agent), num_envs)
    rollouts.collect(learner, rollouts.make_data(num_envs, 0))
    static = update.copy_batch(learner._mini_batches()[0])
    held = sum(tensor.nbytes for tensor in update.tensors_of(static)) / num_envs
    on_cpu, on_gpu, without = (
        learner_bytes(dataclasses.replace(agent, capture=captures), rollouts.NUM_OBS, rollouts.NUM_ACTIONS, device)
        for captures, device in ((True, "cpu"), (True, "cuda:0"), (False, "cuda:0"))
    )
    assert held <= on_gpu - on_cpu < 1.2 * held
    assert without == on_cpu


# Memory of an env


WEIGH = """
import dataclasses, psutil, sys, torch
from mjlab_dist.config import registry
from mjlab_dist.config import SimConfig
from mjlab_dist.sim import Simulation, load_model, start_warp

start_warp("cpu")

def build(num_envs):
    sim = Simulation(model, num_envs, "cpu", SimConfig(model="", njmax=64, nconmax=24))
    sim.step(), sim.forward(), sim.reset(torch.ones(num_envs, dtype=torch.bool))
    return sim

model = load_model(sys.argv[1])
few, more = build(64), build(256)
before = psutil.Process().memory_info().rss
many = build(8192)
print((more.num_bytes() - few.num_bytes()) / 192, (psutil.Process().memory_info().rss - before) / 8192)
"""


@pytest.mark.slow
def test_counted_bytes_match_the_memory_of_the_process(command: Command):
    """Envs may use more memory than counted. CPU_SHARE leaves enough memory free for the difference."""
    model = Path(__file__).parents[2] / "data" / "models" / "box.xml"
    done = command(command.script(WEIGH), str(model))
    assert done.code == 0, done.err
    counted, measured = map(float, done.out.split())
    assert 0.95 * counted < measured < counted / sizing.CPU_SHARE


def test_memory_grows_linearly_with_the_number_of_envs():
    config = registry.task_config("cartpole-balance").env
    one, two, five = (Env(config, n, "cpu").num_bytes() for n in (64, 128, 320))
    assert five - two == 3 * (two - one)
    assert two - one > 64 * 4 * 2 * 2, "each env needs memory at least for qpos and qvel"


def test_memory_of_terms_is_counted():
    """A history with 50 more values, or a latency with 20 more steps, is counted with its exact number of bytes."""

    def num_bytes(history: int, latency: int) -> int:
        config = dataclasses.replace(
            legged.CONFIG,
            observations={"actor": {"joints": legged.observe("JointPositions", history=history)}},
            actions={"legs": ActionConfig(actuators=(".*_leg",), latency=(0, latency))},
        )
        return Env(config, 64, "cpu").num_bytes()

    fewest = num_bytes(2, 1)
    assert num_bytes(52, 1) - fewest == 64 * 50 * 5 * 4
    assert num_bytes(2, 21) - fewest == 64 * 20 * 4 * 4


# Free memory


def test_free_memory_of_this_machine():
    assert 10**8 < sizing.free_bytes("cpu") < 10**14


# A rank trains with the calculated number of envs


def small(tmp_path: Path, **changes: Any) -> TrainConfig:
    base = registry.task_config("cartpole-balance")
    agent = dataclasses.replace(base.agent, num_steps_per_env=4)
    return dataclasses.replace(base, agent=agent, log_root=str(tmp_path), **{"max_iterations": 1, **changes})


def train(config: TrainConfig) -> tuple[worker.RunResult, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    num_envs = None if config.num_envs == "auto" else config.num_envs
    plan = RankPlan(device=CPU, num_envs=num_envs, run_dir=create_run_dir(config))
    with listening(events.append):
        result = worker.run(config, plan, Control())
    return result, events


@pytest.mark.slow
def test_a_rank_trains_with_the_number_of_envs_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = small(tmp_path, num_envs="auto", total_timesteps=5 * 128 * 4 + 1)
    env_bytes = sizing.measure_room(config, "cpu", 1).env_bytes
    assert 0.2 * env_bytes < min_env_bytes(config) < env_bytes, "min_env_bytes is too large, or far too small"
    monkeypatch.setattr(sizing, "free_bytes", lambda _: int(200 * env_bytes / sizing.CPU_SHARE))
    result, events = train(config)

    (rank,) = json.loads((result.run_dir / "ranks.json").read_text())
    assert (rank["num_envs"], rank["first_env_id"], rank["seed"]) == (128, 0, config.seed)
    said = [event["text"] for event in events if event["kind"] == "status"]
    assert said[0].startswith("--num-envs auto: 128 ")
    assert re.match(rf"--total-timesteps {5 * 128 * 4 + 1}: .*\b5 ", said[1])
    assert {"kind": "length", "max_iterations": 5} in events
    assert result.metrics["total_steps"] == 5 * 128 * 4
    assert result.checkpoint == checkpoint_path(result.run_dir, 5)

    # The search for the number of envs has no other effect: the run equals one whose config has this number.
    same, _ = train(small(tmp_path, num_envs=128, max_iterations=5))
    assert same.metrics["mean_step_reward"] == result.metrics["mean_step_reward"]
    assert same.metrics["loss/value"] == result.metrics["loss/value"]


@pytest.mark.slow
def test_mini_batches_are_checked_after_auto_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = small(tmp_path, num_envs="auto")
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, num_mini_batches=3))
    monkeypatch.setattr(sizing, "free_bytes", lambda _: 10**6)
    with pytest.raises(UserError, match=r"^--agent\.num-mini-batches 3: "):
        train(config)
