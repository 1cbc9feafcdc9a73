"""The lease of a run: only one launch (start of ``train``) at a time trains the run. Imports the standard library only.

``lease.json`` in the run directory names the launch that trains the run. To renew the lease, the launch updates the
modification time of this file every few seconds. Rank 0 also renews the lease, before it writes metrics. File locks
would not be enough, because many network file systems do not support them. The clocks of two machines are never
compared: a waiting launch only checks whether the file changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from mjlab_dist.errors import TakenOverError, UserError
from mjlab_dist.messages import emit
from mjlab_dist.runs.outputs import write_atomically
from mjlab_dist.runs.run_files import open_file

LEASE_FILE = "lease.json"

# Seconds between two renewals
RENEWED_S = 5.0

# Seconds without a renewal after which an owner on another machine is considered dead
EXPIRED_S = 60.0

# Seconds between two checks of the lease of another launch
POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class _Owner:
    """The process that trains a run, as ``lease.json`` describes it."""

    # Unique name of the lease
    token: str
    # Name of the process's machine
    host: str
    # Process ID on that machine
    pid: int
    # Start time of the process, in clock ticks since the machine was booted; None if the system has no /proc
    started: int | None
    # ID of the machine's current boot, and of the container's process namespace. Running processes with the same value
    # have different process IDs. None if the system has no /proc.
    system: str | None

    @property
    def is_alive(self) -> bool | None:
        """Whether the process exists (running or stopped); None if this process cannot check it."""
        if self.system is None or self.system != _system():
            return None
        if (running := _process(self.pid)) is not None:
            return running.state not in "ZX" and running.started == self.started  # the ID may be reused
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return None  # not known: the system hides the processes of other users


class _Look(NamedTuple):
    """Contents of a lease file at one time."""

    # The owner; None if the file contains no lease, for example because it is being written
    owner: _Owner | None
    # Modification time, by the clock of the file system
    renewed_ns: int
    # The file that a launch creates to take over this lease
    claim: Path


@dataclass(kw_only=True)
class Lease:
    """A lease that this launch has acquired. Rank 0 receives a copy if it runs in a separate process."""

    run_dir: Path
    # Name of the lease
    token: str
    _renewed_at: float = field(default=0.0, repr=False)

    def renew(self) -> None:
        """Check that no other launch has taken over the run, and renew the lease if a renewal is due.

        If the file system does not answer, this method raises no error, but the next write raises one.

        Raises:
            TakenOverError: If another launch has taken over the run. This launch must then write nothing more.
        """
        path = self.run_dir / LEASE_FILE
        with contextlib.suppress(OSError):
            look = _look_at(path)
            if look is None:
                raise TakenOverError(
                    f"{path}: was deleted, so another launch may train this run; resume the run with --resume"
                )
            if look.owner is not None and look.owner.token != self.token:
                raise TakenOverError(
                    f"process {look.owner.pid} on {look.owner.host} has taken over {self.run_dir}, because this launch "
                    f"did not renew {LEASE_FILE} for {EXPIRED_S:g} s (was it suspended?); this launch writes nothing "
                    "more"
                )
            now = time.monotonic()
            if now - self._renewed_at >= RENEWED_S:
                os.utime(path)
                self._renewed_at = now

    def release(self) -> None:
        """Remove the lease file, unless another launch has taken over the run."""
        path = self.run_dir / LEASE_FILE
        with contextlib.suppress(OSError):
            look = _look_at(path)
            if look is not None and look.owner is not None and look.owner.token == self.token:
                path.unlink()


@contextlib.contextmanager
def leased(run_dir: Path) -> Iterator[Lease]:
    """Hold the lease of a run until the context ends."""
    lease = acquire(run_dir)
    ended = threading.Event()

    def keep() -> None:
        with contextlib.suppress(TakenOverError):  # rank 0 also raises this error, before it writes
            while not ended.wait(RENEWED_S):
                lease.renew()

    keeper = threading.Thread(target=keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield lease
    finally:
        ended.set()
        keeper.join(timeout=RENEWED_S)  # a network file system may not answer
        lease.release()


def acquire(
    run_dir: Path,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Lease:
    """Acquire the lease of a run.

    An owner that was killed is replaced: at once, or after :data:`EXPIRED_S` if this process cannot check whether the
    owner is still running.
    """
    own = _this_process()
    path = run_dir / LEASE_FILE
    first: _Look | None = None
    since = 0.0
    try:
        while not _create(path, own):
            look = _look_at(path)
            if look is None:
                continue  # the other launch has just released it
            if look.owner == own:
                break
            # Alive: the process is running, or the file has changed
            is_alive = None if look.owner is None else look.owner.is_alive
            if is_alive or (first is not None and look != first):
                raise _is_training(run_dir, look.owner)
            # Dead: the process has ended, or the file has not changed for EXPIRED_S
            if is_alive is False or (first is not None and now() - since >= EXPIRED_S):
                if _take_over(path, look, own):
                    break
                continue
            # Unknown: wait, and check again
            if first is None:
                first, since = look, now()
                who = f"{path}: line 1 is not a lease, so another launch" if look.owner is None else _named(look.owner)
                text = f"{who} may be training {run_dir}; waiting up to {EXPIRED_S:g} s to find out"
                emit("status", text=text)
            sleep(POLL_S)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; choose a directory that you can write to") from error
    return Lease(run_dir=run_dir, token=own.token)


def refuse_running(run_dir: Path) -> None:
    """Raise if a launch whose process is visible from here trains the run."""
    look = _look_at(run_dir / LEASE_FILE)
    if look is not None and look.owner is not None and look.owner.is_alive:
        raise _is_training(run_dir, look.owner)


def _is_training(run_dir: Path, owner: _Owner | None) -> UserError:
    return UserError(f"--resume {run_dir}: {_named(owner)} is training this run; stop it, or wait until it ends")


# Whether a launch is training a run. lost: it was killed, or stopped renewing the lease; unknown: not known yet.
Held = Literal["yes", "no", "lost", "unknown"]


class LeaseWatch:
    """Determines whether a launch trains a run, by checking its lease repeatedly. It writes nothing."""

    def __init__(self, run_dir: Path, now: Callable[[], float] = time.monotonic) -> None:
        """Start without reading the lease."""
        self._path = run_dir / LEASE_FILE
        self._now = now
        self._last: _Look | None = None
        self._since = 0.0
        self._is_renewed = False

    def look(self) -> Held:
        """Read the lease and return the state of its launch.

        If this process cannot check whether the owner runs, the owner counts as alive if the file changes. An owner
        whose file has not changed for :data:`EXPIRED_S` is lost even if its process exists: the directory is then a
        copy, or the launch is suspended.
        """
        try:
            look = _look_at(self._path)
        except OSError:
            return "unknown"  # a network file system that does not answer
        if look is None:
            self._last, self._is_renewed = None, False
            return "no"
        if look != self._last:
            self._is_renewed = self._last is not None
            self._last, self._since = look, self._now()
        is_alive = None if look.owner is None else look.owner.is_alive
        if is_alive is False or self._now() - self._since >= EXPIRED_S:
            return "lost"
        return "yes" if is_alive or self._is_renewed else "unknown"


class _Process(NamedTuple):
    """A process, as ``/proc/<pid>/stat`` describes it."""

    # State, one letter
    state: str
    # As in _Owner
    started: int


def _process(pid: int) -> _Process | None:
    """Describe a process; None if it has ended, or the system hides it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return _Process(fields[0], int(fields[19]))


def _system() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _this_process() -> _Owner:
    running = _process(os.getpid())
    return _Owner(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        started=running and running.started,
        system=_system(),
    )


def _named(owner: _Owner | None) -> str:
    return "another launch" if owner is None else f"process {owner.pid} on {owner.host}"


def _create(path: Path, owner: _Owner) -> bool:
    """Create a lease file; return False if there already is one."""
    temporary = path.with_name(f".{owner.token}.tmp")
    text = json.dumps(dataclasses.asdict(owner)) + "\n"
    try:
        temporary.write_text(text)
        path.hardlink_to(temporary)  # the file has its contents from the start
    except FileExistsError:
        return False
    except OSError:
        # A file system without hard links
        try:
            with path.open("x") as file:
                file.write(text)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _take_over(path: Path, look: _Look, owner: _Owner) -> bool:
    """Take over the lease of a dead launch; return False if another launch does so.

    Only one launch can create the claim on this lease. The claim names the new owner, also if it is killed here.
    """
    if not _create(look.claim, owner):
        return False
    # Before the claim was created, another launch may have taken over the lease and removed its own claim
    now = _look_at(path)
    if now is None or now.owner != owner:
        look.claim.unlink()
        return False
    write_atomically(path, look.claim.read_bytes())
    for claim in path.parent.glob(f".{path.name}.*.claim"):
        claim.unlink(missing_ok=True)
    return True


def _look_at(path: Path) -> _Look | None:
    """Read a lease; return None if there is none. If a launch has claimed the lease, return the claim."""
    try:
        # Network file systems cache the properties of files, but update them when a file is opened.
        with open_file(path, os.O_NOFOLLOW) as file:
            renewed_ns, text = os.fstat(file.fileno()).st_mtime_ns, file.read()
    except FileNotFoundError:
        return None
    claim = path.with_name(f".{LEASE_FILE}.{hashlib.sha256(text).hexdigest()[:32]}.claim")
    return _look_at(claim) or _Look(_owner_of(text), renewed_ns, claim)


def _owner_of(text: bytes) -> _Owner | None:
    """Return the owner that a lease file names; None if the file contains something else."""
    try:
        fields = json.loads(text)
        owner = _Owner(**{field.name: fields[field.name] for field in dataclasses.fields(_Owner)})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    is_plain = (
        isinstance(owner.token, str)
        and isinstance(owner.host, str)
        and owner.host.isprintable()
        and type(owner.pid) is int
        and 0 < owner.pid < 1 << 31
        and isinstance(owner.started, int | None)
        and isinstance(owner.system, str | None)
    )
    return owner if is_plain else None
