"""Write and read the files that make a run reproducible: config, provenance, uncommitted changes.

Secrets are masked.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.messages import emit
from mjlab_dist.runs.outputs import write_atomically
from mjlab_dist.runs.run_dir import CONFIG_FILE, PROVENANCE_FILE, to_yaml
from mjlab_dist.runs.run_files import read_file

# Shown in place of a secret
MASK = "***"

# Substrings in the names of secret variables. Only rank 0 can need these variables, and it runs on the machine where
# the command was started, so they are never sent to other machines.
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "CRED", "AUTH")

# An address with a password or a token, such as https://user:password@host or https://token@host
LOGIN = re.compile(r"(://(?:[^/:@\s]*:)?)[^/\s]*@")

# Matches the last part of a secret flag's name, in lower case: for --db.password, this part is password
SECRET_FLAG = re.compile(r"(.*[-_])?(\w*key|\w*token|secrets?|pass(wd|word|phrase)?|cred(ential)?s?|auth)")

_PACKAGES = (
    "mjlab-dist",
    "torch",
    "torchrunx",
    "warp-lang",
    "mujoco",
    "mujoco-warp",
    "rsl-rl-lib",
    "numpy",
    "tensordict",
)


def masked(argv: Sequence[str]) -> list[str]:
    """Return a command line in which *** hides passwords in addresses, and values of secret flags and variables."""
    shown: list[str] = []
    is_secret = False
    for arg in argv:
        name, has_value, _ = arg.partition("=")
        if arg.startswith("--") or (has_value and name.isidentifier()):
            hides = SECRET_FLAG.fullmatch(name.lower().lstrip("-").rpartition(".")[2]) is not None
            is_secret = hides and not has_value
            shown.append(f"{name}={MASK}" if hides and has_value else LOGIN.sub(rf"\1{MASK}@", arg))
        else:
            shown.append(MASK if is_secret else LOGIN.sub(rf"\1{MASK}@", arg))
    return shown


def write_origin(run_dir: Path, config: TrainConfig, argv: Sequence[str], devices: Sequence[str]) -> None:
    """Write the files that make a run reproducible: config, provenance, git diff."""
    # Config
    write_atomically(run_dir / CONFIG_FILE, to_yaml(config))
    # Provenance
    commit, diff = _git_state()
    provenance: dict[str, Any] = {
        "command": masked(argv),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "devices": list(devices),
        "git_commit": commit,
        "git_dirty": bool(diff),
        "versions": versions(),
    }
    if first := read_provenance(run_dir):  # a resumed run keeps its first provenance
        provenance = {**first, "resumed": [*first.get("resumed", []), provenance]}
    write_atomically(run_dir / PROVENANCE_FILE, json.dumps(provenance, indent=2) + "\n")
    if diff:
        write_atomically(run_dir / "git.diff", diff)


def read_provenance(run_dir: Path) -> dict[str, Any]:
    """Return the provenance of a run; empty if there is none."""
    path = run_dir / PROVENANCE_FILE
    try:
        found = json.loads(read_file(run_dir, PROVENANCE_FILE))
        if _is_provenance(found):
            return found
        reason = "it contains no provenance"
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; repair or remove it") from error
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    if run_dir.is_file():
        emit("warning", text=f"{path}: cannot be read ({reason})")
        return {}
    aside = path.with_name(f"{path.name}.unreadable")
    path.replace(aside)
    text = f"{path}: cannot be read ({reason}); the file is now {aside.name}, and a new one is written"
    emit("warning", text=text)
    return {}


def _is_provenance(found: Any) -> bool:
    """Return whether every field that is read again has its type, in the first start and in each resumed one."""
    if not isinstance(found, dict):
        return False
    versions, resumed = found.get("versions") or {}, found.get("resumed", [])
    return (
        all(isinstance(found.get(name), str | None) for name in ("git_commit", "python"))
        and all(_is_list(found.get(name), str) for name in ("command", "devices"))
        and _is_list(found.get("grown"), dict)
        and isinstance(versions, dict)
        and all(isinstance(version, str | None) for version in versions.values())
        and isinstance(resumed, list)
        and all(map(_is_provenance, resumed))
    )


def _is_list(value: Any, kind: type) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(one, kind) for one in value))


def versions() -> dict[str, str | None]:
    """Return the versions of the packages that results depend on; None for one that is not installed."""
    return {name: _version(name) for name in _PACKAGES}


def _git_state() -> tuple[str | None, bytes]:
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return None, b""
    # Without the user's colors and diff tools, so that `git apply` can read the diff.
    return commit.decode().strip(), _git("diff", "--no-color", "--no-ext-diff", "--binary", "HEAD")


def _git(*args: str) -> bytes:
    try:
        done = subprocess.run(["git", *args], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout if done.returncode == 0 else b""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
