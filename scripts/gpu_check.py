"""Check and measure a machine with a GPU: its tests, the speed of training, and a quadruped that learns to walk.

uv run --group dev python scripts/gpu_check.py logs/gpu-check
uv run --group dev python scripts/gpu_check.py logs/gpu-check --stages speed walk

Each stage runs commands, so that an error of CUDA in one does not spoil the next. Outputs and the figures
(gpu_check.json) are written to the directory. The exit code is 1 if a stage failed. With --cpu, few envs train on the
CPU, to test this script.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from timed import BIN, run_ours

ROOT = Path(__file__).parents[1]
QUADRUPED = "quadruped-velocity-flat"
TASKS = ("cartpole-balance", "gym-half-cheetah", QUADRUPED, "humanoid-velocity-flat")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """Directory, device and sizes of the measurements."""

    out: Path
    gpu: bool
    tasks: tuple[str, ...]
    captures: tuple[str, ...]
    num_envs: tuple[int, ...]
    iterations: int
    walk: tuple[int, int]
    """Envs and iterations with which the quadruped learns to walk."""

    def flags(self, num_envs: int, iterations: int, capture: str) -> list[str]:
        """Return the flags of ``train``."""
        sizes = ["--num-envs", str(num_envs), "--max-iterations", str(iterations)]
        return ["--gpu-ids", "0" if self.gpu else "None", *sizes, "--env.sim.capture", capture]

    def run(self, log: str, *args: str | Path, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command, and keep what it prints in a file. Return its output, without errors and warnings."""
        done = subprocess.run([*map(str, args)], cwd=ROOT, capture_output=True, text=True, check=False)
        (self.out / f"{log}.txt").write_text(done.stdout + done.stderr)
        if done.returncode not in codes:
            printed = (done.stdout + done.stderr)[-4000:]
            sys.exit(f"{' '.join(map(str, args))} ended with exit code {done.returncode}:\n{printed}")
        return done.stdout


def doctor(setup: Setup) -> dict[str, Any]:
    """Check drivers, GPUs and versions."""
    printed = setup.run("doctor", BIN / "mjlab-dist", "doctor", "--json")
    return {check["name"]: check["status"] for check in json.loads(printed)["checks"]}


def tests(setup: Setup) -> dict[str, Any]:
    """Run the tests that need a GPU."""
    printed = setup.run("tests", sys.executable, "-m", "pytest", "tests/gpu", "-q", "--durations=10")
    return {"result": printed.splitlines()[-1]}


def speed(setup: Setup) -> dict[str, Any]:
    """Measure training with rollout and update, in env-steps/s, by task, kind of capture and number of envs."""
    found: dict[str, Any] = {}
    for task, capture, num_envs in itertools.product(setup.tasks, setup.captures, setup.num_envs):
        flags = setup.flags(num_envs, setup.iterations, capture)
        # The commands of `timed` hide GPUs, unless the variable is given
        timed = run_ours(*flags, task=task, env={"CUDA_VISIBLE_DEVICES": "0"} if setup.gpu else None)
        name = f"{task}, capture {capture}, {num_envs} envs"
        print(f"{name}: {timed.steps_per_s:,.0f} steps/s, starts in {timed.first_iteration_s:.1f} s", flush=True)
        found[name] = {"steps/s": timed.steps_per_s, "first iteration after, s": timed.first_iteration_s}
    return found


def walk(setup: Setup) -> dict[str, Any]:
    """Train the quadruped, and measure how its policy follows velocities."""
    flags = setup.flags(*setup.walk, setup.captures[-1])
    setup.run("walk", BIN / "train", QUADRUPED, *flags, "--log-root", setup.out)
    trained = max((setup.out / QUADRUPED).iterdir())
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    script = [sys.executable, ROOT / "scripts" / "follow_velocity.py", trained, "--json"]
    few = [] if setup.gpu else ["--seconds", "0.5", "--num-envs", "8"]
    printed = setup.run("follow", *script, *few, codes=(0, 1))  # 1: too few walk; also the code of an exception
    if not printed:
        sys.exit((setup.out / "follow.txt").read_text())
    followed = json.loads(printed.splitlines()[-1])
    if setup.gpu and not followed["walks"]:
        sys.exit(f"the robots do not walk: {followed}")
    return {"training, s": last["elapsed_s"], "env-steps": last["total_steps"], **followed}


STAGES = {stage.__name__: stage for stage in (doctor, tests, speed, walk)}


def main() -> int:
    """Run stages, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cpu", action="store_true", help="train few envs on the CPU")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    on_gpu = Setup(
        out=out,
        gpu=True,
        tasks=TASKS,
        captures=("physics", "step"),
        num_envs=(1024, 4096, 16384),
        iterations=12,
        walk=(4096, 400),
    )
    on_cpu = Setup(out=out, gpu=False, tasks=TASKS[:1], captures=("physics",), num_envs=(8,), iterations=2, walk=(8, 2))
    results: dict[str, Any] = {}
    for name in args.stages:
        start, result, figures = time.monotonic(), "passed", {}
        try:
            figures = STAGES[name](on_cpu if args.cpu else on_gpu)
        except SystemExit as error:
            result = "failed"
            print(error, flush=True)
        results[name] = {"result": result, "seconds": round(time.monotonic() - start, 1), "figures": figures}
        print(f"{name}: {result} in {results[name]['seconds']:g} s {figures if name != 'speed' else ''}", flush=True)
        (out / "gpu_check.json").write_text(json.dumps(results, indent=1))
    return 0 if all(each["result"] == "passed" for each in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
