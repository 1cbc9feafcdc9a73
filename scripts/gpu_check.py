"""Check and measure what needs a GPU, and write the figures to gpu_check.json in a directory.

uv run python scripts/gpu_check.py logs/gpu-check
uv run python scripts/gpu_check.py logs/gpu-check --stages machine learner

Each stage runs in its own process, because an error of CUDA makes a process unusable. The exit code is 1 if a stage
failed. With --device cpu, stages that need no GPU run with few envs, to test this script.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """Directory, device and sizes of the measurements."""

    out: Path
    device: str
    on_gpu: bool
    num_envs: tuple[int, ...]
    captures: tuple[CaptureMode, ...]


def run(args: list[str]) -> str:
    """Run a command, and return what it printed."""
    done = subprocess.run(args, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, flush=True)
    assert done.returncode == 0, f"{args} ended with exit code {done.returncode}"
    return done.stdout


def make_env(setup: Setup, task: str, num_envs: int, capture: CaptureMode = "physics") -> Env:
    """Build an env of a task, with a capture mode."""
    config = registry.task_config(task).env
    return Env(
        dataclasses.replace(config, sim=dataclasses.replace(config.sim, capture=capture)), num_envs, setup.device
    )


def timed_ms(setup: Setup, call: Callable[[], object]) -> float:
    """Return the mean time of a call in ms, after the same number of calls that are not timed."""
    start, num_calls = 0.0, 50 if setup.on_gpu else 2
    for _ in range(2):
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        if setup.on_gpu:
            torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / num_calls


def machine(setup: Setup) -> Figures:
    """Versions, and the format of compiled kernels."""
    found: Figures = {"python": sys.version.split()[0]} | {name: importlib.metadata.version(name) for name in PACKAGES}
    if setup.on_gpu:
        device = wp.get_device(setup.device)
        cuda = [wp.get_cuda_driver_version(), wp.get_cuda_toolkit_version(), torch.version.cuda]
        found |= {"gpu": torch.cuda.get_device_name(), "cuda of driver, Warp, torch": cuda}
        found |= {"kernels": device.get_cuda_output_format(), "memory pools": wp.is_mempool_enabled(device)}
    return found


def graphs(setup: Setup) -> Figures:
    """Random numbers in graphs that share memory, also after a capture that fails."""
    kept, broken = (GraphSequence(setup.device) for _ in range(2))
    with torch.inference_mode(), kept.recording():
        first = torch.rand(4, device=setup.device)
        kept.cut(lambda: None)
        second = torch.rand(4, device=setup.device)
    message, seen = "", []
    try:
        with torch.inference_mode(), broken.recording():
            torch.rand(4, device=setup.device).sum().item()
    except RuntimeError as error:
        message = str(error).partition("\n")[0]
    for _ in range(3):
        kept.replay()
        seen += [tuple(numbers.tolist()) for numbers in (first, second, torch.rand(4, device=setup.device))]
    assert len(set(seen)) == len(seen), "random numbers repeat"
    assert message, "an operation that waits for the GPU was recorded"
    return {"failed capture": message}


def doctor(_: Setup) -> Figures:
    """The checks of mjlab-dist doctor."""
    checks = json.loads(run([str(BIN / "mjlab-dist"), "doctor", "--json"]))["checks"]
    return {check["name"]: check["status"] for check in checks}


def physics(setup: Setup) -> Figures:
    """Difference between captured and eager physics, and the time of a control step's physics."""
    found: Figures = {}
    for task in ("cartpole-balance", QUADRUPED):
        captured, eager = (make_env(setup, task, 8, capture) for capture in ("physics", "off"))
        eager.load_state(captured.state())
        for sim in (captured.sim, eager.sim):
            generator = torch.Generator().manual_seed(0)
            for _ in range(20):
                sim.ctrl.copy_(torch.randn(sim.ctrl.shape, generator=generator))
                sim.step()
        assert (captured.sim.captured, eager.sim.captured) == (True, False)
        found[task] = {"difference": (captured.sim.qpos - eager.sim.qpos).abs().max().item()}
        assert found[task]["difference"] < 1e-2
        for num_envs in setup.num_envs:
            found[task][f"{num_envs} envs, ms"] = timed_ms(setup, make_env(setup, task, num_envs).sim.step)
        print(task, found[task], flush=True)
    return found


def tasks(setup: Setup) -> Figures:
    """A few steps of every task."""
    found: Figures = {}
    for task in registry.task_names():
        start = time.perf_counter()
        env = make_env(setup, task, 8)
        env.reset()
        rewards = [env.step(torch.randn(8, env.num_actions, device=setup.device))[1] for _ in range(3)]
        assert torch.stack(rewards).isfinite().all(), task
        found[task] = {"seconds": time.perf_counter() - start}
    return found


def learner(setup: Setup) -> Figures:
    """Speed of training, and whether rollouts and updates are recorded."""
    found: Figures = {}
    for task in TASKS if setup.on_gpu else TASKS[:1]:
        for num_envs in setup.num_envs:
            for capture in setup.captures:
                found[f"{task} {num_envs} {capture}"] = figures = _learn(setup, task, num_envs, capture)
                print(task, num_envs, capture, figures, flush=True)
                gc.collect()  # free memory for the next one
                torch.cuda.empty_cache()
    return found


def _learn(setup: Setup, task: str, num_envs: int, capture: CaptureMode) -> Figures:
    env = make_env(setup, task, num_envs, capture)
    config = dataclasses.replace(registry.task_config(task), env=env.cfg, num_envs=num_envs)
    warnings: list[str] = []
    times: list[tuple[float, float, float]] = []
    with listening(lambda event: warnings.append(event["text"]) if event["kind"] == "warning" else None):
        runner = Runner(env, config, Rank())
        runner.alg.train_mode()
        obs = env.get_observations()
        for iteration in range(1, WARM_UP + (9 if setup.on_gpu else 2)):
            start = time.perf_counter()
            obs, sample = runner._iteration(obs, iteration)
            times.append((time.perf_counter() - start, sample.collect_s, sample.learn_s))
    assert not warnings, warnings
    assert isinstance(runner._roll_out, CapturedCall) == (capture == "step")
    if setup.on_gpu:
        assert isinstance(runner.alg._step, CapturedStep)
        assert runner.alg._step._batch is not None, "the update was not recorded"
    wall_s, collect_s, learn_s = (statistics.median(each) for each in zip(*times[WARM_UP:], strict=True))
    steps_per_s = round(num_envs * config.agent.num_steps_per_env / wall_s)
    return {"steps/s": steps_per_s, "collect, ms": 1e3 * collect_s, "learn, ms": 1e3 * learn_s}


def kernels(setup: Setup) -> Figures:
    """Times of the kernels of a control step with recorded physics."""
    found: Figures = {}
    for task in TASKS:
        env = make_env(setup, task, 4096)

        def step(env: Env = env) -> None:
            env.step(torch.randn(env.num_envs, env.num_actions, device=env.device))

        found[task] = {"step, ms": timed_ms(setup, step)}
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(10):
                step()
            torch.cuda.synchronize()
        rows = sorted(profiled.key_averages(), key=lambda row: -row.self_device_time_total)
        found[task]["kernels, ms"] = sum(row.self_device_time_total for row in rows) / 1e4
        print(task, found[task])
        for row in rows[:12]:
            print(f"  {row.self_device_time_total / 10:8.1f} us {row.count / 10:6.1f} x {row.key[:70]}", flush=True)
    return found


def two_ranks(setup: Setup) -> Figures:
    """Two ranks that share the device, with gloo."""
    program = str(ROOT / "tests" / "gpu" / "two_ranks.py")
    return json.loads(run([sys.executable, program, setup.device, str(setup.out / "two-ranks")]))["result"]["metrics"]


def walk(setup: Setup) -> Figures:
    """Training of a quadruped, and the velocities that its policy follows."""
    gpu_ids, sizes = ("0", ("4096", "1200")) if setup.on_gpu else ("None", ("8", "2"))
    flags = ["--gpu-ids", gpu_ids, "--num-envs", sizes[0], "--max-iterations", sizes[1], "--log-root", str(setup.out)]
    run([str(BIN / "train"), QUADRUPED, *flags, "--env.sim.capture", setup.captures[-1]])
    trained = max((setup.out / QUADRUPED).iterdir())
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    args = [sys.executable, str(ROOT / "scripts" / "follow_velocity.py"), str(trained), "--json"]
    args += [] if setup.on_gpu else ["--seconds", "0.5", "--num-envs", "8"]
    followed = subprocess.run(args, stdout=subprocess.PIPE, text=True, check=False)
    assert followed.returncode == 0 or not setup.on_gpu, f"the robots do not walk: {followed.stdout}"
    return {"training, s": last["elapsed_s"], "steps": last["total_steps"], **json.loads(followed.stdout)}


LIMITS_S = {machine: 120, graphs: 60, doctor: 60, physics: 200, tasks: 240, learner: 480, kernels: 120, two_ranks: 200}
LIMITS_S[walk] = 600


def run_stage(setup: Setup, name: str, limit_s: float) -> Figures:
    """Run a stage in a process of its own. Show the end of its output, and return its result."""
    figures, log, start = setup.out / f"{name}.json", setup.out / f"{name}.txt", time.monotonic()
    figures.unlink(missing_ok=True)
    args = [sys.executable, __file__, str(setup.out), "--device", setup.device, "--stage", name]
    with log.open("w") as out, subprocess.Popen(args, stdout=out, stderr=out, start_new_session=True) as process:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(limit_s if setup.on_gpu else None)  # a CPU may be busy
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # leave nothing on the GPU
    print("\n".join(log.read_text(errors="replace").splitlines()[-40:]), flush=True)
    result = "passed" if code == 0 else f"stopped after {limit_s} s" if code is None else f"failed ({code})"
    found = json.loads(figures.read_text()) if code == 0 else {}
    return {"result": result, "seconds": round(time.monotonic() - start, 1), "figures": found}


def main() -> int:
    """Run stages, and print a table."""
    names = {stage.__name__: stage for stage in LIMITS_S}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda:0", help="cuda:<index> or cpu")
    parser.add_argument("--stages", nargs="+", choices=names, default=list(names))
    parser.add_argument("--stage", choices=names, help=argparse.SUPPRESS)
    args = parser.parse_args()
    on_gpu, out = args.device != "cpu", args.out.resolve()
    num_envs: tuple[int, ...] = (1024, 4096, 16384) if on_gpu else (8,)
    captures: tuple[CaptureMode, ...] = ("physics", "step") if on_gpu else ("physics",)
    setup = Setup(out=out, device=args.device, on_gpu=on_gpu, num_envs=num_envs, captures=captures)
    if args.stage:
        start_warp(setup.device)
        (out / f"{args.stage}.json").write_text(json.dumps(names[args.stage](setup)))
        return 0
    out.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in args.stages if on_gpu or names[name] not in (graphs, kernels)]
    results = {name: run_stage(setup, name, LIMITS_S[names[name]]) for name in chosen}
    (out / "gpu_check.json").write_text(json.dumps(results, indent=1))
    for name, result in results.items():
        print(f"{name:10} {result['result']} in {result['seconds']:g} s")
    return 0 if all(result["result"] == "passed" for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
