"""Sizes of the GPU report's measurements: on a GPU, and in a dry run on the CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the measurements of all parts."""

    tests: str
    """Tests to run in the parts ``tests`` and ``sync``."""
    cold_start_tasks: tuple[str, ...]
    """Tasks whose start is timed with kernels that must be compiled, and with compiled kernels."""
    cold: bool
    """Whether to time the start with kernels that must be compiled. If not, only the other start is timed."""
    capture_tasks: tuple[str, ...]
    """Tasks that are trained in every capture mode."""
    capture_modes: tuple[str, ...]
    """Capture modes."""
    compared_envs: int
    """Number of envs in the parts `cold-start`, `capture`, `mjlab` and `two-ranks` (both ranks together), and number of
    envs per rank in the part `nccl-scaling`."""
    throughput: dict[str, str]
    """Name of each part that measures a speed, with its task."""
    num_envs: tuple[int, ...]
    """Numbers of envs with which the speed is measured, smallest first."""
    iterations: int
    """Iterations of a short training run."""
    steps: int
    """Number of control steps per measurement."""
    faults: tuple[str, ...]
    """Faults that are injected into a rank."""
    hang_timeout_s: float
    """Value of `--hang-timeout` in runs with faults: seconds without progress after which a rank is considered hung."""
    trainings: dict[str, str]
    """Name of each part that trains a robot to walk, with its task."""
    training_envs: int
    """Number of envs in the training runs of `trainings`."""
    training_iterations: int | None
    """Number of iterations of a training run of `trainings`; None for the task's default."""
    training_limit_s: float
    """Seconds after which a training run of `trainings` is stopped."""
    robots: int
    """Number of robots that a trained policy controls when it is evaluated."""
    follow_s: float | None
    """Duration of the evaluation of a trained policy, in s; None for a whole episode of the task."""
    left_out: dict[str, str]
    """Parts to skip, with the reason."""


FULL = Sizes(
    tests="tests/gpu",
    cold_start_tasks=("cartpole-balance", "quadruped-velocity-flat"),
    cold=True,
    capture_tasks=("cartpole-balance", "quadruped-velocity-flat"),
    capture_modes=("step", "physics", "off"),
    compared_envs=4096,
    throughput={
        "speed-cartpole": "cartpole-balance",
        "speed-half-cheetah": "gym-half-cheetah",
        "speed-quadruped-flat": "quadruped-velocity-flat",
        "speed-quadruped-rough": "quadruped-velocity-rough",
    },
    num_envs=(1024, 4096, 16384),
    iterations=13,
    steps=100,
    faults=("raise", "sigkill", "sigstop"),
    hang_timeout_s=20.0,
    trainings={"train-quadruped": "quadruped-velocity-flat", "train-humanoid": "humanoid-velocity-flat"},
    training_envs=4096,
    training_iterations=None,
    training_limit_s=240.0,
    robots=64,
    follow_s=None,
    left_out={},
)
"""Sizes for one GPU. The report should take less than 25 minutes, but no run on a GPU has confirmed this."""

_SAME = "a dry run runs the same code in the part {}"

DRY = Sizes(
    tests="tests/gpu/test_update_on_gpu.py",
    cold_start_tasks=("cartpole-balance",),
    cold=False,
    capture_tasks=("cartpole-balance",),
    capture_modes=("off",),
    compared_envs=4,
    throughput={**FULL.throughput, "speed-quadruped-flat": "cartpole-balance"},
    num_envs=(4,),
    iterations=2,
    steps=5,
    faults=("raise",),
    hang_timeout_s=20.0,
    trainings=FULL.trainings,
    training_envs=2,
    training_iterations=2,
    training_limit_s=300.0,
    robots=2,
    follow_s=0.2,
    left_out={
        "sync": "needs a GPU",
        "speed-cartpole": _SAME.format("speed-quadruped-flat"),
        "speed-half-cheetah": _SAME.format("speed-quadruped-flat"),
        "speed-quadruped-rough": _SAME.format("speed-quadruped-flat"),
        "train-humanoid": _SAME.format("train-quadruped"),
    },
)
"""Sizes for a run of all parts on a CPU in about a minute."""
