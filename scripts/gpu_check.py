"""Check and measure what needs a GPU. Write the figures to gpu_check.json, and each stage's output to a text file.

uv run python scripts/gpu_check.py logs/gpu-check
uv run python scripts/gpu_check.py logs/gpu-check --stages machine learner

Each stage runs in its own process with a time limit, because an error of CUDA makes a process unusable. A table of all
stages is printed at the end. The exit code is 1 if a stage failed. With --device cpu, stages that need no GPU run with
few envs, to test this script.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import warp as wp
from timed import BIN
from torch.profiler import ProfilerActivity, profile

from mjlab_dist import registry
from mjlab_dist.config import CaptureMode
from mjlab_dist.distributed import Rank
from mjlab_dist.env import Env
from mjlab_dist.learn import Runner
from mjlab_dist.learn.capture import CapturedCall, CapturedStep, GraphSequence
from mjlab_dist.messages import listening
from mjlab_dist.sim import start_warp

Figures = dict[str, Any]

ROOT = Path(__file__).parents[1]

PACKAGES = ("torch", "warp-lang", "mujoco", "mujoco-warp", "rsl-rl-lib", "torchrunx")

QUADRUPED = "quadruped-velocity-flat"

TASKS = ("cartpole-balance", "gym-half-cheetah", QUADRUPED, "quadruped-velocity-rough", "humanoid-velocity-flat")
"""Tasks whose speed is measured."""

WARM_UP = 4
"""Iterations before the measured ones. In them, kernels are loaded and graphs are recorded."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Device and sizes of the measurements."""

    out: Path
    device: str

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != "cpu"

    @property
    def num_envs(self) -> tuple[int, ...]:
        """Numbers of envs."""
        return (1024, 4096, 16384) if self.on_gpu else (8,)

    @property
    def captures(self) -> tuple[CaptureMode, ...]:
        """What is recorded as CUDA graphs."""
        return ("physics", "step") if self.on_gpu else ("physics",)

    def pick(self, on_gpu: int, on_cpu: int) -> int:
        """Return a size for the device."""
        return on_gpu if self.on_gpu else on_cpu

    def train(self, task: str, name: str, num_envs: int, max_iterations: int, *flags: str) -> Path:
        """Train with the installed command, and return the run directory."""
        root = self.out / name
        rank = ("--gpu-ids", "0" if self.on_gpu else "None", "--num-envs", str(num_envs), "--log-root", str(root))
        run([str(BIN / "train"), task, *rank, "--max-iterations", str(max_iterations), *flags])
        return max((root / task).iterdir())


def run(args: list[str]) -> str:
    """Run a command, and return what it printed."""
    done = subprocess.run(args, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, flush=True)
    assert done.returncode == 0, f"{args} ended with exit code {done.returncode}"
    return done.stdout


def make_env(task: str, num_envs: int, device: str, capture: CaptureMode = "physics") -> Env:
    """Build an env of a task, with a capture mode."""
    config = registry.task_config(task).env
    return Env(dataclasses.replace(config, sim=dataclasses.replace(config.sim, capture=capture)), num_envs, device)


def timed_s(setup: Setup, call: Callable[[], object]) -> float:
    """Return the mean time of a call in s."""
    times, num_calls = [], setup.pick(50, 2)
    for _ in range(2):  # the first round warms up
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        if setup.on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / num_calls)
    return times[-1]


def machine(setup: Setup) -> Figures:
    """Versions, and the format of compiled kernels."""
    device = wp.get_device(setup.device)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES} | {"python": sys.version.split()[0]}
    if not setup.on_gpu:
        return versions
    return versions | {
        "gpu": torch.cuda.get_device_name(),
        "driver_cuda": wp.get_cuda_driver_version(),
        "warp_cuda": wp.get_cuda_toolkit_version(),
        "torch_cuda": torch.version.cuda,
        "kernels": device.get_cuda_output_format(),
        "memory_pools": wp.is_mempool_enabled(device),
    }


def graphs(setup: Setup) -> Figures:
    """Random numbers in graphs that share memory, also after a capture that fails."""
    kept, broken = (GraphSequence(setup.device) for _ in range(2))
    torch.manual_seed(0)
    with torch.inference_mode(), kept.recording():
        first = torch.rand(4, device=setup.device)
        kept.cut(lambda: None)
        second = torch.rand(4, device=setup.device)
    message = ""
    try:
        with torch.inference_mode(), broken.recording():
            torch.rand(4, device=setup.device).sum().item()
    except RuntimeError as error:
        message = str(error).partition("\n")[0]
    seen = []
    for _ in range(3):
        kept.replay()
        seen += [first.tolist(), second.tolist(), torch.rand(4, device=setup.device).tolist()]
    assert len({tuple(row) for row in seen}) == len(seen), "random numbers repeat"
    assert message, "an operation that waits for the GPU was recorded"
    return {"failed_capture": message}


def doctor(_: Setup) -> Figures:
    """The checks of mjlab-dist doctor."""
    checks = json.loads(run([str(BIN / "mjlab-dist"), "doctor", "--json"]))["checks"]
    return {check["name"]: check["status"] for check in checks}


def train(setup: Setup) -> Figures:
    """Short training with the installed command."""
    num_envs, iterations = setup.pick(4096, 8), setup.pick(20, 3)
    for task in ("cartpole-balance", QUADRUPED):
        for capture in setup.captures:
            setup.train(task, f"train-{capture}", num_envs, iterations, "--env.sim.capture", capture)
    return {}


def physics(setup: Setup) -> Figures:
    """Difference between captured and eager physics, and the time of a control step's physics."""
    found: Figures = {}
    for task in ("cartpole-balance", QUADRUPED):
        captured, eager = (make_env(task, 8, setup.device, capture) for capture in ("physics", "off"))
        eager.load_state(captured.state())
        for sim in (captured.sim, eager.sim):
            generator = torch.Generator().manual_seed(0)
            for _ in range(20):
                sim.ctrl.copy_(torch.randn(sim.ctrl.shape, generator=generator))
                sim.step()
        assert captured.sim.captured
        assert not eager.sim.captured
        difference = (captured.sim.qpos - eager.sim.qpos).abs().max().item()
        found[task] = {"difference": difference}
        assert difference < 1e-2, f"{task}: captured and eager physics differ by {difference}"
        for num_envs in setup.num_envs:
            sim = make_env(task, num_envs, setup.device).sim
            found[task][str(num_envs)] = {"step_ms": 1e3 * timed_s(setup, sim.step)}
        print(task, found[task], flush=True)
    return found


def tasks(setup: Setup) -> Figures:
    """A few steps of every task."""
    found: Figures = {}
    for task in registry.task_names():
        start = time.perf_counter()
        env = make_env(task, setup.pick(64, 4), setup.device)
        env.reset()
        for _ in range(3):
            _, reward, *_ = env.step(torch.randn(env.num_envs, env.num_actions, device=setup.device))
            assert reward.isfinite().all(), task
        found[task] = {"seconds": time.perf_counter() - start}
        print(task, found[task], flush=True)
    return found


def learner(setup: Setup) -> Figures:
    """Speed of training, and whether rollouts and updates are recorded."""
    found: Figures = {}
    for task in TASKS[: setup.pick(len(TASKS), 1)]:
        for num_envs in setup.num_envs:
            for capture in setup.captures:
                found[f"{task} {num_envs} {capture}"] = figures = _learn(setup, task, num_envs, capture)
                print(task, num_envs, capture, figures, flush=True)
                gc.collect()  # free the GPU's memory for the next one
                if setup.on_gpu:
                    torch.cuda.empty_cache()
    return found


def _learn(setup: Setup, task: str, num_envs: int, capture: CaptureMode) -> Figures:
    config, env = registry.task_config(task), make_env(task, num_envs, setup.device, capture)
    config = dataclasses.replace(config, env=env.cfg, num_envs=num_envs)
    warnings: list[str] = []
    walls, samples = [], []
    with listening(lambda event: warnings.append(event["text"]) if event["kind"] == "warning" else None):
        runner = Runner(env, config, Rank())
        runner.alg.train_mode()
        obs = env.get_observations()
        for iteration in range(1, 1 + WARM_UP + setup.pick(8, 1)):
            start = time.perf_counter()
            obs, sample = runner._iteration(obs, iteration)
            walls.append(time.perf_counter() - start)
            samples.append(sample)
    assert not warnings, warnings
    rollout, step = runner._roll_out, runner.alg._step
    assert isinstance(rollout, CapturedCall) == (capture == "step")
    if setup.on_gpu:
        assert isinstance(step, CapturedStep)
        assert step._batch is not None, "the update was not recorded"
    wall_s = statistics.median(walls[WARM_UP:])
    return {
        "steps_per_s": round(num_envs * config.agent.num_steps_per_env / wall_s),
        "collect_ms": 1e3 * statistics.median(sample.collect_s for sample in samples[WARM_UP:]),
        "learn_ms": 1e3 * statistics.median(sample.learn_s for sample in samples[WARM_UP:]),
    }


def kernels(setup: Setup) -> Figures:
    """Times of the kernels of a control step with recorded physics."""
    found: Figures = {}
    for task in TASKS:
        env = make_env(task, 4096, setup.device)
        actions = torch.zeros(env.num_envs, env.num_actions, device=setup.device)
        step_s, physics_s = timed_s(setup, lambda: env.step(actions.normal_())), timed_s(setup, env.sim.step)  # noqa: B023
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(10):
                env.step(actions.normal_())
            torch.cuda.synchronize()
        rows = sorted(profiled.key_averages(), key=lambda row: -row.self_device_time_total)
        busy_us = sum(row.self_device_time_total for row in rows) / 10
        print(f"{task}: step {1e6 * step_s:.0f} us, physics {1e6 * physics_s:.0f} us, kernels {busy_us:.0f} us")
        for row in rows[:12]:
            print(f"  {row.self_device_time_total / 10:8.1f} us {row.count / 10:6.1f} x {row.key[:70]}", flush=True)
        found[task] = {"step_us": 1e6 * step_s, "physics_us": 1e6 * physics_s, "kernels_us": busy_us}
    return found


def two_ranks(setup: Setup) -> Figures:
    """Two ranks that share the device, with gloo."""
    program = str(ROOT / "tests" / "gpu" / "two_ranks.py")
    return json.loads(run([sys.executable, program, setup.device, str(setup.out / "two-ranks")]))["result"]["metrics"]


def walk(setup: Setup) -> Figures:
    """Training of a quadruped with 4,096 envs, and the commands that its policy follows."""
    flags = ("--env.sim.capture", "step") if setup.on_gpu else ()
    trained = setup.train(QUADRUPED, "walk", setup.pick(4096, 8), setup.pick(1200, 2), *flags)
    lasts = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    follow = [sys.executable, str(ROOT / "scripts" / "follow_velocity.py"), str(trained), "--json"]
    followed = subprocess.run(follow, stdout=subprocess.PIPE, text=True, check=False)  # 1: the policy does not walk
    assert followed.returncode == 0 or not setup.on_gpu, followed.stdout
    return {"train_s": lasts["elapsed_s"], "steps": lasts["total_steps"], **json.loads(followed.stdout)}


STAGES: dict[Callable[[Setup], Figures], float] = {
    machine: 60,
    graphs: 60,
    doctor: 60,
    train: 240,
    physics: 200,
    tasks: 240,
    learner: 480,
    kernels: 120,
    two_ranks: 200,
    walk: 600,
}
"""Time limit of each stage in s."""

ONLY_ON_GPU = ("graphs", "kernels")


def run_stage(setup: Setup, stage: Callable[[Setup], Figures], limit_s: float) -> Figures:
    """Run a stage in a process of its own, which writes its figures to a file."""
    name, start = stage.__name__, time.monotonic()
    args = [sys.executable, __file__, str(setup.out), "--device", setup.device, "--stage", name]
    file = setup.out / f"{name}.json"
    file.unlink(missing_ok=True)
    with (setup.out / f"{name}.txt").open("w") as log:
        process = subprocess.Popen(args, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | str = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = f"stopped after {limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # leave nothing on the GPU
            process.wait()
    print("\n".join((setup.out / f"{name}.txt").read_text(errors="replace").splitlines()[-40:]), flush=True)
    figures = json.loads(file.read_text()) if file.exists() else {}
    return {"passed": code == 0, "code": code, "seconds": round(time.monotonic() - start, 1), "figures": figures}


def main() -> int:
    """Run stages, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {stage.__name__: stage for stage in STAGES}
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda:0", help="cuda:<index> or cpu")
    parser.add_argument("--stages", nargs="+", choices=names, default=list(names))
    parser.add_argument("--stage", choices=names, help=argparse.SUPPRESS)
    args = parser.parse_args()
    setup = Setup(out=args.out.resolve(), device=args.device)
    if args.stage:
        start_warp(setup.device)
        (setup.out / f"{args.stage}.json").write_text(json.dumps(names[args.stage](setup), indent=1, default=str))
        return 0
    setup.out.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in args.stages if setup.on_gpu or name not in ONLY_ON_GPU]
    results = {name: run_stage(setup, names[name], STAGES[names[name]]) for name in chosen}
    (setup.out / "gpu_check.json").write_text(json.dumps(results, indent=1))
    for name, result in results.items():
        print(f"{name:10} {'passed' if result['passed'] else 'FAILED'} ({result['code']}) in {result['seconds']:g} s")
    return 0 if all(result["passed"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
