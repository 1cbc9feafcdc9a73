"""Choose a viewer, and check that the flags are valid for it. Imports neither torch nor a viewer."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping
from typing import Literal

from mjlab_dist.config import PlayConfig
from mjlab_dist.errors import UserError
from mjlab_dist.machine.packages import require_extra


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
