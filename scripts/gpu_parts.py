"""Parts of the GPU report. Each part runs commands, and stores figures as plain data."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gpu_test_log
from gpu_commands import ROOT, PartError, installed, only_run, temporary_log_root
from gpu_site import TRAIN_LIMIT_S, Data, Site, finish, last_json, summarize, train_briefly
from gpu_sizes import Sizes
from timed import LIKE_PEER, PEER_TASK, SKIPPED

from mjlab_dist import faults
from mjlab_dist.run_dir import CONFIG_FILE, find_run, list_checkpoints, read_config_file, read_metrics

FIRST_ITERATION = r"iteration 1/"
"""Line that `train` prints at the end of its first iteration."""

SYNC_TESTS = "never_waits"
"""Substring in the names of the tests that use torch's sync debug mode."""

TRACKING = {"quadruped-velocity-flat": "track_linear_velocity", "humanoid-velocity-flat": "linear_velocity"}
"""Reward term of the linear velocity, by task."""

WALKING_SHARE = 0.8
"""A policy walks only if it earns at least this fraction of the maximum tracking reward, with exploration."""

WALKING_LENGTH = 0.95
"""A policy walks only if its mean episode length is at least this fraction of the maximum episode length."""

EXIT_STOPPED = 75
"""Exit code of a training run that wrote a checkpoint and stopped on request."""

CURVE_POINTS = 300

FAULT_CODES = {"raise": 1, "sigkill": 5, "sigstop": 5}
"""Exit code of `train` after each fault (docs/reliability.md)."""


Measure = Callable[[Site, Data], None]
"""Function that runs a part. It stores each figure as soon as it is measured. If the part then fails, the page can
still show these figures."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the report."""

    name: str
    """Name of the part on the command line."""
    measure: Measure
    """Function that runs the part."""
    missing: str
    """Reason why the part cannot be run on this machine; empty if it can."""


def list_parts(sizes: Sizes, num_gpus: int, has_peer: bool, dry_run: bool) -> list[Part]:
    """Return all parts in the order in which they run: short parts that reveal most problems first.

    Args:
        sizes: Sizes of the measurements.
        num_gpus: Number of usable GPUs.
        has_peer: Whether mjlab is installed.
        dry_run: Whether CPU ranks replace GPUs.
    """
    several = "" if dry_run or num_gpus > 1 else "needs two GPUs, and this machine has one"
    peer = "" if has_peer else "no environment with mjlab is given; use --peer-python"
    measures: list[tuple[str, Measure, str]] = [
        ("machine", describe_machine, ""),
        ("tests", run_tests, ""),
        ("cold-start", start_cold, ""),
        ("capture", compare_captures, ""),
        *((name, measure_throughput(task), "") for name, task in sizes.throughput.items()),
        ("sync", run_sync_tests, ""),
        ("two-ranks", share_one_device, ""),
        ("nccl-faults", inject_faults, several),
        ("nccl-scaling", scale_weakly, several),
        *((name, train_to_walk(task), "") for name, task in sizes.trainings.items()),
        ("mjlab", compare_with_mjlab, peer),
    ]
    return [
        Part(name=name, measure=measure, missing=sizes.left_out.get(name, missing))
        for name, measure, missing in measures
    ]


# Machine and tests


def describe_machine(site: Site, data: Data) -> None:
    """Describe devices and versions, and run the doctor."""
    data |= site.measure("gpu_machine.py", name="machine")
    log_root = str(site.data)
    args = [*installed("mjlab-dist"), "doctor", "--json", "--log-root", log_root]
    ended = site.commands.run(args, limit_s=60, name="doctor")
    # Keep only the names and results of checks, because their figures contain the host's name and paths.
    data["doctor"] = [{"name": c["name"], "status": c["status"]} for c in last_json(ended)["checks"]]


def run_tests(site: Site, data: Data) -> None:
    """Run tests/gpu, except the tests of the part sync."""
    _run_pytest(site, data, f"not {SYNC_TESTS}", "tests")


def run_sync_tests(site: Site, data: Data) -> None:
    """Run the tests that check, with torch's sync debug mode, that the CPU never waits for the GPU."""
    _run_pytest(site, data, SYNC_TESTS, "sync")


def _run_pytest(site: Site, data: Data, chosen: str, name: str) -> None:
    log = site.data.resolve() / f"{name}.jsonl"
    log.unlink(missing_ok=True)
    ended = site.commands.run(
        [
            *(sys.executable, "-m", "pytest", site.sizes.tests, "-p", "gpu_test_log", "-p", "no:cacheprovider"),
            *("-k", chosen, "--timeout", "240", "-q"),
        ],
        limit_s=440,
        name=name,
        env={"PYTHONPATH": str(Path(__file__).parent), gpu_test_log.VARIABLE: str(log)},
    )
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    # Keep only the last row of each test. If that row says "started", pytest ended during the test.
    tests = {row["test"]: row for row in rows}
    data["tests"] = list(tests.values())
    bad = [row for row in tests.values() if row["outcome"] in ("failed", "started")]
    failures = [f"{row['test']}: {row['reason'] or 'did not end'}" for row in bad]
    if site.num_gpus and not any(row["outcome"] == "passed" for row in tests.values()):
        failures.append("no test passed")
    finish(failures)
    ended.check("pytest")


# Start-up and capture


def start_cold(site: Site, data: Data) -> None:
    """Time the first iteration with kernels that must be compiled, and again with compiled kernels."""
    for task in site.sizes.cold_start_tasks:
        with temporary_log_root(site.data) as root:
            flags = ("--num-envs", str(site.sizes.compared_envs), "--max-iterations", "1", "--log-root", str(root))
            caches = {"WARP_CACHE_PATH": str(root / "warp"), "CUDA_CACHE_PATH": str(root / "cuda")}
            for kind in ("cold", "warm") if site.sizes.cold else ("warm",):
                ended = site.train(
                    task,
                    *flags,
                    name=f"{kind}-start",
                    limit_s=300,
                    first=FIRST_ITERATION,
                    env=caches if site.sizes.cold else None,
                )
                ended.check(f"{kind} start of {task}")
                compiled = [m[1] for line in ended.lines if (m := re.search(r"Compiling (\d+) module", line))]
                data.setdefault(task, {})[kind] = {
                    "first_iteration_s": ended.first_s,
                    "modules": sum(map(int, compiled)),
                }


def compare_captures(site: Site, data: Data) -> None:
    """Train a few iterations in every capture mode."""
    failures: list[str] = []
    for task in site.sizes.capture_tasks:
        for mode in site.sizes.capture_modes:
            try:
                figures = train_briefly(site, task, site.sizes.compared_envs, mode, name=f"capture-{mode}")
            except PartError as error:
                figures = {"error": str(error)}
                failures.append(str(error))
            data.setdefault(task, {})[mode] = figures
    finish(failures)


# Speed


def measure_throughput(task: str) -> Measure:
    """Return a function that measures a task's speed and the shares of an iteration, for every number of envs."""

    def measure(site: Site, data: Data) -> None:
        failures: list[str] = []
        data["task"] = task
        data["sizes"] = {}
        for num_envs in site.sizes.num_envs:
            name = f"{task}-{num_envs}"
            figures: Data = {}
            data["sizes"][str(num_envs)] = figures
            try:
                figures |= _train_at_best(site, task, num_envs, name)
                steps = ("--num-envs", str(num_envs), "--device", site.device, "--steps", str(site.sizes.steps))
                figures |= site.measure("gpu_measure.py", task, *steps, name=f"{name}-step")
                figures["shares"] = split_time(figures)
            except PartError as error:
                figures["error"] = str(error)
                failures.append(str(error))
        finish(failures)

    return measure


def _train_at_best(site: Site, task: str, num_envs: int, name: str) -> Data:
    """Train with the control step captured. If this training fails, train again with only the physics captured."""
    try:
        return train_briefly(site, task, num_envs, "step", name=name)
    except PartError as error:
        return {**train_briefly(site, task, num_envs, "physics", name=name), "step_error": str(error)}


def split_time(figures: Data) -> dict[str, float]:
    """Return the share of an iteration's time that each part takes.

    The parts are physics, env layer, policy and storage, update, and waiting for other ranks.

    Args:
        figures: Median times of an iteration's phases, and times of a control step.
    """
    iteration_s = figures["collect_s"] + figures["learn_s"]
    physics_s = figures["physics_s"] * figures["steps_per_env"]
    env_s = figures["env_step_s"] * figures["steps_per_env"]
    parts = {
        "physics": physics_s,
        "env layer": env_s - physics_s,
        "policy": figures["collect_s"] - env_s,
        "update": figures["learn_s"] - figures["wait_s"],
        "waiting": figures["wait_s"],
    }
    return {name: seconds / iteration_s for name, seconds in parts.items()}


# Several ranks


def share_one_device(site: Site, data: Data) -> None:
    """Train with two ranks on one device. The ranks synchronize through gloo."""
    task = site.sizes.capture_tasks[-1]
    num_envs = site.sizes.compared_envs // 2
    with temporary_log_root(site.data) as root:
        script = ROOT / "tests" / "gpu" / "two_ranks.py"
        args = [sys.executable, script, site.device, root, task, num_envs, site.sizes.iterations]
        ended = site.commands.run(list(map(str, args)), limit_s=TRAIN_LIMIT_S, name="two-ranks")
        ended.check("two ranks on one device")
        data |= {"task": task, **summarize(read_metrics(only_run(root)), 2 * num_envs), "left": ended.left}


def inject_faults(site: Site, data: Data) -> None:
    """Inject faults into rank 1. Check that `train` ends with the right code, names rank 1 and leaves no process."""
    failures: list[str] = []
    for fault in site.sizes.faults:
        with temporary_log_root(site.data) as root:
            # Train with the fault in rank 1, the second rank
            ended = site.train(
                "cartpole-balance",
                *("--num-envs", "64", "--max-iterations", "2000", "--log-root", str(root)),
                *("--hang-timeout", str(site.sizes.hang_timeout_s)),
                name=f"fault-{fault}",
                ranks=2,
                env={faults.VARIABLE: f"1:5:{fault}"},
            )
        # Check the exit code, the output of `train`, and the processes that it left behind
        named = any("rank 1" in line for line in ended.lines)
        good = ended.code == FAULT_CODES[fault] and named and not ended.left
        data[fault] = {
            "code": ended.code,
            "expected_code": FAULT_CODES[fault],
            "names_rank": named,
            "left": ended.left,
            "seconds": ended.seconds,
            "as_expected": good,
        }
        if not good:
            failures.append(
                f"{fault}: exit code {ended.code} (expected: {FAULT_CODES[fault]}), "
                f"output names rank 1: {'yes' if named else 'no'}, "
                f"left running: {', '.join(ended.left) or 'nothing'}:\n{ended.tail}"
            )
    finish(failures)


def scale_weakly(site: Site, data: Data) -> None:
    """Train on one device and on all devices, with the same number of envs per device."""
    task = site.sizes.capture_tasks[-1]
    data["task"] = task
    for ranks in (1, max(2, site.num_gpus)):
        data[str(ranks)] = train_briefly(
            site, task, site.sizes.compared_envs, "step", name=f"scaling-{ranks}", ranks=ranks
        )


# Trainings


def train_to_walk(task: str) -> Measure:
    """Return a function that trains a task and evaluates the trained policy."""

    def measure(site: Site, data: Data) -> None:
        # Train from scratch, or resume an earlier run
        data["task"] = task
        log_root = site.data.resolve() / "trainings"
        flags = _resume_flags(site, task, log_root)
        ended = site.train(
            task, *flags, "--log-root", str(log_root), name=task, limit_s=site.sizes.training_limit_s, stops=True
        )
        ended.check(f"training of {task}", 0, EXIT_STOPPED)
        # Store the figures of the run
        run = find_run(str(log_root), task, "latest")
        rows = read_metrics(run)
        data |= {
            "run": run.name,
            "num_envs": site.sizes.training_envs,
            "iterations": rows[-1]["iteration"],
            "total_steps": rows[-1]["total_steps"],
            "minutes": rows[-1]["elapsed_s"] / 60,
            "mean_return": rows[-1]["mean_return"],
            "steps_per_s": statistics.median(row["steps_per_s"] for row in rows),
            "warnings": ended.warnings,
        }
        # Evaluate the policy, and store the learning curve
        data["walk"] = walk = _follow(site, run)
        curve = learning_curve(task, run, rows, walk["steps"])
        data["walking_after_min"] = next((p["minutes"] for p in curve if p["walks"]), None)
        data["curve"] = curve[:: max(1, len(curve) // CURVE_POINTS)]
        if site.num_gpus and not walk["walks"]:
            raise PartError(f"the policy of {task} does not walk yet; to train it further, run this script again")

    return measure


def _resume_flags(site: Site, task: str, log_root: Path) -> list[str]:
    """Return the flags of `train`.

    They resume the run of an earlier attempt if the site allows it and the run has a checkpoint, else start a new run.
    """
    iterations = site.sizes.training_iterations
    found = sorted(path.parent for path in (log_root / task).glob(f"*/{CONFIG_FILE}")) if site.continues else []
    if found and list_checkpoints(found[-1]):
        config, done = read_config_file(found[-1]), max(list_checkpoints(found[-1]))
        return ["--resume", str(found[-1]), "--max-iterations", str(done + (iterations or config.max_iterations))]
    return [
        *("--num-envs", str(site.sizes.training_envs), "--env.sim.capture", "step"),
        *(("--max-iterations", str(iterations)) if iterations else ()),
    ]


def _follow(site: Site, run: Path) -> Data:
    """Measure on the CPU how well the trained policy follows velocity commands without exploration."""
    script = Path(__file__).with_name("follow_velocity.py")
    args = [sys.executable, str(script), str(run), "--json", "--num-envs", str(site.sizes.robots)]
    if site.sizes.follow_s is not None:
        args += ["--seconds", str(site.sizes.follow_s)]
    ended = site.commands.run(args, limit_s=TRAIN_LIMIT_S, name="follow")
    ended.check("follow_velocity.py", 0, 1)  # exit code 1: the robot does not walk
    return last_json(ended)


def learning_curve(task: str, run: Path, rows: list[Data], episode_steps: int) -> list[Data]:
    """Return the learning curve of a run: one dict per iteration in which episodes ended.

    Each dict has the minutes of training, the mean return, the fractions of the maximum tracking reward and of the
    maximum episode length, and whether the policy walks according to these two fractions.

    Args:
        task: Name of the task.
        run: Run directory.
        rows: Its metrics.
        episode_steps: Control steps of a whole episode.
    """
    term = TRACKING[task]
    weight = read_config_file(run).env.rewards[term].weight
    curve: list[Data] = []
    for row in rows:
        if not row["mean_episode_length"]:
            continue
        tracking = row[f"reward/{term}"] / (weight * row["mean_episode_length"])
        length = row["mean_episode_length"] / episode_steps
        curve.append(
            {
                "minutes": row["elapsed_s"] / 60,
                "mean_return": row["mean_return"],
                "tracking": tracking,
                "length": length,
                "walks": tracking >= WALKING_SHARE and length >= WALKING_LENGTH,
            }
        )
    return curve


# mjlab


PEER_TASKS = {
    PEER_TASK: ("cartpole-balance", LIKE_PEER),
    "Mjlab-Velocity-Flat-Unitree-Go1": ("quadruped-velocity-flat", ()),
}
"""For each task of mjlab: the most similar task of mjlab_dist, and the flags of `train` that make it more similar."""


def compare_with_mjlab(site: Site, data: Data) -> None:
    """Train mjlab's tasks and ours with the same number of envs."""
    assert site.peer_python is not None
    failures: list[str] = []
    for peer_task, (task, flags) in PEER_TASKS.items():
        try:
            peer = _train_peer(site, peer_task)
            num_envs = site.sizes.compared_envs
            ours = train_briefly(site, task, num_envs, "step", *flags, name=f"beside-{task}")
            data[peer_task] = {"peer": peer, "task": task, "ours": ours}
        except PartError as error:
            failures.append(str(error))
    finish(failures)


def _train_peer(site: Site, task: str) -> Data:
    assert site.peer_python is not None
    args = [
        *(str(site.peer_python.parent / "train"), task, "--env.scene.num-envs", str(site.sizes.compared_envs)),
        *("--agent.max-iterations", str(site.sizes.iterations), "--agent.logger", "tensorboard"),
        *(() if site.num_gpus else ("--gpu-ids", "None")),
    ]
    with temporary_log_root(site.data) as cwd:
        ended = site.commands.run(args, limit_s=TRAIN_LIMIT_S, name="mjlab", first="Iteration time:", cwd=cwd)
    ended.check(task)
    speeds = [float(m[1]) for line in ended.lines if (m := re.search(r"Steps per second: +([\d.]+)", line))]
    if not speeds:
        raise PartError(f"{task} printed no steps per second:\n{ended.tail}")
    warm = speeds[SKIPPED:] or speeds
    return {"steps_per_s": statistics.median(warm), "iterations": len(warm), "first_iteration_s": ended.first_s}
