"""Find the run, checkpoint or dump to play, and choose the viewer. Imports neither torch nor a viewer."""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mjlab_dist.config import PlayConfig, TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.config.limits import MIN_PIXELS, validate_limits
from mjlab_dist.config.task import without_disturbances
from mjlab_dist.errors import UserError, listed
from mjlab_dist.imports import require_extra
from mjlab_dist.runs.outputs import check_output
from mjlab_dist.runs.run_dir import CONFIG_FILE, ERRORS_DIR, choose_checkpoint, find_run, read_config_file
from mjlab_dist.runs.run_files import has_file, readable, run_of
from mjlab_dist.sim.render import VIDEO_SIZE

# Fields of PlayConfig that change only the video or the strip (a picture of frames side by side)
VIDEO_FIELDS = frozenset({"env", "camera", "width", "height"})

# Default width and height of a strip, in pixels
STRIP_SIZE = (1200, 200)

# Default simulated time that a strip shows, in s
STRIP_S = 3.0


def resolve(task: str, config: PlayConfig, *, keeps_frames: bool = False) -> tuple[TrainConfig, Path]:
    """Return the run's config, and the path of the checkpoint or NaN dump to play."""
    validate_limits(config)
    _validate_pictures(config, keeps_frames=keeps_frames)
    if config.nan_dump is not None:
        return _resolve_dump(task, Path(config.nan_dump), config)
    name = config.checkpoint or "latest"
    if name in ("latest", "best") or name.isdecimal():
        run_dir = find_run(config.log_root, task, config.run)
        checkpoint = choose_checkpoint(run_dir, name)
        return read_config_file(run_dir, trust=config.trust, uses_ssh=False), readable(checkpoint)
    checkpoint = Path(name)
    if not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: there is no such file; give a file, an iteration, latest or best")
    run_dir = run_of(checkpoint)
    if not has_file(run_dir, CONFIG_FILE):
        raise UserError(
            f"--checkpoint {checkpoint}: is in no run directory, and play needs the run's {CONFIG_FILE}; put the file "
            "into the directory checkpoints of its run"
        )
    run_dir = find_run(config.log_root, task, str(run_dir), "--checkpoint")
    return read_config_file(run_dir, trust=config.trust, uses_ssh=False), readable(checkpoint)


def with_changes(train_config: TrainConfig, config: PlayConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return the config of a run with new values of its env and, if the flags say so, without disturbances."""
    if values:
        train_config = with_values(train_config, values)
        validate(train_config)
    if config.disturbances:
        return train_config
    return dataclasses.replace(train_config, env=without_disturbances(train_config.env))


def size_of(config: PlayConfig) -> tuple[int, int]:
    """Return width and height of the video or the strip, in pixels."""
    width, height = VIDEO_SIZE if config.frames is None else STRIP_SIZE
    return (width if config.width is None else config.width), (height if config.height is None else config.height)


def num_frames(config: PlayConfig) -> int:
    """Return the number of nearly square frames that fit into a strip."""
    width, height = size_of(config)
    return round(width / height)


def _validate_pictures(config: PlayConfig, *, keeps_frames: bool) -> None:
    if config.video is None and config.frames is None and not keeps_frames:
        given = [f.name for f in dataclasses.fields(config) if f.name in VIDEO_FIELDS]
        changed = [f"--{name}" for name in given if getattr(config, name) != getattr(PlayConfig(), name)]
        if changed:
            raise UserError(
                f"{listed(changed)}: there is no video or strip to change; add --video FILE or --frames FILE"
            )
        return
    if config.video is not None and config.frames is not None:
        raise UserError(
            f"--frames {config.frames}: cannot be combined with --video {config.video}, which has another size; "
            "run play once for each"
        )
    # Envs in the picture
    missing = [env for env in config.env if not 0 <= env < config.num_played]
    if missing or not config.env:
        raise UserError(
            f"--env {' '.join(map(str, config.env))}: name one or more of the envs 0 to {config.num_played - 1} "
            f"(--num-envs {config.num_played})"
        )
    if config.frames is not None:
        _validate_strip(config, config.frames)
    else:
        _validate_video(config)


def _validate_strip(config: PlayConfig, file: str) -> None:
    check_output("--frames", file)
    if Path(file).suffix != ".png":
        raise UserError(f"--frames {file}: give a file that ends in .png; --video records a video")
    if config.nan_dump is not None:
        raise UserError(
            f"--frames {file}: cannot be combined with --nan-dump {config.nan_dump}, which has only a few states; use "
            "--video"
        )
    if len(config.env) > 1:
        raise UserError(f"--env {' '.join(map(str, config.env))}: a strip shows one env; name one env")
    width, height = size_of(config)
    if width < 2 * height:
        raise UserError(
            f"--width {width}: is too small for two square frames with --height {height}; use {2 * height} or more, "
            "or lower --height"
        )


def _validate_video(config: PlayConfig) -> None:
    if config.video is not None:
        check_output("--video", config.video, [".mp4", ".gif"])
    # Size of the video, and of the picture of each env
    for flag, pixels, parts in zip(("--width", "--height"), size_of(config), grid(len(config.env)), strict=True):
        if pixels % 2:
            raise UserError(f"{flag} {pixels}: must be an even number, as video codecs require")
        if pixels < 2 * MIN_PIXELS * parts and parts > 1:
            raise UserError(
                f"{flag} {pixels}: is too small for pictures of {len(config.env)} envs; use "
                f"{2 * MIN_PIXELS * parts} or more, or name fewer envs with --env"
            )


def grid(num_pictures: int) -> tuple[int, int]:
    """Return the number of columns and of rows of a grid of pictures."""
    columns = math.ceil(math.sqrt(num_pictures))
    return columns, math.ceil(num_pictures / columns)


def _resolve_dump(task: str, dump: Path, config: PlayConfig) -> tuple[TrainConfig, Path]:
    for flag, value, default in (("--env", config.env, PlayConfig.env), ("--seconds", config.seconds, None)):
        if value != default:
            raise UserError(
                f"--nan-dump {dump}: cannot be combined with {flag}, because play repeats one step of each env in the "
                f"file, and the video shows the first of these envs; drop {flag}"
            )
    if config.checkpoint is not None:
        raise UserError(
            f"--nan-dump {dump}: cannot be combined with --checkpoint {config.checkpoint}, because a dump is shown "
            "without a policy; drop one of the two"
        )
    if not dump.is_file():
        raise UserError(f"--nan-dump {dump}: there is no such file; name one in a run's {ERRORS_DIR} directory")
    run_dir = dump.resolve().parent.parent
    if not (run_dir / CONFIG_FILE).is_file():
        raise UserError(
            f"--nan-dump {dump}: is not in a run's {ERRORS_DIR} directory, so the run's config is not known; move "
            "the file back to that directory"
        )
    return read_config_file(find_run(config.log_root, task, str(run_dir)), trust=config.trust, uses_ssh=False), dump


def choose_viewer(config: PlayConfig, environ: Mapping[str, str]) -> Literal["web", "native"] | None:
    """Return the viewer to use; None if no viewer was requested."""
    viewer = config.viewer
    if viewer == "auto":
        viewer = "native" if _has_display(environ) and config.nan_dump is None else "web"
    if viewer != "web":
        for flag, value, default in (("port", config.port, None), ("host", config.host, PlayConfig.host)):
            if value != default:
                raise UserError(f"--{flag} {value}: there is no page to serve; add --viewer web, or drop --{flag}")
    if viewer == "none":
        return None
    _check_flags(config)
    if viewer == "native":
        if config.nan_dump is not None:
            raise UserError(
                f"--nan-dump {config.nan_dump}: --viewer native cannot show it; use --viewer web, or drop --viewer"
            )
        if not _has_display(environ):
            raise UserError(
                "--viewer native: there is no display (DISPLAY and WAYLAND_DISPLAY are not set); use --viewer web"
            )
    else:
        require_extra("viewer", f"--viewer {config.viewer}")
    return viewer


def _check_flags(config: PlayConfig) -> None:
    for flag, file in (("video", config.video), ("frames", config.frames)):
        if file is not None:
            raise UserError(f"--{flag} {file}: cannot be combined with --viewer {config.viewer}; drop one of the two")
    if config.seconds is not None:
        raise UserError(
            f"--seconds {config.seconds:g}: cannot be combined with --viewer {config.viewer}, which ends with Ctrl-C; "
            "drop one of the two"
        )


def is_reachable_from_elsewhere(host: str) -> bool:
    """Return whether other machines may be able to connect to an address."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def _has_display(environ: Mapping[str, str]) -> bool:
    return sys.platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))
