"""Checks of a config that run before anything else starts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from mjlab_dist.config.agent import MIN_STD, AgentConfig
from mjlab_dist.config.entries import entry
from mjlab_dist.config.hosts import validate_hosts
from mjlab_dist.config.loggers import validate_loggers
from mjlab_dist.config.run import COMPRESSIONS, TrainConfig
from mjlab_dist.config.serialization import FieldError, as_tuples, from_plain, paths, to_plain
from mjlab_dist.config.signatures import PARAMETERS, check_model_params, parameters_of
from mjlab_dist.config.task import EnvConfig, ObservationConfig, TerrainConfig, TerrainPartConfig
from mjlab_dist.errors import UserError
from mjlab_dist.wording import listed

# Maximum number of points of a terrain's height field
_MAX_POINTS = 4e7


# Matches the names of fields that are bounds. Infinity in such a field means that there is no bound.
_BOUND = re.compile(r"(clip|low|high)|(min|max)_\w+")

# Matches characters that no path can have: NUL, and surrogates other than U+DC80 to U+DCFF, with which Python
# represents bytes of a path that are not valid UTF-8.
_NOT_IN_PATHS = re.compile(r"[\0\ud800-\udc7f\udd00-\udfff]")

# Maximum length of a video that is made during training, in s
MAX_VIDEO_S = 60.0

# The seed of a run must be less than this. torch allows seeds below 2**64. The limit of the run is lower, because rank
# r adds r to the seed of the run.
_SEED_LIMIT = 2**63


def validate(config: TrainConfig) -> None:
    """Raise if the config is invalid."""
    _validate_types(config)
    _validate_numbers(config)
    validate_seed(config.seed)
    # Number of envs
    if config.num_envs == "auto" and config.total_num_envs is not None:
        raise UserError(
            f"--num-envs auto: cannot be combined with --total-num-envs {config.total_num_envs}, which sets "
            "the number of envs; drop one of the two"
        )
    if config.total_num_envs is None and config.num_envs != "auto":
        validate_rollout(config.agent, config.num_envs)
    # Ranks and hosts
    _validate_sync(config)
    validate_hosts(config.hosts, config.min_hosts, config.max_restarts)
    if config.port_range is not None:
        first, last = config.port_range
        if first < 1024 or last < first + 2 or last > 65535:
            raise UserError(
                f"--port-range {first} {last}: must be the first and the last port of a range of at least three ports, "
                "between 1024 and 65535"
            )
    # Run directory, loggers and checkpoints
    parse_interval(config.checkpoint.interval)
    validate_loggers(config.logger, checkpoints=config.checkpoint.wandb)
    if "/" in config.run_name or config.run_name.startswith("."):
        raise UserError(f"--run-name {config.run_name}: must be a plain name, without / and not starting with a dot")
    if not config.run_name.isprintable():
        raise UserError(f"--run-name {config.run_name!r}: must be a plain name, on one line and without control codes")
    # Task
    _validate_env(config.env)
    _validate_values(config)


def validate_rollout(agent: AgentConfig, num_envs: int) -> None:
    """Raise if the rollout of one rank does not divide into mini-batches.

    Args:
        agent: Config of the learner.
        num_envs: Envs per rank.
    """
    if agent.rnn != "none":
        if num_envs % agent.num_mini_batches:
            raise UserError(
                f"--agent.num-mini-batches {agent.num_mini_batches}: does not divide --num-envs {num_envs}; "
                f"with --agent.rnn {agent.rnn}, the envs are divided among the mini-batches; "
                f"use {_nearest_divisor(num_envs, agent.num_mini_batches)}"
            )
        return
    rollout = num_envs * agent.num_steps_per_env
    if rollout % agent.num_mini_batches:
        raise UserError(
            f"--agent.num-mini-batches {agent.num_mini_batches}: does not divide the rollout of --num-envs "
            f"{num_envs} x --agent.num-steps-per-env {agent.num_steps_per_env} = {rollout} samples; "
            f"use {_nearest_divisor(rollout, agent.num_mini_batches)}"
        )


def episode_steps(env: EnvConfig, step_dt_s: float) -> int:
    """Return the maximum number of control steps of an episode.

    Args:
        env: The task.
        step_dt_s: Simulated seconds per control step.
    """
    num_steps = round(env.episode_length_s / step_dt_s)
    if num_steps < 1:
        raise UserError(
            f"--env.episode-length-s {env.episode_length_s}: is less than one control step; use at least {step_dt_s}"
        )
    return num_steps


def validate_seed(seed: int) -> None:
    """Raise if a seed is negative, or too large for the random generators."""
    if not 0 <= seed < _SEED_LIMIT:
        raise UserError(f"--seed {seed}: must be at least 0, and less than 2**63")


def parse_interval(interval: int | str) -> tuple[int | None, float | None]:
    """Parse ``--checkpoint.interval``.

    Args:
        interval: A number of iterations, or a number of seconds followed by an s.

    Returns:
        Iterations and seconds; one of the two is None.
    """
    match = re.fullmatch(r"(\d{1,15})|(\d{1,15}(?:\.\d+)?)s", str(interval))
    if not match or float(match[1] or match[2]) <= 0:
        raise UserError(
            f"--checkpoint.interval {interval}: must be a number of iterations, such as 50, or a number of seconds, "
            "such as 600s; 0 is not allowed"
        )
    return (int(match[1]), None) if match[1] else (None, float(match[2]))


def _nearest_divisor(number: int, wish: int) -> int:
    divisors = [n for n in range(1, min(number, 64) + 1) if number % n == 0]
    return min(divisors, key=lambda n: abs(n - wish))


def _validate_sync(config: TrainConfig) -> None:
    sync = config.sync
    if sync.compression not in COMPRESSIONS:
        raise UserError(
            f"--sync.compression {sync.compression}: use {listed(COMPRESSIONS, 'or')}; general compressors, such as "
            "gzip, are not supported, because an all-reduce adds gradients and cannot add compressed bytes"
        )
    own, period = f"--sync.synchronizer {sync.synchronizer}", f"--sync.period {sync.period}"
    compression, sharding = f"--sync.compression {sync.compression}", f"--fsdp-devices {config.fsdp_devices}"
    is_compressed, is_sharded = sync.compression != "none", config.fsdp_devices > 1
    gathers = "FSDP2 gathers parameters from other ranks in every control step, which a CUDA graph cannot contain"
    averages_rarely = "with this period, ranks exchange parameters instead of gradients, without compression"
    for excluded, flag, other, reason in (
        (sync.synchronizer and sync.period > 1, own, period, "your own synchronizer decides when ranks exchange data"),
        (sync.synchronizer and is_compressed, own, compression, "your own synchronizer decides what ranks exchange"),
        (sync.synchronizer and is_sharded, sharding, own, "FSDP2 itself averages sharded gradients"),
        (sync.period > 1 and is_compressed, compression, period, averages_rarely),
        (is_sharded and config.env.sim.capture == "step", "--env.sim.capture step", sharding, gathers),
        (sync.period > 1 and is_sharded, sharding, period, "ranks that share parameters cannot train separately"),
    ):
        if excluded:
            raise UserError(f"{flag}: cannot be combined with {other}, because {reason}; drop one of the two")


def _validate_types(config: TrainConfig) -> None:
    """Raise if a field has the wrong type, or is none of its choices. Python does not check this."""
    try:
        expected = from_plain(as_tuples(to_plain(config)), from_yaml=False).env
    except FieldError as error:
        if isinstance(error.value, str) and str(error).endswith("takes texts"):
            raise UserError(f"{error}; write ({error.value!r},)") from error
        raise
    # Terms of another kind, such as term(...) among the terminations
    pairs = {"terminations": (config.env.terminations, expected.terminations)}
    pairs |= {"metrics": (config.env.metrics, expected.metrics), "events": (config.env.events, expected.events)}
    pairs |= {
        f"observations.{name}": (group, expected.observations[name]) for name, group in config.env.observations.items()
    }
    for group, (given, needed) in pairs.items():
        for name, term in given.items():
            if not isinstance(term, type(needed[name])):
                raise UserError(
                    f"env.{group}.{name}: must be of type {type(needed[name]).__name__}, not {type(term).__name__}"
                )


def _validate_numbers(config: TrainConfig) -> None:
    agent, sim = config.agent, config.env.sim
    for least, flag, value in (
        (1, "--num-envs", config.num_envs),
        (1, "--gpu-num-envs", config.gpu_num_envs),
        (1, "--total-num-envs", config.total_num_envs),
        (1, "--max-iterations", config.max_iterations),
        (1, "--total-timesteps", config.total_timesteps),
        (1, "--fsdp-devices", config.fsdp_devices),
        (1, "--video-interval", config.video_interval),
        (1, "--evaluate-interval", config.evaluate_interval),
        (1, "--evaluate-episodes", config.evaluate_episodes),
        (1, "--sync.period", config.sync.period),
        (1, "--sync.check-interval", config.sync.check_interval),
        (0, "--checkpoint.keep-last", config.checkpoint.keep_last),
        (0, "--checkpoint.keep-best", config.checkpoint.keep_best),
        (0, "--max-restarts", config.max_restarts),
        (1, "--env.sim.decimation", sim.decimation),
        (0, "--env.sim.njmax", sim.njmax),
        (0, "--env.sim.nconmax", sim.nconmax),
        (1, "--agent.num-steps-per-env", agent.num_steps_per_env),
        (1, "--agent.num-learning-epochs", agent.num_learning_epochs),
        (1, "--agent.num-mini-batches", agent.num_mini_batches),
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
        ("--agent.min-std", agent.min_std),
        ("--agent.max-grad-norm", agent.max_grad_norm),
        ("--hang-timeout", config.hang_timeout),
    ):
        if not 0 < value < math.inf:
            raise UserError(f"{flag} {value}: must be positive and finite")
    if not 0 < config.video_length <= MAX_VIDEO_S:
        raise UserError(
            f"--video-length {config.video_length:g}: must be above 0, and at most {MAX_VIDEO_S:g} s; play --video "
            "records longer videos"
        )
    _validate_hidden_dims(agent)
    _validate_obs_clip(agent)
    _validate_std(agent)
    for flag, value in (
        ("--agent.entropy-coef", agent.entropy_coef),
        ("--agent.value-loss-coef", agent.value_loss_coef),
        ("--sync.fsdp-min-size-mb", config.sync.fsdp_min_size_mb),
    ):
        if not 0 <= value < math.inf:
            raise UserError(f"{flag} {value}: must be 0 or more, and finite")
    for flag, value in (("--agent.gamma", agent.gamma), ("--agent.lam", agent.lam)):
        if not 0 <= value <= 1:
            raise UserError(f"{flag} {value}: must be between 0 and 1")


def _validate_values(config: TrainConfig) -> None:
    """Raise for NaN, for infinity in an entry that is not a bound, and for a text that no path can contain."""
    for name, value in paths(to_plain(config)):
        if isinstance(value, str) and _NOT_IN_PATHS.search(value):
            raise UserError(f"--{name.replace('_', '-')} {value!r}: contains a character that no path can have")
        numbers = list(_floats(value))
        if any(map(math.isnan, numbers)) or (any(map(math.isinf, numbers)) and not _is_bound(config, name.split("."))):
            shown = " ".join(map(str, value)) if isinstance(value, list) else value
            raise UserError(f"--{name.replace('_', '-')} {shown}: must be finite")


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _floats(part)


def _is_bound(config: TrainConfig, path: list[str]) -> bool:
    """Return whether an entry is allowed to be infinite, because its name or its default shows that it is a bound."""
    *parent, name = path
    if _BOUND.fullmatch(name):
        return True
    if not parent or parent[-1] not in PARAMETERS:
        return False
    parameter = parameters_of(entry(config, parent[:-1]), parent[-1]).get(name)
    return parameter is not None and isinstance(parameter.default, float) and math.isinf(parameter.default)


def _validate_hidden_dims(agent: AgentConfig) -> None:
    for flag, widths in (
        ("--agent.actor-hidden-dims", agent.actor_hidden_dims),
        ("--agent.critic-hidden-dims", agent.critic_hidden_dims),
    ):
        if not widths:
            raise UserError(f"{flag}: is empty; give the width of at least one hidden layer, such as 64")
        for width in widths:
            if width < 1:
                raise UserError(f"{flag} {width}: must be at least 1")


def _validate_std(agent: AgentConfig) -> None:
    if agent.min_std < MIN_STD:
        raise UserError(f"--agent.min-std {agent.min_std}: must be at least {MIN_STD}, as in rsl_rl")
    if agent.init_std < agent.min_std:
        raise UserError(
            f"--agent.init-std {agent.init_std}: is below --agent.min-std {agent.min_std}; raise it, or lower "
            "--agent.min-std"
        )


def _validate_obs_clip(agent: AgentConfig) -> None:
    if agent.obs_clip is None:
        return
    if not 0 < agent.obs_clip < math.inf:
        raise UserError(f"--agent.obs-clip {agent.obs_clip}: must be positive and finite, or None")
    if not agent.obs_normalization:
        raise UserError(
            f"--agent.obs-clip {agent.obs_clip}: needs normalized observations; add --agent.obs-normalization"
        )


def _validate_env(env: EnvConfig) -> None:
    if not env.observations.get("actor"):
        raise UserError("env.observations: has no group named actor; add this group, with the policy's observations")
    if not env.actions:
        raise UserError("env.actions: is empty; the task must name the actuators that the policy drives")
    if not env.rewards:
        raise UserError("env.rewards: is empty; the task must define at least one term")
    for name, action in env.actions.items():
        _validate_range(f"--env.actions.{name}.latency", action.latency, least=0)
        _validate_jitter(f"--env.actions.{name}.latency", action.latency, action.latency_jitter)
        _validate_range(f"--env.actions.{name}.clip", action.clip)
    for group, terms in env.observations.items():
        for name, term in terms.items():
            _validate_observation(f"--env.observations.{group}.{name}", term)
    check_model_params("--env.sim", env.sim.model, env.sim.model_params)
    for name, entity in env.sim.entities.items():
        check_model_params(f"--env.sim.entities.{name}", entity.model, entity.model_params)
    validate_terrain(env.sim.terrain)
    for name, event in env.events.items():
        _validate_range(f"--env.events.{name}.interval-s", event.interval_s, least=0)
    for name, randomization in env.randomizations.items():
        _validate_range(f"--env.randomizations.{name}.interval-s", randomization.interval_s, least=0)


def _validate_observation(flag: str, term: ObservationConfig) -> None:
    _validate_range(f"{flag}.delay", term.delay, least=0)
    _validate_jitter(f"{flag}.delay", term.delay, term.delay_jitter)
    _validate_range(f"{flag}.clip", term.clip)
    if term.history < 1:
        raise UserError(f"{flag}.history {term.history}: must be at least 1")
    for noise, given in (("uniform", term.uniform_noise), ("gaussian", term.gaussian_noise)):
        for value in given if isinstance(given, tuple) else (given,):
            if not 0 <= value < math.inf:
                raise UserError(f"{flag}.{noise}-noise {value}: must be 0 or more, and finite")


def _validate_jitter(flag: str, delay: tuple[int, int], jitter: float) -> None:
    if not 0 <= jitter <= 1:
        raise UserError(f"{flag}-jitter {jitter}: is a probability; must be 0 to 1")
    if jitter and delay[0] == delay[1]:
        raise UserError(
            f"{flag}-jitter {jitter}: needs a range of delays, but {flag} is {delay[0]} {delay[1]}; give {flag} two "
            "different numbers"
        )


def _validate_range(flag: str, bounds: tuple[float, float] | None, least: float = -math.inf) -> None:
    low, high = bounds or (least, math.inf)
    if low < least:
        raise UserError(f"{flag} {low} {high}: must be at least {least}")
    if not low <= high:
        raise UserError(f"{flag} {low} {high}: is in the wrong order; swap the two")


def validate_terrain(terrain: TerrainConfig) -> None:
    """Raise if a terrain cannot be built."""
    if not terrain.parts:
        return
    _validate_grid(terrain)
    for name, part in terrain.parts.items():
        _validate_part(terrain, f"--env.sim.terrain.parts.{name}", part)
    columns = terrain.column_parts()
    for name, part in terrain.parts.items():
        if name not in columns:
            raise UserError(
                f"--env.sim.terrain.num-columns {terrain.num_columns}: leaves no column for "
                f"--env.sim.terrain.parts.{name}.share {part.share:g} (the sum of all "
                f"shares is {sum(each.share for each in terrain.parts.values()):g}); use more columns or a larger share"
            )


def _validate_grid(terrain: TerrainConfig) -> None:
    flag = "--env.sim.terrain"
    for name, count, least in (
        ("num-levels", terrain.num_levels, 1),
        ("num-columns", terrain.num_columns, 1),
        ("seed", terrain.seed, 0),
    ):
        if count < least:
            raise UserError(f"{flag}.{name} {count}: must be at least {least}")
    if not 0 < terrain.resolution_m < math.inf:
        raise UserError(f"{flag}.resolution-m {terrain.resolution_m}: must be positive and finite")
    for name, length in (
        ("tile-size-m", terrain.tile_size_m),
        ("platform-m", terrain.platform_m),
        ("border-m", terrain.border_m),
    ):
        points = length / terrain.resolution_m
        if not 0 < length < math.inf or abs(points - round(points)) > 1e-6 * points:
            raise UserError(
                f"{flag}.{name} {length}: must be a positive, whole multiple of {flag}.resolution-m "
                f"{terrain.resolution_m}"
            )
    if terrain.platform_m >= terrain.tile_size_m:
        raise UserError(
            f"{flag}.platform-m {terrain.platform_m}: must be less than {flag}.tile-size-m {terrain.tile_size_m}"
        )
    sides = [2 * terrain.border_m + terrain.tile_size_m * n for n in (terrain.num_levels, terrain.num_columns)]
    num_points = sides[0] * sides[1] / terrain.resolution_m**2
    if num_points > _MAX_POINTS:
        raise UserError(
            f"{flag}.resolution-m {terrain.resolution_m}: gives {num_points:.2g} points on {sides[0]:g} m by "
            f"{sides[1]:g} m, but the maximum is {_MAX_POINTS:.2g}, because more points need gigabytes of memory; "
            "use a larger resolution-m, or fewer tiles"
        )


def _validate_part(terrain: TerrainConfig, flag: str, part: TerrainPartConfig) -> None:
    if not 0 < part.share < math.inf:
        raise UserError(f"{flag}.share {part.share}: must be positive and finite")
    for name, ends in (("height-m", part.height_m), ("width-m", part.width_m), ("slope", part.slope)):
        if not all(0 <= end < math.inf for end in ends):
            raise UserError(f"{flag}.{name} {ends[0]} {ends[1]}: must be 0 or more, and finite")
    least, most = 2 * terrain.resolution_m, (terrain.tile_size_m - terrain.platform_m) / 2
    if part.kind in {"rough", "stairs_up", "stairs_down", "boxes", "gaps"} and not all(
        least * (1 - 1e-6) <= end <= most for end in part.width_m
    ):
        raise UserError(
            f"{flag}.width-m {part.width_m[0]} {part.width_m[1]}: must be between {least:g} (twice "
            f"--env.sim.terrain.resolution-m) and {most:g} (the distance from a platform to the edge of its tile)"
        )
