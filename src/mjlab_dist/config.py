"""What a run is: frozen dataclasses, their validation and their plain-data form. Imports the standard library only.

Field docstrings are the command line's help. Terms name their functions as ``"package.module:function"``, so that a
config can be listed, shown and written to a file without importing torch, and reads back as the same run.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mjlab_dist.errors import UserError

ParamValue = bool | int | str | float | tuple[float, ...]
"""What a term's parameter may be: plain data that a file and the command line can hold."""


Activation = Literal[
    "elu", "selu", "relu", "crelu", "lrelu", "tanh", "sigmoid", "softplus", "gelu", "swish", "mish", "identity"
]
"""Activations that rsl_rl knows by name."""

COMPRESSIONS = ("none", "bf16", "fp16")
"""Formats that gradients can travel in."""


@dataclass(frozen=True, kw_only=True)
class TermConfig:
    """A named function of the env and its arguments."""

    func: str
    """Function, as package.module:name."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function."""


@dataclass(frozen=True, kw_only=True)
class ActionConfig:
    """How one block of the policy's output drives actuators: ctrl = offset + scale * action."""

    actuators: tuple[str, ...]
    """Names of the actuators in the MJCF; one action each, in this order."""
    scale: float = 1.0
    """Actuator units per unit of action."""
    offset: float = 0.0
    """Actuator value at action 0, in actuator units."""


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """One term of the reward: weight * func(env), summed over terms at every control step."""

    func: str
    """Function, as package.module:name; returns one value per env."""
    weight: float
    """Factor of the term in the sum; may be negative."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function."""


@dataclass(frozen=True, kw_only=True)
class SimConfig:
    """The physics of one rank's envs."""

    model: str
    """MJCF: a file's path, or package.module:file for one inside a Python package."""
    decimation: int = 1
    """Physics steps (substeps) per control step."""
    njmax: int
    """Constraint rows allocated per env; more than the model ever needs costs time."""
    nconmax: int
    """Contacts allocated per env; more than the model ever makes costs time."""
    forward_before_observation: bool = True
    """Recompute poses and sensors before observing; needless where observations read only joint positions and velocities."""
    capture: bool = True
    """Record the physics once and replay it (a CUDA graph on a GPU); off is slower and easier to debug."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """A task: what is simulated, what the policy sees and does, what is rewarded and when an episode ends."""

    sim: SimConfig
    """Physics."""
    episode_length_s: float
    """Length of an episode until it times out, in simulated seconds."""
    actions: dict[str, ActionConfig]
    """Action blocks by name; the policy's output is their concatenation."""
    observations: dict[str, dict[str, TermConfig]]
    """Observation groups by name; each is the concatenation of its terms. The policy reads the group actor, the value critic if there is one, else actor."""
    rewards: dict[str, RewardConfig]
    """Reward terms by name."""
    terminations: dict[str, TermConfig] = field(default_factory=dict)
    """Conditions that end an episode for good, by name (the time limit is apart: it is bootstrapped)."""
    events: dict[str, TermConfig] = field(default_factory=dict)
    """What is drawn anew when an episode starts, by name, applied in this order."""
    nan_policy: Literal["stop", "reset"] = "stop"
    """What happens where physics, an observation or a reward is not finite. stop: training ends in that iteration, and the state is kept for play --nan-dump. reset: those envs start a new episode, and are counted."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """PPO (Schulman et al. 2017, arXiv:1707.06347), as rsl_rl implements it."""

    num_steps_per_env: int = 32
    """Control steps per env in one rollout."""
    num_learning_epochs: int = 5
    """Passes over each rollout."""
    num_mini_batches: int = 4
    """Mini-batches per pass."""
    learning_rate: float = 1e-3
    """Adam's step size; the start value where the schedule is adaptive."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """adaptive: the learning rate follows the measured KL divergence towards desired-kl."""
    desired_kl: float = 0.01
    """KL divergence per update that the adaptive schedule aims at."""
    gamma: float = 0.99
    """Discount per control step."""
    lam: float = 0.95
    """Lambda of the generalized advantage estimate."""
    clip_param: float = 0.2
    """Clip range of the probability ratio, and of the value where use-clipped-value-loss is set."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    use_clipped_value_loss: bool = True
    """Clip the value's change as the policy's."""
    max_grad_norm: float = 1.0
    """Norm that the actor's and the critic's gradients are each clipped to."""
    actor_hidden_dims: tuple[int, ...] = (64, 64)
    """Widths of the policy's hidden layers."""
    critic_hidden_dims: tuple[int, ...] = (64, 64)
    """Widths of the value's hidden layers."""
    activation: Activation = "elu"
    """Activation of the hidden layers, by rsl_rl's name."""
    obs_normalization: bool = False
    """Normalize observations by their running mean and deviation, over all ranks."""
    reward_normalization: bool = False
    """Divide rewards, as the learner sees them, by the running deviation of their discounted sum, over all ranks; returns are reported as they are."""
    init_std: float = 1.0
    """Standard deviation of the actions at the start."""
    rnn: Literal["none", "lstm", "gru"] = "none"
    """Recurrent layers in front of policy and value; mini-batches are then of whole envs."""
    rnn_hidden_dim: int = 256
    """Width of the recurrent layers."""
    rnn_num_layers: int = 1
    """Recurrent layers."""
    advantage_normalization: Literal["global", "rank", "mini-batch"] = "global"
    """Over what advantages get mean 0 and deviation 1: the rollout of all ranks (the same policy comes out at any world size), each rank's own rollout, or each mini-batch over all ranks."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the networks' products in the update; bf16 keeps parameters, gradients and Adam in fp32 (torch.autocast)."""
    capture: bool = True
    """On a GPU, record the update of a mini-batch once and replay it as CUDA graphs; off is slower and easier to debug."""


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
    """GPUs to train on, one rank each: indices into CUDA_VISIBLE_DEVICES where that is set; all; or None for the CPU. auto: GPU 0 if there is one, else the CPU."""
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
    """Go on with an earlier run, in its directory: a run directory, latest for the task's newest, or a W&B run's path. Its own config is taken, further flags change it; max-iterations is the total."""
    init_from: str | None = None
    """Checkpoint file whose policy and value (and normalizers) a new run starts from."""
    max_restarts: int = 0
    """How often a run whose ranks were killed, hung or failed is started again from its newest checkpoint; an attempt that got no further ends the run."""
    hang_timeout: float = 300.0
    """Seconds without an iteration after which a rank is taken to hang, and the run ends or is started again."""
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
    """Show what a trained policy does: its returns over whole episodes, and a video of one."""

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


def validate(config: TrainConfig) -> None:
    """Refuse what cannot train, before anything starts.

    Raises:
        UserError: One line that names the flag, its value and the mend.
    """
    _validate_numbers(config)
    if config.num_envs == "auto" and config.total_num_envs is not None:
        raise UserError(
            f"--num-envs auto: excludes --total-num-envs {config.total_num_envs}, which fixes the envs; drop one of the two"
        )
    if config.total_num_envs is None:
        validate_rollout(config)
    _validate_sync(config)
    _validate_hosts(config.hosts)
    parse_interval(config.checkpoint.interval)
    if config.resume is not None and config.init_from is not None:
        raise UserError(
            f"--init-from {config.init_from}: excludes --resume {config.resume}, which goes on from that run's own checkpoint; "
            "drop one of the two"
        )
    if "/" in config.run_name or config.run_name.startswith("."):
        raise UserError(f"--run-name {config.run_name}: must be a plain name, without / and not starting with a dot")
    _validate_env(config.env)


def validate_rollout(config: TrainConfig) -> None:
    """Refuse mini-batches that the rollout of one rank cannot be cut into; where ``num_envs`` is auto, nothing is known yet.

    Args:
        config: A config whose ``num_envs`` is what ranks will have: :func:`mjlab_dist.budget.resolve` settles that.

    Raises:
        UserError: One line that names the flag, its value and the mend.
    """
    if config.num_envs == "auto":
        return
    agent = config.agent
    if agent.rnn != "none":
        if config.num_envs % agent.num_mini_batches:
            raise UserError(
                f"--agent.num-mini-batches {agent.num_mini_batches}: does not divide --num-envs {config.num_envs}, and with "
                f"--agent.rnn {agent.rnn} mini-batches are of whole envs; "
                f"use {_nearest_divisor(config.num_envs, agent.num_mini_batches)}"
            )
        return
    rollout = config.num_envs * agent.num_steps_per_env
    if rollout % agent.num_mini_batches:
        raise UserError(
            f"--agent.num-mini-batches {agent.num_mini_batches}: does not divide the rollout of --num-envs "
            f"{config.num_envs} x --agent.num-steps-per-env {agent.num_steps_per_env} = {rollout} samples; "
            f"use {_nearest_divisor(rollout, agent.num_mini_batches)}"
        )


def parse_interval(interval: int | str) -> tuple[int | None, float | None]:
    """Read ``--checkpoint.interval``.

    Args:
        interval: A number of iterations, or seconds with an s behind them.

    Returns:
        Iterations or None, seconds or None; one of the two.

    Raises:
        UserError: If it is neither.
    """
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)s", str(interval))
    if not match or float(match[1] or match[2]) <= 0:
        raise UserError(
            f"--checkpoint.interval {interval}: must be iterations, at least 1, such as 50, or seconds, such as 600s"
        )
    return (int(match[1]), None) if match[1] else (None, float(match[2]))


def _nearest_divisor(number: int, wish: int) -> int:
    divisors = [n for n in range(1, min(number, 64) + 1) if number % n == 0]
    return min(divisors, key=lambda n: abs(n - wish))


def _validate_sync(config: TrainConfig) -> None:
    sync = config.sync
    if sync.compression not in COMPRESSIONS:
        raise UserError(
            f"--sync.compression {sync.compression}: use {', '.join(COMPRESSIONS[:-1])} or {COMPRESSIONS[-1]}; an all-reduce "
            "adds numbers: what travels must be a number format, and bytes packed by a general compressor cannot be added"
        )
    own = f"--sync.synchronizer {sync.synchronizer}"
    for excluded, flag, reason in (
        (
            sync.synchronizer and sync.period > 1,
            f"{own}: excludes --sync.period {sync.period}",
            "a synchronizer of your own decides when ranks meet",
        ),
        (
            sync.synchronizer and sync.compression != "none",
            f"{own}: excludes --sync.compression {sync.compression}",
            "a synchronizer of your own decides what travels",
        ),
        (
            sync.synchronizer and config.fsdp_devices > 1,
            f"--fsdp-devices {config.fsdp_devices}: excludes {own}",
            "sharded gradients are averaged by FSDP2",
        ),
        (
            sync.period > 1 and config.fsdp_devices > 1,
            f"--fsdp-devices {config.fsdp_devices}: excludes --sync.period {sync.period}",
            "ranks that share parameters cannot differ",
        ),
    ):
        if excluded:
            raise UserError(f"{flag}, since {reason}; drop one of the two")


def _validate_hosts(hosts: tuple[str, ...]) -> None:
    shown = " ".join(hosts)
    for host in hosts:
        # One colon would be a port, which SSH's library takes and a look-up of the name does not; an IPv6 address has more.
        if not re.fullmatch(r"[\w.:-]+", host) or host.count(":") == 1:
            raise UserError(
                f"--hosts {shown}: {host!r} is no machine's name or address; separate hosts by spaces, and name users and ports "
                "in SSH's config file"
            )
        if hosts.count(host) > 1:
            raise UserError(f"--hosts {shown}: {host} is repeated; name each once")


def _validate_numbers(config: TrainConfig) -> None:
    agent, sim = config.agent, config.env.sim
    for least, flag, value in (
        (1, "--num-envs", config.num_envs),
        (1, "--total-num-envs", config.total_num_envs),
        (1, "--max-iterations", config.max_iterations),
        (1, "--total-timesteps", config.total_timesteps),
        (1, "--fsdp-devices", config.fsdp_devices),
        (1, "--sync.period", config.sync.period),
        (1, "--sync.check-interval", config.sync.check_interval),
        (0, "--checkpoint.keep-last", config.checkpoint.keep_last),
        (0, "--checkpoint.keep-best", config.checkpoint.keep_best),
        (0, "--max-restarts", config.max_restarts),
        (0, "--seed", config.seed),
        (1, "--env.sim.decimation", sim.decimation),
        (0, "--env.sim.njmax", sim.njmax),
        (0, "--env.sim.nconmax", sim.nconmax),
        (1, "--agent.num-steps-per-env", agent.num_steps_per_env),
        (1, "--agent.num-learning-epochs", agent.num_learning_epochs),
        (1, "--agent.num-mini-batches", agent.num_mini_batches),
        *((1, "--agent.actor-hidden-dims", width) for width in agent.actor_hidden_dims),
        *((1, "--agent.critic-hidden-dims", width) for width in agent.critic_hidden_dims),
        (1, "--agent.rnn-hidden-dim", agent.rnn_hidden_dim),
        (1, "--agent.rnn-num-layers", agent.rnn_num_layers),
    ):
        if isinstance(value, int) and value < least:
            raise UserError(f"{flag} {value}: must be at least {least}")
    for flag, value in (
        ("--env.episode-length-s", config.env.episode_length_s),
        ("--agent.learning-rate", agent.learning_rate),
        ("--agent.desired-kl", agent.desired_kl),
        ("--agent.clip-param", agent.clip_param),
        ("--agent.init-std", agent.init_std),
        ("--agent.max-grad-norm", agent.max_grad_norm),
        ("--hang-timeout", config.hang_timeout),
    ):
        if not 0 < value < math.inf:
            raise UserError(f"{flag} {value}: must be positive and finite")
    for flag, value in (
        ("--agent.entropy-coef", agent.entropy_coef),
        ("--agent.value-loss-coef", agent.value_loss_coef),
        ("--fsdp-min-size-mb", config.fsdp_min_size_mb),
    ):
        if not 0 <= value < math.inf:
            raise UserError(f"{flag} {value}: must be 0 or more, and finite")
    for flag, value in (("--agent.gamma", agent.gamma), ("--agent.lam", agent.lam)):
        if not 0 <= value <= 1:
            raise UserError(f"{flag} {value}: must lie between 0 and 1")


def _validate_env(env: EnvConfig) -> None:
    if not env.observations.get("actor"):
        raise UserError("env.observations: has no group actor; the task must define what the policy sees")
    if not env.actions:
        raise UserError("env.actions: is empty; the task must name the actuators that the policy drives")
    if not env.rewards:
        raise UserError("env.rewards: is empty; the task must define at least one term")


def to_plain(config: Any) -> Any:
    """Turn a config into dicts, lists and scalars, for a file.

    Args:
        config: A config dataclass, or anything that one holds.

    Returns:
        The same as plain data: dataclasses and mappings as dicts, tuples as lists, paths as text.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {key: to_plain(value) for key, value in config.items()}
    if isinstance(config, tuple | list):
        return [to_plain(value) for value in config]
    if isinstance(config, Path):
        return str(config)
    return config


def paths(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all that a config holds.

    Args:
        plain: What :func:`to_plain` made of it.
        prefix: Put before every name.

    Yields:
        Name and value; what holds others comes before them.
    """
    for name, value in plain.items():
        yield prefix + name, value
        if isinstance(value, Mapping):
            yield from paths(value, f"{prefix}{name}.")
