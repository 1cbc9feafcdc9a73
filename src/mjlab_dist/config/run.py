"""Configs of a run: the task, the agent, and where and how long to train.

The docstrings of the fields are also the help texts of the flags.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mjlab_dist.config.agent import AgentConfig
from mjlab_dist.config.task import EnvConfig

COMPRESSIONS = ("none", "bf16", "fp16")
"""Number formats in which ranks can exchange gradients."""


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """Synchronization of the ranks' policies. docs/distributed.md has the formula and the cost of each flag."""

    period: int = 1
    """Iterations between averages of the ranks' parameters and Adam moments. 1 averages the gradients of every
    mini-batch instead, so that ranks never differ."""
    compression: str = "none"
    """Number format in which ranks exchange gradients: none (fp32), bf16 or fp16. Gradients are divided by the world
    size before the exchange, and converted back to fp32 after it. Rounding errors are added to the next gradients."""
    check_interval: int = 100
    """Iterations between comparisons of the parameters, optimizer states and normalizers of all ranks. A difference
    ends the run. Ranks are also compared before every checkpoint."""
    synchronizer: str | None = None
    """Your own synchronizer, as package.module:Class. See docs/distributed.md."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to write checkpoints, and which to keep."""

    interval: int | str = 50
    """Iterations between checkpoints, such as 50, or seconds, such as 600s; the last iteration always writes one."""
    keep_last: int = 5
    """Number of newest checkpoints to keep; 0 keeps all."""
    keep_best: int = 1
    """Number of checkpoints with the highest mean return to keep in addition; 0 keeps none."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Train a policy for a task."""

    task: str
    """Name of the task, as list-tasks prints it. The first argument sets it, not this flag."""
    num_envs: int | Literal["auto"] = 1024
    """Envs per rank. auto: the largest power of two that fits into the memory of every rank."""
    total_num_envs: int | None = None
    """Envs over all ranks, instead of num-envs; must be divisible by the number of ranks."""
    max_iterations: int = 300
    """Iterations to train: each is one rollout and one policy update."""
    total_timesteps: int | None = None
    """Control steps to train, over all envs of all ranks, instead of max-iterations; rounded down to whole
    iterations."""
    seed: int = 1
    """Random seed; rank r uses seed + r. Give independent runs seeds that are at least the number of ranks apart."""
    gpu_ids: tuple[int, ...] | Literal["auto", "all"] | None = "auto"
    """GPUs or MIG instances to train on, one rank each; None for the CPU. Numbers are nvidia-smi's indices, or indices
    into CUDA_VISIBLE_DEVICES if that is set. all: every usable GPU, with a warning about the others. auto: the first
    usable GPU, else the CPU."""
    cpu_ranks: int | None = None
    """Number of processes to train with on the CPU. They share the cores equally."""
    hosts: tuple[str, ...] = ()
    """Machines to train on, by name or address. Each uses the devices of gpu-ids or cpu-ranks. Default: this machine.
    This machine must be the first; SSH connects to the others. All need the same Python environment under the same
    path."""
    ssh_config: str | None = None
    """SSH config file for hosts. Default: ~/.ssh/config, then /etc/ssh/ssh_config."""
    require_same_devices: bool = False
    """Refuse to train if the ranks' devices differ in model, memory or compute capability. Otherwise, differences are
    only reported."""
    fsdp_devices: int = 1
    """Number of ranks that share one copy of each large parameter and its Adam moments (FSDP2); must divide the world
    size. 1 keeps a copy on every rank."""
    fsdp_min_size_mb: float = 4.0
    """Minimum size of a parameter to be sharded, in MiB of fp32. Only parameters of two or more dimensions are
    sharded."""
    run_name: str = ""
    """Suffix of the run directory's name."""
    log_root: str = "logs"
    """Directory of all runs. A run's own directory is <log-root>/<task>/<time>_<run-name>."""
    resume: str | None = None
    """Resume an earlier run in its directory: a run directory, latest for the task's newest run, or the path of a W&B
    run. The run's own config is used, and further flags change it. max-iterations includes the iterations already
    done."""
    init_from: str | None = None
    """Checkpoint file from which a new run takes its policy, value function and normalizers."""
    max_restarts: int = 0
    """Maximum number of restarts from the newest checkpoint after a rank is killed, hangs or fails. A restart that
    makes no progress ends the run."""
    hang_timeout: float = 300.0
    """Seconds without an iteration after which a rank is considered hung. The run then ends or restarts."""
    logger: Literal["tensorboard", "wandb"] = "tensorboard"
    """Logger for curves, next to metrics.jsonl. wandb works offline with WANDB_MODE=offline."""
    wandb_project: str = "mjlab_dist"
    """Weights & Biases project."""
    log_ranks: bool = False
    """Also log the speed, waiting time, return and memory of every rank: in rank_metrics.jsonl, one row per rank and
    iteration, and as curves."""
    torchrunx_log_dir: str | None = None
    """Directory for the ranks' log files. Default: <run directory>/torchrunx. An empty string turns the files off. The
    variable TORCHRUNX_LOG_DIR takes precedence over this flag."""
    env: EnvConfig
    """The task's env."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The learner."""
    sync: SyncConfig = field(default_factory=SyncConfig)
    """Synchronization of ranks."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Checkpoints."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """Play a trained policy: print its returns over whole episodes, and record a video of one.

    All --env flags of train also work, and change the env: --env.commands.velocity.params.forward-m-s 1 1.
    """

    run: str = "latest"
    """Run directory, or latest for the task's newest run."""
    checkpoint: str | None = None
    """Checkpoint to play: latest, best (the highest mean return), or a checkpoint file. Default: latest. With a file,
    run is not needed."""
    nan_dump: str | None = None
    """File errors/nan_rank<N>.pt of a run that stopped because a number was not finite. play repeats the step that led
    to the number, instead of playing the policy."""
    video: str | None = None
    """Video file to write, such as balance.mp4. Default: no video."""
    num_envs: int = 16
    """Number of episodes to play in parallel."""
    disturbances: bool = True
    """Whether to play with the noise, delays, interval events (such as pushes) and randomizations of training."""
    seed: int = 1
    """Seed of the start states."""
    log_root: str = "logs"
    """Directory of all runs."""
