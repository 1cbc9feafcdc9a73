"""An SSH server for tests. It runs commands on this machine as this user, and has its own port.

torchrunx uses SSH only for a host whose name does not resolve to this machine. Therefore, tests use addresses that are
reserved for documentation as names of hosts, and redirect them to the server in the SSH config:
``host_entry("192.0.2.7", server.port, key_file)``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import paramiko
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED


def known_host(port: int, key: paramiko.PKey) -> str:
    """Return a line of a known_hosts file for a server on this machine."""
    return f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n"


def host_entry(host: str, port: int, key_file: Path) -> str:
    """Return an entry of an SSH config file that redirects a host's name to a server on this machine."""
    return f"Host {host}\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {key_file}\n"


class SshServer:
    """Like ``sshd``: a command runs in a shell with a small environment, and continues if its client disconnects.

    Args:
        user_key: The key that the server accepts.
        address: Address to listen on.
        port: Port to listen on; 0 for any free port.
        paths: Replacements for paths in commands, to simulate a host whose files differ from those of this machine.
        environ: The environment of commands.
        host_keys: The keys of the host, one per type; None generates one.
    """

    def __init__(
        self,
        user_key: paramiko.PKey,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        paths: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        host_keys: Sequence[paramiko.PKey] | None = None,
    ) -> None:
        self.user_key = user_key
        self.paths = dict(paths or {})
        coverage = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
        self.environ = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), **coverage, **(environ or {})}
        self.host_keys: list[paramiko.PKey] = list(host_keys or [paramiko.ECDSAKey.generate()])
        self.commands: list[str] = []
        self.input: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self._transports: list[paramiko.Transport] = []
        self._listener = socket.create_server((address, port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Switch the host off: connections and commands end."""
        self._listener.shutdown(socket.SHUT_RDWR)  # unlike close, this wakes a thread that waits in accept
        self._listener.close()
        for transport in self._transports:
            transport.close()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                connection, _ = self._listener.accept()
                transport = paramiko.Transport(connection)
                self._transports.append(transport)
                for key in self.host_keys:
                    transport.add_server_key(key)
                # With an event, start_server does not wait for the handshake.
                transport.start_server(event=threading.Event(), server=_Session(self, transport))

    def run(self, command: str, channel: paramiko.Channel, transport: paramiko.Transport) -> None:
        """Run a command. Send its output, and finally its exit code."""
        for here, there in self.paths.items():
            command = command.replace(here, there)
        self.commands.append(command)
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        # Wait for an answer: it shows that the client has noticed the start of its command. Only then send output.
        transport.global_request("are you there")
        assert process.stdin
        assert process.stdout
        assert process.stderr
        threading.Thread(target=_receive, args=(channel, process.stdin, self.input), daemon=True).start()
        with process.stdout as out, process.stderr as err:
            senders = [
                threading.Thread(target=_send, args=(out.fileno(), channel.sendall), daemon=True),
                threading.Thread(target=_send, args=(err.fileno(), channel.sendall_stderr), daemon=True),
            ]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
        code = process.wait()
        with contextlib.suppress(OSError, EOFError):
            channel.send_exit_status(code if code >= 0 else 128 - code)
            channel.close()


def _receive(channel: paramiko.Channel, stdin: IO[bytes], record: list[str]) -> None:
    with contextlib.suppress(OSError, EOFError), stdin:
        while data := channel.recv(65536):
            record.append(data.decode())
            stdin.write(data)
            stdin.flush()


def _send(fd: int, send: Callable[[bytes], object]) -> None:
    with contextlib.suppress(OSError, EOFError):  # the client no longer reads
        while data := os.read(fd, 65536):
            send(data)


class _Session(paramiko.ServerInterface):
    """Permissions of a client: it may use one key and any user name, and run commands."""

    def __init__(self, server: SshServer, transport: paramiko.Transport) -> None:
        self.server = server
        self.transport = transport

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        return AUTH_SUCCESSFUL if key == self.server.user_key else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self.server.run, args=(command.decode(), channel, self.transport), daemon=True).start()
        return True


Add = Callable[..., SshServer]
"""Function that switches a host on: see the fixture add_host."""
