"""Tests that need a GPU. Without one, they are skipped. With one GPU, only tests of NCCL on two GPUs are skipped."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import two_ranks
import warp as wp
from conftest import Command
from every_task import NAMES, config_of
from fault_injection import faults

import mjlab_dist
from mjlab_dist.config import CheckpointConfig, SimConfig, registry
from mjlab_dist.distributed import Rank
from mjlab_dist.env import Env, sizing
from mjlab_dist.errors import Exit
from mjlab_dist.learn.capture import CapturedCall, CapturedStep, GraphSequence
from mjlab_dist.learn.checkpoint import CheckpointStore
from mjlab_dist.learn.networks import BoundedGaussian
from mjlab_dist.learn.ppo import PPO
from mjlab_dist.learn.runner import Runner
from mjlab_dist.runs.run_dir import PROVENANCE_FILE, RANKS_FILE, checkpoint_path, find_checkpoint, read_metrics
from mjlab_dist.sim import Simulation, load_model, start_warp
from mjlab_dist.sim.recorder import why_not_capturable

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda:0"
NUM_ENVS = 256
ROLLOUT_STEPS = 32


def assert_trained(run_dir: Path, num_iterations: int, steps_per_iteration: int) -> list[dict[str, Any]]:
    """Check that every iteration has a row of finite metrics, and that the last iteration has a readable checkpoint."""
    rows = read_metrics(run_dir)
    assert [row["iteration"] for row in rows] == list(range(1, num_iterations + 1))
    for row in rows:
        assert row["total_steps"] == row["iteration"] * steps_per_iteration
        losses = [value for name, value in row.items() if name.startswith("loss/")]
        assert losses
        assert all(math.isfinite(x) for x in (*losses, row["mean_step_reward"], row["learning_rate"]))
        assert 0 < row["mean_step_reward"] <= 1
        assert row["overflowed_envs"] == 0
    checkpoint = find_checkpoint(run_dir)
    assert checkpoint == checkpoint_path(run_dir, num_iterations)
    assert torch.load(checkpoint, map_location="cpu", weights_only=True)["iter"] == num_iterations
    return rows


# Training


@needs_gpu
def test_one_gpu_trains_in_the_commands_own_process(command: Callable[..., Any], tmp_path: Path) -> None:
    flags = ["--gpu-ids", "0", "--max-iterations", "5", "--num-envs", str(NUM_ENVS), "--log-root", str(tmp_path)]
    done = command("train", "cartpole-balance", *flags, timeout_s=600)
    assert done.code == 0, done.err
    assert "captur" not in done.out + done.err
    (run_dir,) = (tmp_path / "cartpole-balance").iterdir()
    assert_trained(run_dir, 5, NUM_ENVS * ROLLOUT_STEPS)
    (device,) = json.loads((run_dir / PROVENANCE_FILE).read_text())["devices"]
    assert device != "cpu"
    assert not (run_dir / "torchrunx").exists()


@needs_gpu
def test_envs_chosen_by_memory_fit_on_the_gpu(command: Callable[..., Any], tmp_path: Path) -> None:
    flags = ["--gpu-ids", "0", "--max-iterations", "2", "--num-envs", "auto", "--log-root", str(tmp_path)]
    done = command("train", "cartpole-balance", *flags, timeout_s=600)
    assert done.code == 0, done.err
    assert done.out.count("--num-envs auto: ") == 1
    (run_dir,) = (tmp_path / "cartpole-balance").iterdir()
    (rank,) = json.loads((run_dir / RANKS_FILE).read_text())
    assert rank["num_envs"].bit_count() == 1
    assert rank["name"] == torch.cuda.get_device_name(0)
    major, minor = torch.cuda.get_device_capability(0)
    assert rank["capability"] == f"{major}.{minor}"
    assert_trained(run_dir, 2, rank["num_envs"] * ROLLOUT_STEPS)


@needs_gpu
def test_an_env_on_the_gpu_uses_at_least_the_bytes_of_its_arrays() -> None:
    start_warp(DEVICE)
    config = registry.task_config("cartpole-balance")
    few, more = (Env(config.env, n, DEVICE).num_bytes() for n in (64, 256))
    room = sizing.measure_room(config, DEVICE, 1)
    assert room.env_bytes > (more - few) / 192
    assert 0 < room.usable_bytes < torch.cuda.get_device_properties(DEVICE).total_memory
    before = sizing.free_bytes(DEVICE)
    num_envs = 8192
    env = Env(config.env, num_envs, DEVICE)
    env.step(torch.zeros(num_envs, env.num_actions, device=DEVICE))
    assert before - sizing.free_bytes(DEVICE) <= num_envs * room.env_bytes


@needs_gpu
def test_two_ranks_share_one_gpu_through_gloo(tmp_path: Path) -> None:
    # Launch the ranks in a new process, for two reasons: torchrunx forks, which is forbidden after this process has
    # used CUDA, and at the end, torchrunx kills all child processes of its process.
    left_out = ("TORCHRUNX_LOG_DIR", "PYTHONDONTWRITEBYTECODE")
    done = subprocess.run(
        [sys.executable, two_ranks.__file__, DEVICE, str(tmp_path)],
        env={name: value for name, value in os.environ.items() if name not in left_out},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_two_ranks_trained(done.stdout)


def assert_two_ranks_trained(printed: str) -> None:
    answer = json.loads(printed)
    run_dir, result = Path(answer["run_dir"]), answer["result"]
    rows = assert_trained(run_dir, two_ranks.ITERATIONS, 2 * two_ranks.NUM_ENVS * ROLLOUT_STEPS)
    assert result["run_dir"] == str(run_dir)
    assert Path(result["checkpoint"]).is_file()
    assert result["metrics"] == rows[-1]
    assert [e["row"]["iteration"] for e in answer["events"] if e["kind"] == "iteration"] == [1, 2]
    assert not [e for e in answer["events"] if e["kind"] == "warning"]


@pytest.mark.slow
def test_the_script_of_two_ranks_works_on_a_cpu(command: Command) -> None:
    """Test the script on a CPU too, so that its errors are found on machines without a GPU."""
    done = command(command.script(Path(two_ranks.__file__).read_text()), "cpu", str(command.cwd))
    assert done.code == 0, done.err
    assert_two_ranks_trained(done.out)


@pytest.mark.slow
@needs_gpu
def test_the_memory_of_a_first_run_is_free_for_a_second_run_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[int] = []
    build = Env.__init__

    def watched(env: Env, *args: Any, **kwargs: Any) -> None:
        free.append(sizing.free_bytes(DEVICE))
        build(env, *args, **kwargs)

    monkeypatch.setattr(Env, "__init__", watched)
    gc.disable()  # otherwise a garbage collection may free the first run's memory by chance
    try:
        for _ in range(2):
            mjlab_dist.train(
                "quadruped-velocity-flat",
                gpu_ids=(0,),
                num_envs=8192,
                max_iterations=1,
                log_root=str(tmp_path),
                quiet=True,
            )
    finally:
        gc.enable()
    # A run uses several GiB. Kernels and libraries, which remain, use less than one GiB.
    assert free[1] > free[0] - 2**30


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(("fault", "code"), [("raise", Exit.FAILED), ("sigkill", Exit.INFRASTRUCTURE)])
def test_a_rank_that_fails_in_a_run_with_nccl_is_named(
    command: Command, tmp_path: Path, fault: str, code: Exit
) -> None:
    flags = ["--gpu-ids", "0", "1", "--num-envs", "64", "--max-iterations", "50", "--log-root", str(tmp_path)]
    done = command("train", "cartpole-balance", *flags, *faults(command.cwd, f"1:3:{fault}"), timeout_s=300)
    assert done.code == code
    assert "rank 1" in done.err


# Checkpoints


@needs_gpu
def test_a_checkpoint_saved_on_a_gpu_loads_without_a_gpu(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, CheckpointConfig())
    store.save(1, {"weights": torch.arange(5.0, device=DEVICE)}, None)
    store.close()
    # Without map_location, torch loads every tensor to the device that the file names.
    read = torch.load(checkpoint_path(tmp_path, 1), weights_only=True)
    assert read["weights"].device.type == "cpu"
    assert read["weights"].tolist() == [0, 1, 2, 3, 4]


# Numbers that are not finite


@needs_gpu
def test_a_standard_deviation_that_is_not_a_number_leaves_the_device_usable() -> None:
    distribution = BoundedGaussian(3, init_std=1.0, min_std=1e-3, std_type="scalar").to(DEVICE)
    with torch.no_grad():
        distribution.std_param[0] = math.nan
    distribution.update(torch.zeros(4, 3, device=DEVICE))
    assert distribution.sample()[:, 0].isnan().all()
    assert torch.ones(3, device=DEVICE).sum().item() == 3  # raises if an assertion failed in a kernel


# Capture of CUDA graphs


@pytest.fixture
def simulate() -> Callable[..., Simulation]:
    start_warp(DEVICE)
    env = registry.task_config("cartpole-balance").env
    model = load_model(env.sim.model)

    def make(**options: Any) -> Simulation:
        config = SimConfig(model=env.sim.model, njmax=env.sim.njmax, nconmax=env.sim.nconmax, **options)
        return Simulation(model, NUM_ENVS, DEVICE, config)

    return make


def drive(sim: Simulation) -> list[torch.Tensor]:
    """Run 50 steps in which carts hit the rail's ends, and reset some envs. Return the states after each step."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    draw = {"generator": generator, "device": DEVICE}
    sim.qpos.copy_(torch.rand(sim.qpos.shape, **draw) * 3.6 - 1.8)
    sim.qvel.copy_(torch.randn(sim.qvel.shape, **draw) * 2)
    seen = []
    for i in range(50):
        sim.ctrl.copy_(torch.randn(sim.ctrl.shape, **draw))
        sim.step()
        if i % 10 == 9:
            sim.reset(torch.rand(NUM_ENVS, **draw) < 0.2)
            sim.forward()
        seen.append(torch.cat([sim.qpos, sim.qvel, sim.view("qacc"), sim.view("xpos").flatten(1)], dim=1))
    return seen


@needs_gpu
def test_captured_equals_eager_bit_for_bit(simulate: Callable[..., Simulation]) -> None:
    captured, eager = simulate(), simulate(capture="off")
    reason = why_not_capturable(captured.device)
    if reason:
        pytest.skip(reason)
    assert captured.captured
    assert not eager.captured
    ours, oracle = drive(captured), drive(eager)
    assert all(torch.equal(a, b) for a, b in zip(ours, oracle, strict=True))
    assert not torch.equal(ours[0], ours[-1])
    assert ours[-1].isfinite().all()


@needs_gpu
def test_random_numbers_never_repeat_in_graphs_also_after_a_capture_that_failed() -> None:
    start_warp(DEVICE)
    recorded, failed = (GraphSequence(DEVICE) for _ in range(2))
    with torch.inference_mode(), recorded.recording():
        first = torch.rand(4, device=DEVICE)
        recorded.cut(lambda: None)
        second = torch.rand(4, device=DEVICE)
    with torch.inference_mode(), pytest.raises(RuntimeError), failed.recording():
        torch.rand(4, device=DEVICE).sum().item()  # waits for the GPU
    seen = []
    for _ in range(3):
        recorded.replay()
        seen += [tuple(drawn.tolist()) for drawn in (first, second, torch.rand(4, device=DEVICE))]
    assert len(set(seen)) == len(seen)


@needs_gpu
@pytest.mark.parametrize("task", ["cartpole-swingup", "quadruped-velocity-flat", "everything"])
def test_captured_rollouts_train_like_eager_ones(task: str) -> None:
    """Compare rewards approximately: graphs change the order of random numbers, and the order of contacts varies."""
    start_warp(DEVICE)
    rewards = []
    for capture in ("physics", "step"):
        config = config_of(task)
        env = dataclasses.replace(config.env, sim=dataclasses.replace(config.env.sim, capture=capture))
        config = dataclasses.replace(config, env=env, num_envs=NUM_ENVS, total_num_envs=None)
        torch.manual_seed(0)
        runner = Runner(Env(env, NUM_ENVS, DEVICE), config, Rank())
        runner.alg.train_mode()
        obs, seen = runner.env.get_observations(), []
        for iteration in range(1, 6):
            obs, sample = runner._iteration(obs, iteration)
            seen.append(sample.reward.item())
            assert sample.not_finite == 0
        assert isinstance(runner._roll_out, CapturedCall) == (capture == "step")
        if isinstance(runner._roll_out, CapturedCall):
            assert runner._roll_out.is_recorded
        rewards.append(torch.tensor(seen))
    torch.testing.assert_close(rewards[0][0], rewards[1][0], rtol=1e-3, atol=1e-3)  # iteration 1: both are eager
    torch.testing.assert_close(rewards[0], rewards[1], rtol=0.2, atol=0.05)


TASKS_TO_CAPTURE = {
    "gym-half-cheetah": "contacts",
    "quadruped-velocity-flat": "contacts, randomized fields of the model, pushes",
    "quadruped-velocity-rough": "contacts with terrain, height scan",
    "arm-lift-cube": "equality constraints, an object",
    "everything": "every kind of term",
}


@needs_gpu
@pytest.mark.parametrize("task", TASKS_TO_CAPTURE)
def test_captured_steps_give_the_results_of_eager_steps(task: str) -> None:
    """Compare single steps from the same state: the order of contacts varies, so differences would grow over steps."""
    start_warp(DEVICE)
    config = config_of(task).env
    captured, eager = (
        Env(dataclasses.replace(config, sim=dataclasses.replace(config.sim, capture=capture)), 64, DEVICE)
        for capture in ("physics", "off")
    )
    assert captured.sim.captured
    assert not eager.sim.captured
    actions = 0.5 * torch.randn(50, 64, captured.num_actions, device=DEVICE)
    close = 0
    for step, row in enumerate(actions):
        eager.load_state(captured.state())
        results = []
        for env in (captured, eager):
            torch.manual_seed(step)
            results.append(env.step(row))
        (ours, rewards, dones, _), (oracle, expected_rewards, expected_dones, _) = results
        same = (dones == expected_dones) & torch.isclose(rewards, expected_rewards, rtol=1e-2, atol=1e-2)
        for name, group in ours.items():
            assert group.isfinite().all()
            same &= torch.isclose(group, oracle[name], rtol=1e-2, atol=1e-2).flatten(1).all(dim=1)
        close += int(same.sum())
    assert close > 0.99 * actions.shape[0] * 64, "steps may differ only where a contact begins a substep later"


@needs_gpu
def test_nothing_is_compiled_in_a_capture_or_a_step() -> None:
    start_warp(DEVICE)
    compiled: list[str] = []
    compile_module = wp.Module._compile

    def watched(module: wp.Module, *args: Any, **kwargs: Any) -> bool:
        is_new = compile_module(module, *args, **kwargs)
        if is_new:
            compiled.append(module.name)
        return is_new

    config = config_of("quadruped-velocity-rough").env
    Env(config, 8, DEVICE)  # compiles missing kernels
    with mock.patch.object(wp.Module, "_compile", watched):
        env = Env(config, 8, DEVICE)
        env.step(torch.zeros(8, env.num_actions, device=DEVICE))
    assert compiled == []


@needs_gpu
def test_the_gpu_computes_what_the_cpu_does(simulate: Callable[..., Simulation]) -> None:
    on_gpu = simulate()
    on_cpu = Simulation(on_gpu.model, NUM_ENVS, "cpu", SimConfig(model="", njmax=2, nconmax=0))
    for sim in (on_gpu, on_cpu):
        generator = torch.Generator().manual_seed(0)
        sim.qpos.copy_(torch.rand(NUM_ENVS, 2, generator=generator) - 0.5)
        for _ in range(50):
            sim.ctrl.copy_(torch.randn(NUM_ENVS, 1, generator=generator))
            sim.step()
    torch.testing.assert_close(on_gpu.qpos.cpu(), on_cpu.qpos, rtol=0, atol=1e-4)
    torch.testing.assert_close(on_gpu.qvel.cpu(), on_cpu.qvel, rtol=0, atol=3e-4)


# Deterministic mode


@needs_gpu
@pytest.mark.parametrize("task", ["quadruped-velocity-flat", "arm-lift-cube"])
def test_the_same_seed_and_actions_give_the_same_states_in_the_deterministic_mode(task: str) -> None:
    start_warp(DEVICE)
    config = registry.task_config(task).env
    config = dataclasses.replace(config, sim=dataclasses.replace(config.sim, deterministic=True))

    def roll_out() -> list[torch.Tensor]:
        torch.manual_seed(0)
        env = Env(config, 64, DEVICE)
        actions = torch.randn(50, 64, env.num_actions, device=DEVICE)
        states = []
        for row in actions:
            env.step(row)
            states.append(env.sim.qpos.clone())
        assert not env.sim.overflow.any()
        return states

    first, second = roll_out(), roll_out()
    assert [step for step, pair in enumerate(zip(first, second, strict=True)) if not torch.equal(*pair)] == []
    assert not torch.equal(first[0], first[-1])


# No waits of the host


@pytest.fixture
def syncs_fail() -> Iterator[Callable[[], None]]:
    """Function to call after warming up. After its call, each operation that makes the host wait for the GPU raises."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@needs_gpu
def test_a_sync_is_detected(syncs_fail: Callable[[], None]) -> None:
    x = torch.ones(3, device=DEVICE)
    syncs_fail()
    x.mul_(2)
    with pytest.raises(RuntimeError, match="synchroniz"):
        x.sum().item()
    with pytest.raises(RuntimeError, match="synchroniz"):
        x.nonzero()


@needs_gpu
def test_the_simulation_never_waits_for_the_gpu(
    simulate: Callable[..., Simulation], syncs_fail: Callable[[], None]
) -> None:
    sim = simulate()
    mask = torch.arange(NUM_ENVS, device=DEVICE) % 2 == 0
    before = sim.qpos.clone()

    def use() -> None:
        sim.ctrl.fill_(1.0)
        sim.step()
        sim.reset(mask)
        sim.forward()

    use()
    syncs_fail()
    for _ in range(20):
        use()
    torch.cuda.set_sync_debug_mode("default")
    moved = (sim.qpos != before).any(dim=1)
    assert torch.equal(moved, ~mask)


@needs_gpu
@pytest.mark.parametrize("task", registry.task_names())
def test_an_env_step_never_waits_for_the_gpu(task: str, syncs_fail: Callable[[], None]) -> None:
    start_warp(DEVICE)
    torch.manual_seed(0)
    env = Env(registry.task_config(task).env, NUM_ENVS, DEVICE)
    env.episode_length_buf.random_(env.max_episode_length - 20, env.max_episode_length)  # episodes end in these steps
    actions = torch.randn(21, NUM_ENVS, env.num_actions, device=DEVICE)
    env.step(actions[0])
    env.pop_episode_totals()
    syncs_fail()
    steps = [env.step(row) for row in actions[1:]]
    totals = env.pop_episode_totals()
    torch.cuda.set_sync_debug_mode("default")
    rewards = torch.stack([step[1] for step in steps])
    assert totals.episodes > NUM_ENVS / 2
    assert rewards.isfinite().all()
    for observed in steps[-1][0].values():
        assert observed.isfinite().all()
    if task.startswith("cartpole"):
        assert ((rewards >= 0) & (rewards <= 1)).all()


@needs_gpu
@pytest.mark.parametrize("task", NAMES)
def test_an_iteration_never_waits_for_the_gpu(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check rollout, returns, update and the tensors of metrics. Only the wait at the iteration's end is allowed."""
    start_warp(DEVICE)
    torch.manual_seed(0)
    config = dataclasses.replace(config_of(task), num_envs=NUM_ENVS, total_num_envs=None)
    runner = Runner(Env(config.env, NUM_ENVS, DEVICE), config, Rank())
    runner.alg.train_mode()
    synchronize = torch.cuda.synchronize

    def allowed(device: str | None = None) -> None:
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        synchronize(device)
        torch.cuda.set_sync_debug_mode(mode)

    monkeypatch.setattr(torch.cuda, "synchronize", allowed)
    obs, _ = runner._iteration(runner.env.get_observations(), 1)
    assert isinstance(runner.alg, PPO)
    step = runner.alg._step
    assert isinstance(step, CapturedStep)
    assert step._batch is not None, "the update was not recorded"
    torch.cuda.set_sync_debug_mode("error")
    try:
        _, sample = runner._iteration(obs, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sample.reward.isfinite()
    assert sample.not_finite == 0
