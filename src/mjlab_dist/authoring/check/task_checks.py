"""The checks of a task. Each returns whether the task passed; if it failed, also the term at fault and the fix."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import mujoco_warp as mjw
import torch

from mjlab_dist.authoring.buffer_sizes import Usage, larger_sizes
from mjlab_dist.authoring.check.host_syncs import HostReads, HostSyncs, pausing
from mjlab_dist.authoring.check.step_replay import Recorder, ReplayError
from mjlab_dist.authoring.check.watched_env import PHYSICS, Entry, WatchedEnv
from mjlab_dist.errors import listed

# Number of steps that the replay check records. All of them must issue the same operations.
NUM_RECORDED = 40

# Number of steps with zero actions in which the ends of episodes are counted
IDLE_STEPS = 20

# Minimum mean length of episodes with zero actions, in steps
MIN_MEAN_STEPS = 4.0

# Time in s over which the speed is measured
SPEED_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Check:
    """Result of one check."""

    name: str
    # Whether the task passed it
    passed: bool
    # Measured result. If the check failed: the term at fault, the problem and the fix.
    text: str
    # If buffers are too small: larger sizes, by name of their field in the config
    sizes: dict[str, int] = field(default_factory=dict)


def passed(name: str, text: str) -> Check:
    """Return the result of a check that passed."""
    return Check(name=name, passed=True, text=text)


def failed(name: str, text: str) -> Check:
    """Return the result of a check that failed."""
    return Check(name=name, passed=False, text=text)


def check_syncs(env: WatchedEnv, actions: torch.Tensor) -> Check:
    """Check that no operation of the steps waits for the device."""

    def with_term(operation: str) -> str:
        return f"{env.watch.where()}: {operation}"

    syncs, reads = HostSyncs(indices=False, describe=with_term), HostReads(with_term)
    with env.watch.leaving_out(lambda: pausing(syncs, reads)), reads, syncs:
        for action in actions:
            env.step(action)
    found = list(dict.fromkeys([*syncs.found, *reads.found]))
    if found:
        fix = "compute with tensors (torch.where, a mask) instead of .item(), float(), if or x[mask]"
        wait = "waits" if len(found) == 1 else "wait"
        return failed("host syncs", f"{'; '.join(found)} {wait} for the device; {fix}")
    return passed("host syncs", f"none in {len(actions)} steps" + _of_uncapturable(env))


def check_replay(env: WatchedEnv, actions: torch.Tensor) -> Check:
    """Check that all steps issue the same operations on the same memory."""
    given = actions[0].clone()
    recorder = Recorder(env.sim, {}, indices=False, place=env.watch.where)
    outputs: dict[str, torch.Tensor] = {}

    def step() -> Mapping[str, torch.Tensor]:
        obs, reward, done, _ = env.step(given)
        return {**{name: obs[name] for name in env.cfg.observations}, "reward": reward, "done": done}

    try:
        with env.watch.leaving_out(recorder.paused):
            for action in actions:
                given.copy_(action)
                outputs = recorder.record(step, outputs, 0)
    except ReplayError as error:
        return failed("replay", f"{error}; every step must run the same operations on memory allocated in __init__")
    num_operations = len(recorder.recording.operations)
    return passed("replay", f"the same {num_operations} operations in {len(actions)} steps" + _of_uncapturable(env))


def _of_uncapturable(env: WatchedEnv) -> str:
    names = env.uncapturable_terms
    return f"; not checked: {listed(names)} (cannot be captured in a CUDA graph)" if names else ""


def check_finite(env: WatchedEnv, trace: Sequence[Entry], num_episodes: int) -> Check:
    """Check that the physics and all results of terms are finite."""
    num_steps = max(entry.step for entry in trace)
    broken = {entry.step for entry in trace if entry.not_finite and entry.place == PHYSICS}
    # With nan_policy "reset", the env itself handles steps in which the physics is not finite.
    handled = broken if env.cfg.nan_policy == "reset" else set()
    for entry in trace:
        if entry.not_finite and entry.step not in handled:
            when = f"{_when(entry)} of {num_steps}" if entry.step else _when(entry)
            what = f"{_shown(entry.not_finite)} became NaN or infinite {when}"
            if "result" in entry.not_finite:
                fix = "guard divisions, roots and logarithms, for example with clamp_min"
                what = f"returned NaN or infinity {when}; {fix}"
            elif entry.place == PHYSICS:
                what += "; use a smaller timestep, smaller gains or smaller forces"
            return failed("finite", f"{entry.place}: {what}")
    resets = f"; in {len(broken)} of the steps, nan_policy reset handled NaN or infinity" if broken else ""
    return passed("finite", f"{num_steps} steps with random actions, {num_episodes} resets{resets}")


def _when(entry: Entry) -> str:
    return f"in step {entry.step}" if entry.step else "at the start of the first episodes"


def _shown(names: Sequence[str]) -> str:
    """Return the names of the first three tensors, without the prefix ``sim.``."""
    return listed([name.removeprefix("sim.") for name in names[:3]])


def first_difference(mine: Iterable[Entry], theirs: Iterable[Entry]) -> str:
    """Return the first difference between two rollouts. Earlier results are equal, so the named term is at fault.

    The text is empty if nothing differs.
    """
    for one, other in zip(mine, theirs, strict=True):
        assert one.place == other.place
        names = [name for name, digest in one.digests.items() if other.digests.get(name) != digest]
        if names:
            what = "" if names == ["result"] else f" of {_shown(names)}"
            return f"{one.place}: different values{what} {_when(one)}"
    return ""


def check_seeds(same: tuple[Sequence[Entry], Sequence[Entry]], other: Sequence[Entry], seed: int, draws: bool) -> Check:
    """Check that a seed determines the rollout, and that a different seed leads to a different rollout."""
    equal, fix = f"two rollouts with seed {seed} are equal", "draw random numbers from torch's default generator"
    if difference := first_difference(*same):
        return failed("seeds", f"{difference}, though both rollouts have the seed {seed}; {fix}")
    if first_difference(same[0], other):
        return passed("seeds", f"{equal}; a rollout with seed {seed + 1} differs")
    if draws:
        return failed("seeds", f"the seeds {seed} and {seed + 1} lead to the same rollout; {fix}")
    return passed("seeds", f"{equal}; the task draws no random numbers, so any seed is fine")


def check_resume(going_on: Sequence[Entry], resumed: Sequence[Entry]) -> Check:
    """Check that envs that have loaded a saved state take the same steps as the envs that saved it."""
    difference = first_difference(going_on, resumed)
    num_steps = len({entry.step for entry in going_on})
    if difference:
        return failed(
            "resume",
            f"{difference} after load_state(); let the term's state() return every tensor that the term keeps, and "
            "change these tensors in place",
        )
    text = f"{num_steps} steps after load_state() are bit-identical to the steps of the envs that saved the state"
    return passed("resume", text)


def check_episodes(env: WatchedEnv) -> Check:
    """Check that episodes with zero actions last for more than a few steps."""
    env.reset()
    env.pop_episode_totals()
    actions = torch.zeros(env.num_envs, env.num_actions)
    for _ in range(IDLE_STEPS):
        env.step(actions)
    totals = env.pop_episode_totals()
    by_limit, *by_term = totals.terminations.tolist()
    mean = IDLE_STEPS * env.num_envs / max(float(totals.episodes) - by_limit, 1.0)
    if mean < MIN_MEAN_STEPS:
        term = env.termination_names[1 + by_term.index(max(by_term))]
        return failed(
            "episodes",
            f"with zero actions, terminations.{term} ends episodes after {mean:.1f} steps on average; change its "
            "limits or the start state",
        )
    return passed("episodes", f"{float(totals.episodes):.0f} ended in {IDLE_STEPS} steps with zero actions")


def check_buffers(env: WatchedEnv, usage: Usage, margin: float = 1.0) -> Check:
    """Check that no contacts or constraint rows were dropped."""
    sim, task = env.cfg.sim, "mjlab-dist size-buffers TASK"
    sizes = f"njmax {sim.njmax} and nconmax {sim.nconmax}"
    used = f"random actions need njmax {usage.rows} and nconmax {usage.contacts_per_env:.1f}"
    overflows = [str(bit.name) for bit in mjw.OverflowType if bool((env.sim.overflow & int(bit)).any())]
    larger = larger_sizes(sim, overflows, usage)
    if overflows:
        fix = f"set larger sizes; {task} measures which sizes the task needs"
        text = f"overflow of {listed(overflows)} with {sizes}; {fix}"
    elif larger:
        text = f"nconmax 0 turns contacts off, but geoms can collide; {task} measures the size to set"
    elif margin * usage.rows > sim.njmax or margin * usage.contacts_per_env > sim.nconmax:
        larger = {"njmax": max(sim.njmax, usage.njmax), "nconmax": max(sim.nconmax, usage.nconmax)}
        text = f"{used}, so {sizes} have no margin; set larger sizes"
    else:
        return passed("buffers", f"{sizes}; {used}")
    return Check(name="buffers", passed=False, text=text, sizes=larger)


def measure_speed(env: WatchedEnv, actions: torch.Tensor) -> Check:
    """Measure how many steps per second the envs take. This check always passes."""
    start, num_steps = time.perf_counter(), 0
    while time.perf_counter() - start < SPEED_S:
        env.step(actions[num_steps % len(actions)])
        num_steps += 1
    speed = num_steps * env.num_envs / (time.perf_counter() - start)
    return passed("speed", f"{speed:,.0f} env steps/s with {env.num_envs} envs on the CPU, without a policy")
