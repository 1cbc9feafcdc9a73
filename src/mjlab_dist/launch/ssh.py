"""Make SSH connections verify host keys as OpenSSH does; Fabric itself accepts any key. Imports no torch."""

from __future__ import annotations

import base64
import functools
import getpass
import hmac
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fabric
import paramiko
from paramiko.config import SSH_PORT

from mjlab_dist.errors import PreflightError

# Default of UserKnownHostsFile in SSH's config file
USER_FILES = "~/.ssh/known_hosts ~/.ssh/known_hosts2"

# Default of GlobalKnownHostsFile
GLOBAL_FILES = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"

# Marker of a key that must not be accepted
REVOKED = "@revoked"

# Type of the key that a signature algorithm uses, if the type and the algorithm have different names
RSA_SIGNATURES = {"rsa-sha2-512": "ssh-rsa", "rsa-sha2-256": "ssh-rsa"}


class HostKeyError(PreflightError):
    """The key of a host is unknown, differs from the known one, or is revoked.

    The message is one line with the key and the command that adds or replaces it.
    """


@dataclass(frozen=True)
class KnownKey:
    """A line of a known_hosts file."""

    # Names of hosts, as patterns, or a hash of a name
    names: str
    # @revoked, @cert-authority, or empty
    marker: str
    # Type of the key, such as ssh-ed25519
    kind: str
    key: bytes
    file: Path
    # Number of the line, from 1
    number: int


def verifying(connection: fabric.Connection, ssh_config: str | None) -> fabric.Connection:
    """Make a connection refuse unknown and changed host keys, including those of jump hosts.

    These options of SSH's config file apply, as in OpenSSH: StrictHostKeyChecking, UserKnownHostsFile,
    GlobalKnownHostsFile, HostKeyAlias and HashKnownHosts. If OpenSSH would ask the user, the key is refused.
    """
    step: object = connection
    while isinstance(step, fabric.Connection):
        step.client = _Client(_HostKeys(step, ssh_config))
        step = step.gateway
    return connection


class _Client(paramiko.SSHClient):
    """A client without known hosts, so that paramiko passes every key to :class:`_HostKeys`."""

    def __init__(self, keys: _HostKeys) -> None:
        super().__init__()
        self._keys = keys
        self.set_missing_host_key_policy(keys)

    def connect(self, *args: Any, **kwargs: Any) -> Any:
        return super().connect(*args, **kwargs, transport_factory=self._prepared)

    def _prepared(self, sock: Any, **kwargs: Any) -> paramiko.Transport:
        """Return a transport that asks for known types of keys first, because a host may have keys of several types."""
        transport, known = paramiko.Transport(sock, **kwargs), self._keys.kinds()
        options = transport.get_security_options()
        options.key_types = sorted(options.key_types, key=lambda name: RSA_SIGNATURES.get(name, name) not in known)
        return transport


class _HostKeys(paramiko.MissingHostKeyPolicy):
    """Decides whether the key of a host is accepted."""

    def __init__(self, connection: fabric.Connection, ssh_config: str | None) -> None:
        options, given = connection.ssh_config, connection.original_host
        assert options is not None
        assert connection.host is not None
        assert given is not None
        host, port = connection.host.lower(), connection.port or SSH_PORT
        alias = options.get("hostkeyalias")
        # Names of the host in known_hosts files. Like OpenSSH, use the name without the port if no line has the port.
        self._names = (alias or host,) if alias or port == SSH_PORT else (f"[{host}]:{port}", host)
        self._strict = options.get("stricthostkeychecking", "ask").lower()
        self._hashes = options.get("hashknownhosts", "no").lower() == "yes"
        # known_hosts files
        tokens = {
            "%": "%",
            "d": str(Path.home()),
            "h": host,
            "k": alias or given,
            "n": given,
            "p": str(port),
            "r": connection.user,
            "u": getpass.getuser(),
        }
        self._user_files = _files(options.get("userknownhostsfile", USER_FILES), tokens)
        self._global_files = _files(options.get("globalknownhostsfile", GLOBAL_FILES), tokens)
        # Command that lets the user accept the key
        asks = [] if self._strict in {"ask", "accept-new"} else ["-o", "StrictHostKeyChecking=ask"]
        file = [] if ssh_config is None else ["-F", ssh_config]
        self._command = shlex.join(["ssh", *file, *asks, given])

    def kinds(self) -> set[str]:
        """Return the types of the host's known keys."""
        return {known.kind for known in self._known()[1]}

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        name, shown = self._names[0], f"{key.get_name()} {key.fingerprint}"
        for known in self._lines(REVOKED, self._names):
            if known.key == key.asbytes():
                raise HostKeyError(
                    f"the SSH host key of {name} is revoked ({shown}, in {known.file} line {known.number}); give the "
                    "host another key"
                )
        name, found = self._known()
        if any(known.key == key.asbytes() for known in found) or self._strict in {"no", "off", "false"}:
            return
        if found:
            remove = shlex.join(["ssh-keygen", "-f", str(found[0].file), "-R", name])
            raise HostKeyError(
                f"the SSH host key of {name} has changed ({shown} is not the key in {found[0].file} line "
                f"{found[0].number}), so this may be another machine; if the host has a new key, run `{remove}` and "
                f"`{self._command}`"
            )
        if self._strict != "accept-new":
            raise HostKeyError(
                f"the SSH host key of {name} is unknown ({shown}); run `{self._command}` and accept the key if it "
                "is really the host's key"
            )
        self._remember(key)

    def _known(self) -> tuple[str, list[KnownKey]]:
        """Return the name under which the host's keys are stored, and these keys."""
        for name in self._names:
            if found := list(self._lines("", [name])):
                return name, found
        return self._names[0], []

    def _lines(self, marker: str, names: Sequence[str]) -> Iterator[KnownKey]:
        """Yield the lines of all files that have the given marker and match at least one of the names."""
        for file in (*self._user_files, *self._global_files):
            for line in _read(file):
                if line.marker == marker and any(_matches(line.names, name) for name in names):
                    yield line

    def _remember(self, key: paramiko.PKey) -> None:
        """Add the key to the user's first known_hosts file."""
        for file in self._user_files[:1]:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = paramiko.HostKeys.hash_host(self._names[0]) if self._hashes else self._names[0]
            with open(file, "a+b", opener=functools.partial(os.open, mode=0o600)) as lines:
                lines.seek(max(0, lines.seek(0, os.SEEK_END) - 1))
                end = b"" if lines.read() in {b"", b"\n"} else b"\n"
                lines.write(end + f"{name} {key.get_name()} {key.get_base64()}\n".encode())


def _files(value: str, tokens: dict[str, str]) -> list[Path]:
    """Return the files that an option of SSH's config file lists."""
    names = (re.sub("%(.)", lambda match: tokens.get(match[1], match[0]), name) for name in shlex.split(value))
    # Unlike pathlib, this leaves ~user unchanged if there is no such user.
    return [Path(os.path.expanduser(name)) for name in names if name.lower() != "none"]  # noqa: PTH111


def _read(file: Path) -> Iterator[KnownKey]:
    """Yield the lines of a known_hosts file that contain a key."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        marker = fields.pop(0) if line.startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        names, kind, key = fields[:3]
        try:
            yield KnownKey(names, marker, kind, base64.b64decode(key), file, number)
        except ValueError:
            continue


def _matches(names: str, name: str) -> bool:
    """Return whether the first field of a line names a host: by patterns, or by a hash of its name."""
    if names.startswith("|"):
        try:
            _, version, salt, digest = names.split("|")
            found = hmac.digest(base64.b64decode(salt), name.encode(), "sha1")
            return version == "1" and hmac.compare_digest(found, base64.b64decode(digest))
        except ValueError:
            return False
    return _matches_any(names.lower().split(","), name.lower())


def _matches_any(patterns: Sequence[str], name: str) -> bool:
    """Return whether a name matches a pattern with ``*`` and ``?``, and no pattern that starts with ``!``."""
    found = [pattern for pattern in patterns if _expression(pattern.removeprefix("!")).fullmatch(name)]
    return bool(found) and not any(pattern.startswith("!") for pattern in found)


def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern))
