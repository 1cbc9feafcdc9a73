"""Checks of a config that run before anything else starts."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from mjlab_dist.config.agent import AgentConfig, PpoConfig, SacConfig
from mjlab_dist.config.dotted_names import entry
from mjlab_dist.config.limits import validate_limits
from mjlab_dist.config.run import COMPRESSIONS, SyncConfig, TrainConfig, validate_loggers
from mjlab_dist.config.serialization import FieldError, as_tuples, from_plain, paths, to_plain
from mjlab_dist.config.signatures import PARAMETERS, check_model_params, parameters_of
from mjlab_dist.config.task import EnvConfig, TerrainConfig, TerrainPartConfig
from mjlab_dist.errors import UserError, counted, listed

# Matches a name, an IPv4 address, or an IPv6 address in brackets; a number of ranks may follow
HOST = re.compile(r"(?:(?P<name>\w[\w.-]*)|\[(?P<address>[\w.:]+)\])(?::(?P<num_ranks>\d{1,6}))?")

# Maximum number of points of a terrain's height field
_MAX_POINTS = 4e7

# Matches the names of fields that are bounds. Infinity in such a field means that there is no bound.
_BOUND = re.compile(r"(clip|low|high)|(min|max)_\w+")

# Matches characters that no path can have: NUL, and surrogates other than U+DC80 to U+DCFF, with which Python
# represents bytes of a path that are not valid UTF-8.
_NOT_IN_PATHS = re.compile(r"[\0\ud800-\udc7f\udd00-\udfff]")


def validate(config: TrainConfig) -> None:
    """Raise if the config is invalid."""
    _validate_types(config)
    validate_limits(config)
    # Ranks and hosts
    _validate_sync(config.sync)
    validate_fsdp(config)
    validate_hosts(config.hosts, config.min_hosts, config.max_restarts)
    if config.port_range is not None:
        first, last = config.port_range
        if first < 1024 or last <= first or last > 65535:
            raise UserError(
                f"--port-range {first} {last}: must be the first and the last port of a range of at least two ports, "
                "between 1024 and 65535"
            )
    # Networks
    _validate_widths(config.agent)
    if isinstance(config.agent, SacConfig):
        _validate_sac(config.agent, config.fsdp_devices)
    else:
        _validate_ppo(config.agent)
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


def _validate_sync(sync: SyncConfig) -> None:
    if sync.compression not in COMPRESSIONS:
        raise UserError(
            f"--sync.compression {sync.compression}: use {listed(COMPRESSIONS, 'or')}; general compressors, such as "
            "gzip, are not supported, because an all-reduce adds gradients and cannot add compressed bytes"
        )
    own, period = f"--sync.synchronizer {sync.synchronizer}", f"--sync.period {sync.period}"
    compression, is_compressed = f"--sync.compression {sync.compression}", sync.compression != "none"
    averages_rarely = "with this period, ranks exchange parameters instead of gradients, without compression"
    for excluded, flag, other, reason in (
        (sync.synchronizer and sync.period > 1, own, period, "your own synchronizer decides when ranks exchange data"),
        (sync.synchronizer and is_compressed, own, compression, "your own synchronizer decides what ranks exchange"),
        (sync.period > 1 and is_compressed, compression, period, averages_rarely),
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


def _validate_widths(agent: AgentConfig) -> None:
    names = ["actor_hidden_dims", "critic_hidden_dims", "rnd.predictor_hidden_dims", "rnd.target_hidden_dims"]
    for name in names:
        if entry(agent, name.split(".")) == ():
            flag = f"--agent.{name.replace('_', '-')}"
            raise UserError(f"{flag}: is empty; give the width of at least one hidden layer, such as 64")


def _validate_sac(agent: SacConfig, fsdp_devices: int) -> None:
    if fsdp_devices > 1:
        raise UserError(f"--fsdp-devices {fsdp_devices}: works with PPO only; remove it, or use --algorithm ppo")
    if round(agent.updates_per_step * agent.num_steps_per_env) < 1:
        raise UserError(
            f"--agent.updates-per-step {agent.updates_per_step}: is less than one gradient step in "
            f"--agent.num-steps-per-env {agent.num_steps_per_env}; raise one of them"
        )


def _validate_ppo(agent: PpoConfig) -> None:
    if agent.init_std < agent.min_std:
        raise UserError(
            f"--agent.init-std {agent.init_std}: is below --agent.min-std {agent.min_std}; raise it, or lower "
            "--agent.min-std"
        )
    if agent.obs_clip is not None and not agent.obs_normalization:
        raise UserError(
            f"--agent.obs-clip {agent.obs_clip}: needs normalized observations; add --agent.obs-normalization"
        )
    if agent.symmetry.is_used and agent.symmetry.func is None:
        raise UserError(
            "--agent.symmetry.func None: symmetry needs a function that mirrors samples; give package.module:function"
        )
    if agent.symmetry.is_used and agent.rnn != "none":
        raise UserError(
            f"--agent.rnn {agent.rnn}: does not work with --agent.symmetry, because the state of a recurrent network "
            "cannot be mirrored; remove one of them"
        )


def _validate_env(env: EnvConfig) -> None:
    if not env.observations.get("actor"):
        raise UserError("env.observations: has no group named actor; add this group, with the policy's observations")
    if not env.actions:
        raise UserError("env.actions: is empty; the task must name the actuators that the policy drives")
    if not env.rewards:
        raise UserError("env.rewards: is empty; the task must define at least one term")
    for name, action in env.actions.items():
        _validate_jitter(f"--env.actions.{name}.latency", action.latency, action.latency_jitter)
    for group, terms in env.observations.items():
        for name, term in terms.items():
            _validate_jitter(f"--env.observations.{group}.{name}.delay", term.delay, term.delay_jitter)
    check_model_params("--env.sim", env.sim.model, env.sim.model_params)
    for name, entity in env.sim.entities.items():
        check_model_params(f"--env.sim.entities.{name}", entity.model, entity.model_params)
    validate_terrain(env.sim.terrain)


def _validate_jitter(flag: str, delay: tuple[int, int], jitter: float) -> None:
    if jitter and delay[0] == delay[1]:
        raise UserError(
            f"{flag}-jitter {jitter}: needs a range of delays, but {flag} is {delay[0]} {delay[1]}; give {flag} two "
            "different numbers"
        )


def validate_terrain(terrain: TerrainConfig) -> None:
    """Raise if a terrain cannot be built."""
    if not terrain.parts:
        return
    validate_limits(terrain, "env.sim.terrain.")
    _validate_grid(terrain)
    for name, part in terrain.parts.items():
        _validate_part(terrain, f"--env.sim.terrain.parts.{name.replace('_', '-')}", part)
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
    for name, length in (
        ("tile-size-m", terrain.tile_size_m),
        ("platform-m", terrain.platform_m),
        ("border-m", terrain.border_m),
    ):
        points = length / terrain.resolution_m
        if abs(points - round(points)) > 1e-6 * points:
            raise UserError(
                f"{flag}.{name} {length}: must be a whole multiple of {flag}.resolution-m {terrain.resolution_m}"
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
    least, most = 2 * terrain.resolution_m, (terrain.tile_size_m - terrain.platform_m) / 2
    if part.kind in {"rough", "stairs_up", "stairs_down", "boxes", "gaps"} and not all(
        least * (1 - 1e-6) <= end <= most for end in part.width_m
    ):
        raise UserError(
            f"{flag}.width-m {part.width_m[0]} {part.width_m[1]}: must be between {least:g} (twice "
            f"--env.sim.terrain.resolution-m) and {most:g} (the distance from a platform to the edge of its tile)"
        )


def validate_fsdp(config: TrainConfig) -> None:
    """Raise if parameters are to be split, and another field excludes this."""
    sync = config.sync
    period, own = f"--sync.period {sync.period}", f"--sync.synchronizer {sync.synchronizer}"
    gathers = "FSDP2 gathers parameters from other ranks in every control step, which a CUDA graph cannot contain"
    for excluded, other, reason in (
        (sync.period > 1, period, "ranks that share parameters cannot train separately"),
        (sync.synchronizer is not None, own, "FSDP2 itself averages sharded gradients"),
        (config.env.sim.capture == "step", "--env.sim.capture step", gathers),
    ):
        if excluded and config.fsdp_devices > 1:
            raise UserError(
                f"--fsdp-devices {config.fsdp_devices}: cannot be combined with {other}, because {reason}; drop one of "
                "the two"
            )


def validate_shards(config: TrainConfig, world_size: int) -> None:
    """Raise if the ranks cannot form groups that share parameters."""
    if world_size % config.fsdp_devices:
        divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
        raise UserError(
            f"--fsdp-devices {config.fsdp_devices}: does not divide the run's {counted(world_size, 'rank')}; "
            f"use {listed(divisors, 'or')}"
        )


class HostEntry(NamedTuple):
    """An entry of ``--hosts``."""

    # Name or address, without brackets
    name: str
    # Number of ranks; None for one per device
    num_ranks: int | None


def parse_host(entry: str) -> HostEntry:
    """Read an entry of ``--hosts``, such as ``node7``, ``node7:4`` or ``[fd00::7]:4``.

    Args:
        entry: An entry that has passed :func:`validate_hosts`.
    """
    found = _read_host(entry)
    assert found is not None
    return found


def _read_host(entry: str) -> HostEntry | None:
    if _is_ipv6(entry):
        return HostEntry(entry, None)
    match = HOST.fullmatch(entry)
    if match is None or (match["address"] and not _is_ipv6(match["address"])):
        return None
    return HostEntry(match["name"] or match["address"], None if match["num_ranks"] is None else int(match["num_ranks"]))


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def validate_hosts(entries: tuple[str, ...], min_hosts: int | None, max_restarts: int) -> None:
    """Raise if ``--hosts`` or ``--min-hosts`` is wrong. The hosts' devices are checked elsewhere.

    Args:
        entries: The value of ``--hosts``.
        min_hosts: The value of ``--min-hosts``.
        max_restarts: The value of ``--max-restarts``.
    """
    shown = " ".join(entries)
    # Each entry by itself
    for host in entries:
        if _read_host(host) is None:
            raise UserError(
                f"--hosts {shown}: {host!r} is not a host; give a name or an address, and optionally a number of "
                "ranks (node7, node7:4, [fd00::7]:4); separate hosts by spaces, and set users and ports in SSH's "
                "config file"
            )
        if parse_host(host).num_ranks == 0:
            raise UserError(f"--hosts {shown}: {host} has no ranks; drop the host, or give it 1 or more")
    # Repetitions
    names = [parse_host(entry).name for entry in entries]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise UserError(f"--hosts {shown}: {repeated[0]} is repeated; name each host once")
    # A flag that needs several machines
    if min_hosts is None:
        return
    if not entries:
        raise UserError(f"--min-hosts {min_hosts}: has no effect on one machine; add --hosts")
    if max_restarts == 0:
        raise UserError(
            f"--min-hosts {min_hosts}: has no effect without restarts; add --max-restarts, such as --max-restarts 10"
        )
