"""Configs of a run: a task, an agent, where and how long they train. Field docstrings are the help of flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mjlab_dist.config.agent import AgentConfig
from mjlab_dist.config.task import EnvConfig

COMPRESSIONS = ("none", "bf16", "fp16")
"""Formats that gradients can travel in."""


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """How ranks keep one policy. docs/distributed.md has the formulas and what each costs."""

    period: int = 1
    """Iterations between averagings of the ranks' parameters and Adam moments. 1 averages the gradients of every mini-batch instead, and ranks never differ."""
    compression: str = "none"
    """Number format that gradients travel in: none (fp32), bf16 or fp16. They are divided by the world size before, and kept in fp32 after."""
    check_interval: int = 100
    """Iterations between comparisons of all ranks' parameters, optimizer state and normalizers; a difference ends the run. Checkpoints are checked too."""
    synchronizer: str | None = None
    """A synchronizer of your own, as package.module:Class; see docs/distributed.md."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and which are kept."""

    interval: int | str = 50
    """Iterations between checkpoints, as 50, or seconds, as 600s; one more is written at the end."""
    keep_last: int = 5
    """Newest checkpoints to keep; 0 keeps all."""
    keep_best: int = 1
    """Checkpoints to keep besides, those of the highest mean return; 0 keeps none."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    task: str
    """Name of the task, as list-tasks prints it; set by the first argument, not by this flag."""
    num_envs: int | Literal["auto"] = 1024
    """Envs per rank. auto: the largest power of two that every rank's memory holds."""
    total_num_envs: int | None = None
    """Envs over all ranks, in place of num-envs; the ranks must divide it."""
    max_iterations: int = 300
    """Iterations to train: each is one rollout and one policy update."""
    total_timesteps: int | None = None
    """Control steps to train, over all envs of all ranks, in place of max-iterations; rounded down to whole iterations."""
    seed: int = 1
    """Rank r seeds itself with seed + r."""
    gpu_ids: tuple[int, ...] | Literal["auto", "all"] | None = "auto"
    """GPUs or MIG instances to train on, one rank each; None for the CPU. Numbers are nvidia-smi's indices, or indices into CUDA_VISIBLE_DEVICES where that is set. all: every GPU that can be used, with a warning about the others. auto: the first GPU that can be used, else the CPU."""
    cpu_ranks: int | None = None
    """Train on the CPU with this many processes, each on its share of the cores."""
    hosts: tuple[str, ...] = ()
    """Machines to train on, by name or address, each with the ranks that gpu-ids or cpu-ranks asks for; by default this one. This one comes first, the others are reached by SSH. The same environment must lie under the same path on all."""
    ssh_config: str | None = None
    """SSH's config file for hosts; by default ~/.ssh/config, then /etc/ssh/ssh_config."""
    require_same_devices: bool = False
    """Refuse to train on ranks whose devices differ in model, memory or compute capability; otherwise that is only reported."""
    fsdp_devices: int = 1
    """Ranks that share one copy of each large parameter and its Adam moments (FSDP2); must divide the world size. 1 keeps a copy on every rank."""
    fsdp_min_size_mb: float = 4.0
    """Size from which a parameter of two or more dimensions is sharded, in MiB of fp32."""
    run_name: str = ""
    """Put into the run directory's name."""
    log_root: str = "logs"
    """Directory that holds all runs, as <log-root>/<task>/<time>_<run-name>."""
    resume: str | None = None
    """Continue an earlier run, in its directory: a run directory, latest for the task's newest, or a W&B run's path. Its own config is taken, further flags change it; max-iterations is the total."""
    init_from: str | None = None
    """Checkpoint file whose policy and value (and normalizers) a new run starts from."""
    max_restarts: int = 0
    """How often a run whose ranks were killed, hung or failed is started again from its newest checkpoint; an attempt that got no further ends the run."""
    hang_timeout: float = 300.0
    """Seconds without an iteration after which a rank is considered hung, and the run ends or is started again."""
    logger: Literal["tensorboard", "wandb"] = "tensorboard"
    """Where curves go, besides metrics.jsonl. wandb works offline with WANDB_MODE=offline."""
    wandb_project: str = "mjlab_dist"
    """Weights & Biases project."""
    torchrunx_log_dir: str | None = None
    """Log files of the ranks; the variable TORCHRUNX_LOG_DIR beats this flag. Default: <run directory>/torchrunx. An empty string turns the files off."""
    env: EnvConfig
    """The task's env."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The learner."""
    sync: SyncConfig = field(default_factory=SyncConfig)
    """Synchronisation of ranks."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Checkpoints."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """Show what a trained policy does: its returns over whole episodes, and a video of one.

    Any --env flag of train besides changes the run's env, as in --env.commands.velocity.params.forward-m-s 1 1.
    """

    run: str = "latest"
    """Run directory, or latest for the task's newest run."""
    checkpoint: str | None = None
    """Checkpoint to play: latest or best (of the highest mean return) of the run, or a file, which names its run itself. Default: latest."""
    nan_dump: str | None = None
    """Play no policy, but step once more what a run that stopped at a number that is not finite left in errors/nan_rank<N>.pt."""
    video: str | None = None
    """Video file to write, such as balance.mp4; by default none is."""
    num_envs: int = 16
    """Episodes to play, side by side."""
    seed: int = 1
    """Seed of the start states."""
    log_root: str = "logs"
    """Directory that holds all runs."""
