"""Find the run, checkpoint or dump to play, without importing torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from mjlab_dist.config import EnvConfig, PlayConfig, TrainConfig
from mjlab_dist.config.checks import validate_seed
from mjlab_dist.errors import UserError
from mjlab_dist.run_dir import CONFIG_FILE, ERRORS_DIR, find_best, find_checkpoint, find_run, read_config_file


def resolve(task: str, config: PlayConfig, warn: Callable[[str], None]) -> tuple[TrainConfig, Path]:
    """Return the run's config, and its checkpoint or dump.

    Args:
        task: Name of the task.
        config: What to play.
        warn: Called with one line if ``latest`` skips newer runs.

    Raises:
        UserError: If there is no such run or file, it belongs to another task, or a number cannot be used.
    """
    if config.num_envs < 1:
        raise UserError(f"--num-envs {config.num_envs}: must be at least 1")
    validate_seed(config.seed)
    if config.video is not None and not Path(config.video).resolve().parent.is_dir():
        raise UserError(f"--video {config.video}: there is no directory {Path(config.video).parent}; create it first")
    if config.video is not None and Path(config.video).suffix not in {".mp4", ".gif", ".webm"}:
        raise UserError(f"--video {config.video}: give a file that ends in .mp4, .webm or .gif")
    if config.nan_dump is not None:
        return _resolve_dump(task, Path(config.nan_dump), config)
    if config.checkpoint in (None, "latest", "best"):
        run_dir = find_run(config.log_root, task, config.run, warn=warn)
        find = find_best if config.checkpoint == "best" else find_checkpoint
        return read_config_file(run_dir), find(run_dir)
    checkpoint = Path(config.checkpoint)
    if not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: there is no such file; name one, or latest or best of the --run")
    run_dir = checkpoint.resolve().parent.parent
    return read_config_file(find_run(config.log_root, task, str(run_dir))), checkpoint


def without_disturbances(env: EnvConfig) -> EnvConfig:
    """Return a task without noise, delays, interval events and randomizations, and without curricula that change these.

    Args:
        env: The task.
    """
    removed = ("randomizations.", *(f"events.{name}." for name, one in env.events.items() if one.when == "interval"))
    noise = (".uniform_noise", ".gaussian_noise")
    return dataclasses.replace(
        env,
        actions={
            name: dataclasses.replace(action, latency=(0, 0), latency_jitter=0.0)
            for name, action in env.actions.items()
        },
        observations={
            group: {
                name: dataclasses.replace(term, uniform_noise=0.0, gaussian_noise=0.0, delay=(0, 0), delay_jitter=0.0)
                for name, term in terms.items()
            }
            for group, terms in env.observations.items()
        },
        events={name: event for name, event in env.events.items() if event.when != "interval"},
        randomizations={},
        curricula={
            name: term
            for name, term in env.curricula.items()
            if not any(
                isinstance(v, str) and (v.startswith(removed) or v.endswith(noise)) for v in term.params.values()
            )
        },
    )


def _resolve_dump(task: str, dump: Path, config: PlayConfig) -> tuple[TrainConfig, Path]:
    if config.checkpoint is not None:
        raise UserError(
            f"--nan-dump {dump}: cannot be combined with --checkpoint {config.checkpoint}, since no policy is played; "
            "drop one of the two"
        )
    if not dump.is_file():
        raise UserError(f"--nan-dump {dump}: there is no such file; name one in a run's {ERRORS_DIR} directory")
    run_dir = dump.resolve().parent.parent
    if not (run_dir / CONFIG_FILE).is_file():
        raise UserError(
            f"--nan-dump {dump}: is not in a run's {ERRORS_DIR} directory, so that the config is not known; leave the "
            "file where the run wrote it"
        )
    return read_config_file(find_run(config.log_root, task, str(run_dir))), dump
