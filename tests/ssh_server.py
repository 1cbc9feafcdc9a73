"""OpenSSH's server as another host. It runs commands on this machine as this user, and has its own port.

A host whose name resolves to this machine needs no SSH. Therefore, tests use addresses that are reserved for
documentation as names of hosts, and redirect them to the server in SSH's config file: ``host_entry("192.0.2.7", ...)``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from processes import send_all

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

# Runs a command instead of the server: records it, and replaces paths to simulate a host whose files differ
SESSION = """
import json, os, sys
with open(sys.argv[1]) as file:
    host = json.load(file)
command = os.environ["SSH_ORIGINAL_COMMAND"]
for here, there in host["paths"].items():
    command = command.replace(here, there)
with open(sys.argv[1] + ".commands", "a") as file:
    file.write(command + "\\0")
os.execve("/bin/sh", ["sh", "-c", command], host["environ"])
"""


def make_key(file: Path) -> Path:
    """Write a pair of SSH keys, and return the path of the private key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    return file


def host_entry(host: str, port: int, key_file: Path) -> str:
    """Return an entry of an SSH config file that redirects a host's name to a server on this machine."""
    return f"Host {host}\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {key_file}\n"


class SshServer:
    """A host that can be switched off.

    Args:
        directory: An empty directory for the files of the server.
        user_key: The private key of the user that the server accepts.
        paths: Replacements for paths in commands.
    """

    def __init__(self, directory: Path, user_key: Path, *, paths: Mapping[str, str] | None = None) -> None:
        if SSHD is None:
            pytest.skip("needs OpenSSH's server, the program sshd")
        self._session = directory / "session.json"
        self.set_paths(paths or {})
        key = make_key(directory / "host_key")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.public_key = key.with_suffix(".pub").read_text().rsplit(maxsplit=1)[0]
        script = directory / "session.py"
        script.write_text(SESSION)
        options = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": key,
            "AuthorizedKeysFile": f"{user_key}.pub",
            "ForceCommand": f"{sys.executable} -I -S {script} {self._session}",
            "StrictModes": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "MaxStartups": 100,
            "SetEnv": f"HOME={directory}",  # whose shell has no start-up files, which may be slow or wait for a lock
        }
        if os.geteuid() == 0:  # the server's own process without privileges needs this directory
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config = directory / "sshd_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        with (directory / "log").open("w") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stdin=subprocess.DEVNULL, stderr=log)

    def is_on(self) -> bool:
        """Return whether the server accepts connections."""
        assert self.process.poll() is None, "the server has ended: see the file log"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def switch_off(self) -> None:
        """End connections and commands."""
        server = psutil.Process(self.process.pid)
        send_all([server, *server.children(recursive=True)], signal.SIGKILL)
        self.process.wait()

    def set_paths(self, paths: Mapping[str, str]) -> None:
        """Replace paths in later commands."""
        inherited = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
        environ = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), **inherited}
        self._session.write_text(json.dumps({"paths": dict(paths), "environ": environ}))

    @property
    def commands(self) -> list[str]:
        """The commands that the host has run, after the replacement of paths."""
        file = Path(f"{self._session}.commands")
        return file.read_text().split("\0")[:-1] if file.exists() else []


Add = Callable[..., SshServer]
"""Function that switches a host on: see the fixture add_host."""
