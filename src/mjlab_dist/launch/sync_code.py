"""Copy the project to the other machines of a run with rsync: ``--sync-code``. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import PreflightError, UserError
from mjlab_dist.launch.host_checks import describe_faults, other_hosts
from mjlab_dist.launch.hosts import CONNECT_TIMEOUT_S, in_thread
from mjlab_dist.messages import Listener

SKIPPED = {"__pycache__", "node_modules"}
"""Directories that are skipped if the project is not in git. Hidden directories, such as .venv, are skipped, too."""

MAX_BYTES = 10**9
"""Maximum size of a project. A larger project probably contains data; copying data before every start is too slow."""

RECORD = '"${{XDG_CACHE_HOME:-$HOME/.cache}}/mjlab_dist/synced/{name}"'
"""Path of the file on the other machine that stores the digests of the copied files. It is quoted for the shell. The
file's name is a digest of the project's path."""

READ_RECORD = f"cat {RECORD} 2>/dev/null || true"
"""Program that prints the file at :data:`RECORD`, the record of the last copy."""

READ_FILES = "cd {root} 2>/dev/null || exit 0; xargs -0 sha256sum -z -- 2>/dev/null || true"
"""Program that reads names of files, and prints the digests of those that exist."""

READ_GIT = """
cd {root} 2>/dev/null && [ -e .git ] && git rev-parse --quiet --verify HEAD >/dev/null 2>&1 || exit 0
git ls-files -z && printf '\\0' && git diff --name-only --no-renames -z HEAD
"""
"""Program that prints the files that git tracks, an empty name, and then the files that differ from the last commit."""

WRITE_RECORD = f'mkdir -p {{root}} && file={RECORD} && mkdir -p "${{{{file%/*}}}}" && cat > "$file"'
"""Program that creates the project's directory and stores its input as the record."""

REMOVE = "cd {root} && xargs -0 rm -f --"
"""Program that removes the files whose names it reads."""

Digests = Mapping[str, str]
"""SHA-256 of files, by their path in the project."""


class Changes(NamedTuple):
    """What a copy does on another machine, as paths in the project."""

    copied: list[str]
    """Files that differ on the other machine, or are missing there."""
    removed: list[str]
    """Files on the other machine that were copied before and are no longer part of the project."""
    lost: list[str]
    """Files to copy whose old contents on the other machine exist nowhere else."""


@dataclass(frozen=True)
class There:
    """The project on another machine."""

    recorded: Mapping[str, Set[str]]
    """For each file that was copied to that machine: its digest in the last complete copy, and its digest in a later
    copy that was interrupted, if there was one."""
    digests: Digests
    """Digests of the files on that machine."""
    committed: Set[str]
    """Files that do not differ from the last commit of the git repository on that machine."""

    def changes(self, project: Digests) -> Changes:
        """Return what a copy of the project would change.

        Args:
            project: The project on the launcher's machine.
        """
        copied = [name for name, digest in project.items() if self.digests.get(name) != digest]
        return Changes(
            copied=copied,
            removed=[name for name in self.recorded if name not in project and self._is_copy(name)],
            lost=[
                name
                for name in copied
                if name in self.digests and not self._is_copy(name) and name not in self.committed
            ],
        )

    def _is_copy(self, name: str) -> bool:
        """Return whether a file has not changed since it was copied to that machine."""
        return self.digests.get(name) in self.recorded.get(name, ())


def sync_code(config: TrainConfig, listen: Listener) -> None:
    """Copy the project to the same path on all other machines; do nothing without ``--sync-code``.

    Args:
        config: The run's config, with the names of all machines.
        listen: Receives a line for each machine on which files were copied or removed.

    Raises:
        UserError: If a program is missing, or the directory is not a project.
        PreflightError: If a machine cannot be reached, or has changes that exist nowhere else.
    """
    if config.sync_code is None:
        return
    others = other_hosts(config)
    if not others:
        return
    for program in ("rsync", "ssh"):
        if shutil.which(program) is None:
            raise UserError(f"--sync-code: needs {program}; install it on all machines")
    # The project on this machine
    root = find_project(Path.cwd())
    digests = {name: _digest(root / name) for name in list_files(root, Path(config.log_root))}
    # Copy to each machine in its own thread
    targets = [_Target(root, host.name, config.ssh_config) for host in others]
    copies = {
        target.host: in_thread(
            f"copy to {target.host}", lambda t=target: t.copy(digests, overwrite=config.sync_code == "overwrite")
        )
        for target in targets
    }
    faults: dict[str, str] = {}
    for host, copy in copies.items():
        try:
            changes = copy.result()
        except CopyError as error:
            faults[host] = str(error)
            continue
        counts = {"copied": len(changes.copied), "removed": len(changes.removed)}
        if done := [f"{number} {what}" for what, number in counts.items() if number]:
            listen({"kind": "status", "text": f"Files of {root} on {host}: {', '.join(done)}."})
    if faults:
        raise PreflightError(f"--sync-code: {describe_faults(faults)}")


def find_project(directory: Path) -> Path:
    """Return the project of a directory: its git repository, or else the nearest directory with a pyproject.toml.

    Args:
        directory: A directory in the project.

    Raises:
        UserError: If there is no such directory.
    """
    for folder in (directory, *directory.parents):
        if (folder / ".git").exists():
            return folder
    for folder in (directory, *directory.parents):
        if (folder / "pyproject.toml").is_file():
            return folder
    raise UserError(
        f"--sync-code: {directory} is in no git repository, and has no pyproject.toml; run `git init` there"
    )


def list_files(root: Path, log_root: Path) -> list[str]:
    """Return the files of a project: tracked by git, or new and not ignored.

    Without git, all files are returned, except for those in hidden directories and in :data:`SKIPPED`, and those whose
    names start with ``.env``.

    Args:
        root: Directory of the project.
        log_root: Directory of all runs, which is left out.

    Raises:
        UserError: If the files are too large.
    """
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
        done = subprocess.run(command, cwd=root, capture_output=True, check=False)
        if done.returncode != 0:
            raise UserError(f"--sync-code: {_last_line(done)}")
        names = os.fsdecode(done.stdout).split("\0")[:-1]
    else:
        names = [os.path.relpath(file, root) for file in _walk(root)]
    runs = log_root.resolve()
    found = [name for name in names if _is_file(root / name) and not (root / name).is_relative_to(runs)]
    size = sum((root / name).lstat().st_size for name in found)
    if size > MAX_BYTES:
        raise UserError(
            f"--sync-code: {root} has {size / 10**9:.1f} GB of files, but the maximum is {MAX_BYTES / 10**9:g} GB; "
            "copy the data yourself, and add it to .gitignore"
        )
    return sorted(found)


def _is_file(path: Path) -> bool:
    """Return whether a path is a file or a link, rather than a submodule or a deleted file that git still tracks."""
    return path.is_symlink() or path.is_file()


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        yield from (Path(folder, name) for name in files if not name.startswith(".env"))  # may have secrets


def _digest(file: Path) -> str:
    """Return the digest of a file, or of a link's target, as sha256sum prints it; an empty text for a broken link."""
    if not file.is_file():
        return ""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


class CopyError(Exception):
    """Reason why files could not be copied to a machine, with the fix."""


class _Target:
    """The project's directory on another machine."""

    def __init__(self, root: Path, host: str, ssh_config: str | None) -> None:
        self.host = host
        self._root = root
        file = [] if ssh_config is None else ["-F", ssh_config]
        options = ("BatchMode=yes", f"ConnectTimeout={CONNECT_TIMEOUT_S}", "ServerAliveInterval=5")
        self._ssh = ["ssh", *file, *(word for option in options for word in ("-o", option))]

    def copy(self, project: Digests, *, overwrite: bool) -> Changes:
        """Copy the project to the other machine, and remove copied files that are no longer in the project.

        Args:
            project: Digests of the files on this machine.
            overwrite: Whether to also overwrite changes that exist nowhere else.

        Raises:
            CopyError: If the copy fails. Also if changes that exist nowhere else would be lost and ``overwrite`` is
                False.
        """
        there = self._read(project)
        changes = there.changes(project)
        if changes.lost and not overwrite:
            more = f" and {len(changes.lost) - 1} more have" if len(changes.lost) > 1 else " has"
            raise CopyError(
                f"{self._root / changes.lost[0]}{more} changes that exist only there; commit them there, or use "
                "--sync-code overwrite"
            )
        # If rsync is interrupted, the other machine has the old or the new version of each file: record both digests
        both = {name: {own, *there.recorded.get(name, ())} for name, own in project.items()}
        self._run(WRITE_RECORD, _to_record({**there.recorded, **both}))
        if changes.copied:
            self._rsync(changes.copied)
        if changes.removed:
            self._run(REMOVE, _joined(changes.removed))
        self._run(WRITE_RECORD, _to_record({name: {own} for name, own in project.items()}))
        return changes

    def _read(self, project: Digests) -> There:
        """Return the state of the project on the other machine."""
        recorded: dict[str, set[str]] = {}
        for name, digest in _entries(self._run(READ_RECORD)):
            # Keep files that git now ignores: if the machines share a disk, removing them would delete the only copy
            if name in project or not os.path.lexists(self._root / name):
                recorded.setdefault(name, set()).add(digest)
        digests = dict(_entries(self._run(READ_FILES, _joined(sorted(project.keys() | recorded.keys())))))
        return There(recorded, digests, _committed(self._run(READ_GIT)))

    def _run(self, program: str, data: bytes = b"") -> bytes:
        """Run a shell program on the other machine, and return what it prints."""
        name = hashlib.sha256(os.fsencode(self._root)).hexdigest()[:32]
        command = program.format(name=name, root=shlex.quote(str(self._root)))
        return _run_here([*self._ssh, "--", self.host, f"sh -c {shlex.quote(command)}"], data)

    def _rsync(self, names: Sequence[str]) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        flags = ("--links", "--perms", "--times", "--ignore-times", "--protect-args", "--from0", "--files-from=-")
        places = (f"{self._root}/", f"{host}:{self._root}/")
        _run_here(["rsync", *flags, "--rsh", shlex.join(self._ssh), *places], _joined(names))


def _run_here(command: Sequence[str], data: bytes) -> bytes:
    """Run a program on this machine, and return what it prints.

    Raises:
        CopyError: If it fails.
    """
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode != 0:
        raise CopyError(f"{command[0]} failed ({_last_line(done)})")
    return done.stdout


def _last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {done.returncode}"


def _joined(names: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _split(joined: bytes) -> list[str]:
    return [os.fsdecode(name) for name in joined.split(b"\0") if name]


def _committed(printed: bytes) -> set[str]:
    """Return the files that do not differ from the last commit.

    Args:
        printed: Output of :data:`READ_GIT`.
    """
    names = os.fsdecode(printed).split("\0")
    end = names.index("")
    return set(names[:end]) - set(names[end:])


def _to_record(digests: Mapping[str, Set[str]]) -> bytes:
    """Return the content of a record: lines as sha256sum prints them."""
    return _joined([f"{digest}  {name}" for name, own in digests.items() for digest in sorted(own)])


def _entries(lines: bytes) -> Iterator[tuple[str, str]]:
    """Yield names and digests of lines that sha256sum has printed; broken links have an empty digest."""
    for line in _split(lines):
        digest, _, name = line.partition("  ")
        yield name, digest
