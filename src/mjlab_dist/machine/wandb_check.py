"""Check of the access to Weights & Biases, before a run starts. Does not import wandb."""

from __future__ import annotations

import configparser
import contextlib
import netrc
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from mjlab_dist.imports import requirements, unmet
from mjlab_dist.machine import Finding, Status
from mjlab_dist.machine.processes import run_program

# Default server of Weights & Biases, whose settings can name another server
WANDB_SERVER = "https://api.forge.coreweave.com"

# Host of the same server in netrc files with older logins
FORMER_HOST = "api.wandb.ai"

# Program that connects to a server. Its arguments are the host and the port.
CONNECT_PROGRAM = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])))"


def check_wandb(environ: Mapping[str, str], timeout_s: float) -> Finding:
    """Check whether an account is logged in and the server answers, unless Weights & Biases is offline."""
    name, later = "--logger wandb", "`uv run wandb sync` uploads them later"
    if wrong := unmet(requirements("wandb")):
        return Finding(name=name, figure=wrong[0])
    mode = _wandb_setting(environ, "mode")
    if mode in {"offline", "disabled", "dryrun"}:
        return Finding(name=name, figure=f"set to {mode}")
    if not has_wandb_account(environ):
        fix = f"run `uv run wandb login` or set WANDB_API_KEY; otherwise, curves stay in the run directory ({later})"
        return Finding(name=name, figure="no account is logged in", status=Status.WARNING, fix=fix)
    try:
        host, port = _wandb_peer(environ)
        run_program(CONNECT_PROGRAM, host, str(port), timeout_s=timeout_s)
    except (OSError, ValueError) as error:
        fix = f"until the server answers, curves stay in the run directory ({later})"
        server = _wandb_server(environ)
        return Finding(name=name, figure=f"{server} does not answer: {error}", status=Status.WARNING, fix=fix)
    return Finding(name=name, figure=f"logged in, {host}:{port} answers")


def has_wandb_account(environ: Mapping[str, str]) -> bool:
    """Return whether an account is logged in: through one of two environment variables, or through the netrc file."""
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    url = urlsplit(_wandb_server(environ))
    file = Path(environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        logins = netrc.netrc(file)
    except (OSError, netrc.NetrcParseError):
        return False
    # Older versions of Weights & Biases store the host without its port
    hosts = [url.netloc, url.hostname or "", *([FORMER_HOST] if url.geturl() == WANDB_SERVER else [])]
    return any(logins.authenticators(host) for host in hosts)


def _wandb_server(environ: Mapping[str, str]) -> str:
    return _wandb_setting(environ, "base_url") or WANDB_SERVER


def _wandb_setting(environ: Mapping[str, str], name: str) -> str | None:
    """Return a setting from where Weights & Biases reads it: an environment variable, or two files of settings.

    The file in the working directory takes precedence over the user's file.
    """
    if value := environ.get(f"WANDB_{name.upper()}"):
        return value
    files = configparser.ConfigParser(interpolation=None)
    folder = Path(environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    with contextlib.suppress(configparser.Error, UnicodeDecodeError, OSError):
        files.read([folder / "settings", Path("wandb", "settings")])
    return files.get("default", name, fallback=None)


def _wandb_peer(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the host and port that Weights & Biases connects to: its server, or a proxy."""
    from urllib.request import getproxies, proxy_bypass  # slow to import, and needed here only

    url, whose = urlsplit(_wandb_server(environ)), "its"
    proxy = getproxies().get(url.scheme)
    if proxy and not proxy_bypass(url.hostname or ""):
        url, whose = urlsplit(proxy if "://" in proxy else f"http://{proxy}"), "the proxy's"
    if not url.hostname:
        raise ValueError(f"{whose} address is not a URL")
    return url.hostname, url.port or (80 if url.scheme == "http" else 443)
