"""What must be refused before a run starts, beyond what the config alone tells. Imports no torch."""

from __future__ import annotations

import netrc
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlparse

from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import UserError

WANDB_HOST = "https://api.wandb.ai"
"""Where Weights & Biases keeps runs unless WANDB_BASE_URL says otherwise."""


def check_logger(config: TrainConfig, environ: Mapping[str, str]) -> None:
    """Refuse ``--logger wandb`` where it would ask for an account in the middle of the run.

    Args:
        config: The run's config.
        environ: The environment.

    Raises:
        UserError: If there is no account and Weights & Biases is not offline.
    """
    if config.logger != "wandb" or environ.get("WANDB_MODE") in {"offline", "disabled", "dryrun"}:
        return
    if not environ.get("WANDB_API_KEY") and not _has_login(environ):
        raise UserError(
            "--logger wandb: no account is logged in; run `uv run wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline"
        )


def _has_login(environ: Mapping[str, str]) -> bool:
    host = urlparse(environ.get("WANDB_BASE_URL", WANDB_HOST)).hostname or ""
    file = Path(environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        return netrc.netrc(file).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
