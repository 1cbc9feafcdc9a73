"""Configs of a run: the task, the agent, and where and how long to train.

The docstrings of the fields are also the help texts of the flags.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from mjlab_dist.config.agent import AgentConfig, PpoConfig
from mjlab_dist.config.limits import (
    Interval,
    NonNegativeFloat,
    NonNegativeInt,
    Pixels,
    Port,
    PositiveFloat,
    PositiveInt,
    Seed,
)
from mjlab_dist.config.task import EnvConfig
from mjlab_dist.errors import UserError, did_you_mean, listed

# Name of a logger that is part of this package
LoggerName = Literal["tensorboard", "wandb", "trackio"]

# Type of the config's field logger
LOGGERS = tuple[LoggerName | str, ...]

# All names of LoggerName
BUILT_IN: tuple[LoggerName, ...] = typing.get_args(LoggerName)

COMPRESSIONS = ("none", "bf16", "fp16")
"""Number formats in which ranks can exchange gradients."""


def validate_loggers(names: Sequence[str], *, checkpoints: bool) -> None:
    """Raise if the name of a logger is unknown or repeated. The user's own classes are not imported.

    Args:
        names: Value of ``--logger``.
        checkpoints: Value of ``--checkpoint.wandb``, which needs the logger wandb.
    """
    for name in names:
        if name not in BUILT_IN and ":" not in name:
            use = f"use {listed(BUILT_IN, 'or')}, or package.module:Class; separate several loggers by spaces"
            fix = use if "," in name else did_you_mean(name, BUILT_IN, use)
            raise UserError(f"--logger {name}: is not a logger; {fix}")
        if names.count(name) > 1:
            raise UserError(f"--logger {' '.join(names)}: {name} is repeated; name each logger once")
    if checkpoints and "wandb" not in names:
        raise UserError("--checkpoint.wandb: needs the logger wandb, which uploads the checkpoints; add --logger wandb")


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """Synchronization of the ranks' policies. docs/several-machines.md has the formula and the cost of each flag."""

    period: PositiveInt = 1
    """Number of iterations after which the ranks average their parameters and Adam moments. With 1, the ranks instead
    average the gradients of every mini-batch, so their parameters never differ."""
    compression: str = "none"
    """Number format in which ranks exchange gradients: none (fp32), bf16 or fp16. Gradients are divided by the world
    size before the exchange, and converted back to fp32 after it. Each rank adds the rounding errors of one exchange
    to its gradients in the next exchange."""
    check_interval: PositiveInt = 100
    """Iterations between comparisons of the parameters, optimizer states and normalizers of all ranks. A difference
    ends the run. Ranks are also compared before every checkpoint."""
    synchronizer: str | None = None
    """Your own synchronizer, as package.module:Class. See docs/several-machines.md."""
    fsdp_min_size_mb: NonNegativeFloat = 4.0
    """Minimum size of a parameter that fsdp-devices shards, in MiB of fp32. Only parameters of two or more dimensions
    are sharded."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to write checkpoints, and which to keep."""

    interval: int | str = 50
    """Iterations between checkpoints, such as 50, or seconds, such as 600s. The last iteration always writes a
    checkpoint."""
    keep_last: NonNegativeInt = 5
    """Number of newest checkpoints to keep; 0 keeps all."""
    keep_best: NonNegativeInt = 1
    """Number of checkpoints with the highest mean return to keep in addition to the newest ones; 0 keeps none."""
    replay: bool = True
    """Save SAC's replay with the newest checkpoint, so that a resumed run continues exactly. Without it, a resumed run
    fills its replay again before it learns."""
    wandb: bool = False
    """Upload every checkpoint to Weights & Biases, as a version of an artifact of the run."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Train a policy for a task."""

    task: str
    """Name of the task, as list-tasks prints it. The first argument sets it, not this flag."""
    num_envs: PositiveInt | Literal["auto"] = 1024
    """Envs per rank, without total-num-envs. auto: the largest power of two that fits into the memory of every rank."""
    gpu_num_envs: PositiveInt | None = None
    """Envs per rank if all ranks are on GPUs, instead of num-envs or total-num-envs; None for these. The flags
    num-envs and total-num-envs take precedence."""
    total_num_envs: PositiveInt | None = None
    """Envs over all ranks, instead of num-envs; rounded up to equal shares of ranks and mini-batches."""
    max_iterations: PositiveInt = 300
    """Iterations to train: each is one rollout and one policy update."""
    total_timesteps: PositiveInt | None = None
    """Control steps to train, over all envs of all ranks, instead of max-iterations; rounded down to whole
    iterations."""
    seed: Seed = 1
    """Random seed; rank r uses seed + r. Seeds of independent runs must differ by at least the number of ranks."""
    gpu_ids: tuple[int, ...] | Literal["auto", "all"] | None = "auto"
    """GPUs or MIG instances to train on, one rank each; None for the CPU. Numbers are nvidia-smi's indices, or indices
    into CUDA_VISIBLE_DEVICES if that is set. all: every usable GPU, with a warning if there are unusable ones.
    auto: the first usable GPU, else the CPU."""
    cpu_ranks: PositiveInt | None = None
    """Number of processes to train with on the CPU. They share the cores equally. Default: one per core and 16 envs
    of total-num-envs; without it, one."""
    oversubscribe: bool = False
    """Allow more than 4 CPU ranks per core."""
    hosts: tuple[str, ...] = ()
    """Names or addresses of the machines to train on, or slurm for the machines of this SLURM job. Each machine uses
    the devices of gpu-ids or cpu-ranks; node7:4 starts 4 ranks on node7, on the first 4 of its devices. Default: this
    machine. This machine must be the first; SSH connects to the others. All need the same Python environment under the
    same path."""
    ssh_config: str | None = None
    """SSH config file for hosts. Default: ~/.ssh/config, then /etc/ssh/ssh_config."""
    port_range: tuple[int, int] | None = None
    """First and last port for connections to the launcher. A firewall between hosts must allow these ports, and two
    of them must be free. Ranks connect to each other on other ports. Default: any free ports."""
    require_same_devices: bool = False
    """Refuse to train if the ranks' devices differ in model, memory or compute capability. Otherwise, differences are
    only reported."""
    fsdp_devices: PositiveInt = 1
    """Number of ranks that share one copy of each large parameter and its Adam moments (FSDP2); must divide the world
    size. 1 keeps a copy on every rank."""
    run_name: str = ""
    """Suffix of the run directory's name."""
    log_root: str = "logs"
    """Directory of all runs. A run's own directory is <log-root>/<task>/<time>_<run-name>."""
    resume: str | None = None
    """Earlier run to resume: a run directory, latest for the task's newest run, or the path of a W&B run. The run
    continues in its directory with its own config, and further flags change the config. max-iterations includes the
    iterations already done. auto: resume the run that has this run-name, or start it if there is none."""
    init_from: str | None = None
    """Checkpoint file or pack from which a new run takes its policy, value function and normalizers."""
    max_restarts: NonNegativeInt = 0
    """Maximum number of restarts from the newest checkpoint after a rank is killed, hangs or fails. Two attempts
    in a row without progress end the run."""
    min_hosts: PositiveInt | None = None
    """Minimum number of hosts for a restart. A restart leaves out hosts that cannot be reached; a later restart uses
    them again if they answer. Default: all hosts."""
    hang_timeout: PositiveFloat = 300.0
    """Seconds without an iteration after which a rank is considered hung. The run then ends or restarts."""
    logger: LOGGERS = ("tensorboard",)
    """tensorboard, wandb, trackio, or your own. Separate several by spaces, and name your own class as
    package.module:Class. metrics.jsonl is always written. wandb works offline with WANDB_MODE=offline. trackio
    needs the package trackio. See docs/run-files.md."""
    wandb_project: str = "mjlab_dist"
    """Project in Weights & Biases and trackio."""
    log_ranks: bool = False
    """Also log the speed, waiting time, return and memory of every rank. The loggers show them as curves, and
    rank_metrics.jsonl contains a row per rank and iteration."""
    evaluate_interval: PositiveInt | None = None
    """Iterations between evaluations of the policy. An evaluation plays whole episodes without exploration, in separate
    envs. The means over the episodes are the columns evaluation/... of the metrics. The last iteration is also followed
    by an evaluation. Default: no evaluations."""
    evaluate_episodes: PositiveInt = 64
    """Number of episodes of an evaluation. The ranks share the episodes in batches of 16."""
    video_interval: PositiveInt | None = None
    """Iterations between videos. A separate process on one core makes a video of the first checkpoint at or after
    each multiple of this number, and of the last checkpoint. Default: no videos."""
    video_length: Annotated[float, Interval(0, 60, is_open=True)] = 5.0
    """Length of each video, in simulated seconds; at most 60."""
    torchrunx_log_dir: str | None = None
    """Directory for the ranks' log files. Default: <run directory>/torchrunx. An empty string turns the files off. The
    variable TORCHRUNX_LOG_DIR takes precedence over this flag."""
    env: EnvConfig
    """The task's env."""
    agent: AgentConfig = field(default_factory=PpoConfig)
    """The learner."""
    sync: SyncConfig = field(default_factory=SyncConfig)
    """Synchronization of ranks."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Checkpoints."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """Play a trained policy: print its returns over whole episodes, and record a video or a strip of frames.

    All --env flags of train also work, and change the env. Example: --env.commands.velocity.params.forward-m-s 1 1.
    """

    run: str = "latest"
    """Run directory or its name, a pack, latest for the task's newest run, or pretrained for the policy in the task's
    package."""
    checkpoint: str | None = None
    """Checkpoint to play: latest, best (the highest mean return), an iteration such as 150, or a checkpoint
    file. Default: latest. If this is a file, the flag run is not needed."""
    nan_dump: str | None = None
    """File errors/nan_rank<N>.pt of a run that stopped because a number was not finite. play repeats the step that led
    to the number, instead of playing the policy."""
    video: str | None = None
    """Video file to write, such as balance.mp4. When an episode ends, the video continues with the next one. Default:
    no video."""
    frames: str | None = None
    """PNG file to write, such as walking.png: a strip of frames of one env, at equal intervals. Frames are nearly
    square, so the width and height of the strip determine the number of frames. Default: no strip."""
    seconds: PositiveFloat | None = None
    """Simulated time to play, in s. All episodes that end within this time are counted. Default: until every env has
    played one episode. With frames, the default is 3 s, or one episode if it is shorter."""
    num_envs: PositiveInt | None = None
    """Number of envs to play in parallel. Default: 16, or 1 with a viewer."""
    viewer: Literal["web", "native", "none", "auto"] = "none"
    """Where to watch the policy, until Ctrl-C: web (a page for a browser), native (MuJoCo's window, which needs a
    display), or auto (native if there is a display, else web)."""
    port: Port | None = None
    """Port of the page. Default: the first free port from 8080 upwards."""
    host: str = "127.0.0.1"
    """Address on which the page can be opened. With an address other than 127.0.0.1, the command prints a token that
    other machines need to open the page."""
    env: tuple[int, ...] = (0,)
    """Envs that the video shows: one, such as 3, or several side by side, such as 0 1 2 3. A strip shows one env."""
    camera: str | None = None
    """Name of the model's camera that records. Default: the first camera, or a view of the whole scene if the model
    has none."""
    width: Pixels | None = None
    """Width of the video or the strip, in pixels. Default: 848 for a video, 1200 for a strip."""
    height: Pixels | None = None
    """Height of the video or the strip, in pixels. Default: 480 for a video, 200 for a strip."""
    disturbances: bool = True
    """Keep the noise, delays, interval events (such as pushes) and randomizations of training."""
    seed: Seed = 1
    """Seed of the start states."""
    log_root: str = "logs"
    """Directory of all runs."""
    trust: bool = False
    """Allow the run's config to name functions of any module, which lets it run any code."""

    @property
    def num_played(self) -> int:
        """Number of envs to play in parallel."""
        return self.num_envs if self.num_envs is not None else 16 if self.viewer == "none" else 1


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """Show a run in the browser, during training or afterwards: the robot with the newest policy, and learning curves.

    The run's files are only read. They may be on a shared disk, or be copies.
    """

    port: Port | None = None
    """Port of the page. Default: the first free port from 8080 upwards."""
    host: str = "127.0.0.1"
    """Address on which the page can be opened. With an address other than 127.0.0.1, the command prints a token that
    other machines need to open the page."""
    num_envs: PositiveInt = 1
    """Number of robots to show."""
    log_root: str = "logs"
    """Directory of all runs. The page can switch to any of them."""
    trust: bool = False
    """Allow the run's config to name functions of any module, which lets it run any code."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Measure a trained policy over many episodes: return, reward terms, metrics and how episodes end.

    All --env flags of train also work, and change the env.
    """

    run: str = "latest"
    """Run directory or its name, a pack, latest for the task's newest run, or pretrained for the policy in the task's
    package."""
    checkpoint: str | None = None
    """Checkpoint to evaluate: latest, best (the highest mean return), an iteration such as 150, or a checkpoint
    file. Default: latest. If this is a file, the flag run is not needed."""
    num_episodes: PositiveInt = 256
    """Number of episodes to play."""
    num_envs: PositiveInt = 64
    """Number of envs that a rank simulates at a time, one episode in each; on a GPU, more envs are faster. Random
    numbers and results depend on this number, but not on the number of ranks."""
    actions: Literal["mean", "sampled", "both"] = "mean"
    """Actions of the policy: mean (deterministic), sampled (with the exploration noise of training), or both."""
    vary: tuple[str, ...] = ()
    """Evaluate at several values: NAME=START:STOP:COUNT or NAME=VALUE,VALUE,... NAME is a randomization, such as
    friction, an event, such as push, or a number or range of the config, such as
    env.commands.velocity.params.forward_m_s. If vary is given several times, every combination is evaluated."""
    disturbances: bool = True
    """Keep the noise, delays, interval events (such as pushes) and randomizations of training."""
    seed: Seed = 1
    """Random seed."""
    gpu_ids: tuple[int, ...] | Literal["auto", "all"] | None = "auto"
    """GPUs to evaluate on, with one rank each, as in train; None for the CPU."""
    cpu_ranks: PositiveInt | None = None
    """Number of processes to evaluate with on the CPU. They share the cores equally. Default: one per core, with at
    least num-envs episodes each."""
    json: bool = False
    """Print one JSON object instead of the table."""
    plot: str | None = None
    """PNG file to write: the mean return over one varied value, or a heat map over two. Needs the package
    matplotlib."""
    min_return: float | None = None
    """Exit with 1 if the mean return is below this value. With vary, this applies to every combination of values."""
    log_root: str = "logs"
    """Directory of all runs."""
    trust: bool = False
    """Allow the run's config to name functions of any module, which lets it run any code."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Write a trained policy as ONNX and TorchScript files, which run without this package, and check them.

    Needs the packages onnx and onnxruntime.
    """

    run: str = "latest"
    """Run directory or its name, a pack, latest for the task's newest run, or pretrained for the policy in the task's
    package."""
    checkpoint: str | None = None
    """Checkpoint to export: latest, best (the highest mean return), an iteration such as 150, or a checkpoint
    file. Default: latest. If this is a file, the flag run is not needed."""
    output: str | None = None
    """Directory for policy.onnx, policy.pt and model.mjb (the MuJoCo model). Default: <run directory>/exported, or
    for a pack, <name>_exported beside it. Files of an earlier export are replaced."""
    num_checked: PositiveInt = 1000
    """Number of observations used to compare the actions of the files with those of the policy."""
    seed: Seed = 1
    """Random seed of the episodes that provide the observations."""
    log_root: str = "logs"
    """Directory of all runs."""
    trust: bool = False
    """Allow the run's config to name functions of any module, which lets it run any code."""


@dataclass(frozen=True, kw_only=True)
class PackConfig:
    """Pack a run into one file for others: config, checkpoint, metrics, ONNX policy, versions and a model card.

    play, evaluate, export, compare and --init-from take the file in place of a run.
    """

    checkpoint: str = "latest"
    """Checkpoint to pack: latest, best (the highest mean return), an iteration such as 150, or the name of a file in
    the run's checkpoints directory, such as model_100.pt."""
    output: str | None = None
    """File to write; its name ends in .zip. It must not exist. Default: <task>_<run>_<checkpoint>.zip in the
    current directory."""
    onnx: bool = True
    """Whether to add policy.onnx, after the same checks as in export. Needs the packages onnx and onnxruntime."""
    log_root: str = "logs"
    """Directory of all runs, in which latest is found."""
    trust: bool = False
    """Allow the run's config to name functions of any module, which lets it run any code."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Compare runs: learning curves, final values, time to a threshold, and the differences between their configs.

    Runs whose configs differ only in the seed form a group. Give run directories, packs, or the directory of a task
    for all its runs.
    """

    metric: str = "mean_return"
    """Column of metrics.jsonl to compare."""
    over: Literal["steps", "time", "iterations"] = "steps"
    """Horizontal axis of the curves: control steps of all ranks, seconds of training, or iterations."""
    band: Literal["std", "iqm"] = "std"
    """Curve and band of a group: std (mean and standard deviation of the runs), or iqm (interquartile mean and its 95%
    bootstrap interval)."""
    ranks: bool = False
    """Compare the ranks of each run instead of the runs, by the columns of rank_metrics.jsonl. The runs must have been
    trained with --log-ranks."""
    threshold: float | None = None
    """Also report the steps and seconds until the metric first reaches this value."""
    output: str | None = None
    """File to write: a PNG picture of the curves, or an HTML page with curves and tables. Needs the package
    matplotlib."""
    json: bool = False
    """Print one JSON object instead of the tables."""
    log_root: str = "logs"
    """Directory of all runs, in which latest is found."""
