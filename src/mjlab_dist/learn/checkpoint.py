"""Checkpoints: written in a thread, pruned by age and return, and read without running code.

A reader never sees a checkpoint that is incomplete. The content of a file, which may be damaged or come from someone
else, is checked before anything is believed.
"""

from __future__ import annotations

import collections
import io
import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from mjlab_dist.config import CheckpointConfig
from mjlab_dist.errors import UserError, printable
from mjlab_dist.messages import emit
from mjlab_dist.runs.lease import Lease
from mjlab_dist.runs.pack_file import CHECKPOINT, MANIFEST, is_pack, read_manifest, read_part
from mjlab_dist.runs.run_dir import (
    BEST_LINK,
    CHECKPOINTS_DIR,
    LATEST_LINK,
    METRICS_FILE,
    checkpoint_path,
    follow_link,
    list_checkpoints,
    named_iteration,
)
from mjlab_dist.runs.run_files import explaining, has_file, parse_row, read_file

# Counters of a run, with their types. They are also columns of metrics.jsonl.
COUNTERS: Mapping[str, tuple[type, ...]] = {"total_steps": (int,), "elapsed_s": (int, float)}

# Entries that resuming a run requires, with their types; a dot separates the names of nested entries
LEARNER: Mapping[str, type] = {
    "iter": int,
    "actor_state_dict": dict,
    "critic_state_dict": dict,
    "optimizer_state_dict.state": dict,
    "optimizer_state_dict.param_groups": list,
}

_PLAIN = (bool, int, float, str, bytes, type(None))

_TEMPORARY = re.compile(r"\.(model_\d+|replay_\d+|latest|best)\.pt\.\d+\.tmp")

_REPLAY = re.compile(r"replay_\d+\.pt")

# First bytes of a zip file
_ZIP = b"PK\x03\x04"


class UnreadableError(ValueError):
    """A file cannot be read; the message is the reason."""


def check_entries(content: dict[str, Any], needed: Mapping[str, type]) -> None:
    """Raise if a checkpoint lacks an entry, or its value has the wrong type."""
    for name, kind in needed.items():
        value: Any = content
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            raise UnreadableError(f"it has no {name}" if value is None else f"{name} is a {type(value).__name__}")


def check_iteration(content: dict[str, Any], path: Path | None) -> None:
    """Raise if a checkpoint's own iteration, if it has one, is not a number of iterations or contradicts its file."""
    if "iter" not in content:
        return  # only a policy
    found = content["iter"]
    if not _is_count(found, (int,)):
        raise UnreadableError(f"its iter is {_shown(found)}, not a number of iterations")
    claims: dict[str, object] = {}
    if path is not None and is_pack(path):
        manifest = read_manifest(path)
        claims = {"iteration": manifest.get("iteration"), "checkpoint": named_iteration(f"{manifest['checkpoint']}.pt")}
        claims = {f"{name} in {MANIFEST}": claimed for name, claimed in claims.items()}
    elif path is not None:
        claims = {"its name": named_iteration(follow_link(path).name)}
    for what, claimed in claims.items():
        if claimed is not None and claimed != found:
            raise UnreadableError(f"its iter is {_shown(found)}, but {what} says {_shown(claimed)}")


def check_counters(content: dict[str, Any], iteration: int, rows: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise if the counters of a checkpoint, if it has any, have wrong types or contradict the run's metrics."""
    counters = content.get("counters")
    if counters is None:
        return  # unmodified rsl_rl has none
    if not isinstance(counters, dict):
        raise UnreadableError(f"its counters are {_shown(counters)}")
    # Types
    for name, kinds in COUNTERS.items():
        if not _is_count(counters.get(name), kinds):
            raise UnreadableError(f"its counter {name} is {_shown(counters.get(name))}, not a number of 0 or more")
    episodes = counters.get("episodes")
    rows_of_numbers = isinstance(episodes, list) and all(
        isinstance(sums, list) and sums and all(type(number) in (int, float) for number in sums) for sums in episodes
    )
    if not rows_of_numbers:
        raise UnreadableError(f"its counter episodes is {_shown(episodes)}, not a table of numbers")
    # Metrics: the row is written just before the checkpoint
    newest = max((number for number in rows if number <= iteration), default=0)
    for name in COUNTERS:
        found, written = counters[name], rows.get(newest, {}).get(name)
        if type(written) not in (int, float):
            continue
        if found < written or (found > written and name == "total_steps" and newest == iteration):
            raise UnreadableError(
                f"its counter {name} is {_shown(found)}, but {METRICS_FILE} has {_shown(written)} in iteration {newest}"
            )


def read_rows(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Return the rows of metrics.jsonl by iteration. Skip damaged lines, which a kill can leave."""
    lines = read_file(run_dir, METRICS_FILE).splitlines() if has_file(run_dir, METRICS_FILE) else []
    return {row["iteration"]: row for line in lines if (row := parse_row(line)) is not None}


def _is_count(value: object, kinds: tuple[type, ...]) -> bool:
    return type(value) in kinds and 0 <= value < 2**63  # pyright: ignore[reportOperatorIssue]


def _shown(value: object) -> str:
    """Return a value of a file for a message, in one line of a few characters."""
    is_plain = value is None or isinstance(value, int | float | str)
    return printable(repr(value))[:40] if is_plain else f"a {type(value).__name__}"


class CheckpointStore:
    """The checkpoints of a run. Only rank 0 writes them, in a thread; it also links to the newest and the best one.

    If the process is killed at any time, the newest checkpoint in the directory is complete. The next store removes
    the temporary files that the killed process left.

    Attributes:
        receive: Called with the path and the iteration of each new checkpoint, before the checkpoint can be pruned.
            The call is made in the thread that saves, not in the one that writes.
    """

    def __init__(self, run_dir: Path, config: CheckpointConfig, lease: Lease | None = None) -> None:
        """Remove the temporary files, and update the links, that a killed process may have left."""
        self._run_dir = run_dir
        self._lease = lease
        self._config = config
        self._directory = run_dir / CHECKPOINTS_DIR
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        returns = {n: row.get("mean_return") for n, row in read_rows(run_dir).items()}
        self._returns = {n: mean for n, mean in returns.items() if mean is not None and math.isfinite(mean)}
        self._written: collections.deque[tuple[int, Path]] = collections.deque()
        self.receive: Callable[[Path, int], None] = lambda _path, _iteration: None
        self.check()
        with explaining(self._run_dir, self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            for path in self._directory.iterdir():
                if _TEMPORARY.fullmatch(path.name):
                    path.unlink()
            self._link()

    def save(
        self,
        iteration: int,
        content: Mapping[str, Any],
        mean_return: float | None,
        replay: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Copy a checkpoint and write it in the thread. This waits for the copy and for the previous checkpoint.

        If the previous one could not be written, this raises its error, and this one is not written either. A replay is
        a file of its own, because it is large and only resuming needs it; only the newest one is kept.
        """
        self.wait()
        self._writing = self._pool.submit(self._write, iteration, snapshot(content), mean_return, snapshot(replay))

    def check(self) -> None:
        """Raise if another launch has taken over the run, or if the thread has failed to write a checkpoint.

        Call this regularly: it also renews the lease. It does not wait for the thread.

        Raises:
            OSError: If a checkpoint could not be written. Earlier ones are intact. The message names the fix.
            TakenOverError: If another launch has taken over this run.
        """
        if self._lease is not None:
            self._lease.renew()
        if self._writing is not None and self._writing.done():
            self.wait()

    def close(self) -> None:
        """Wait until all checkpoints are on disk, and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def read_newest(self, needed: Mapping[str, type] | None = None) -> tuple[Path, bytes] | None:
        """Find the newest checkpoint that can be read. All ranks resume from it.

        Newer checkpoints that cannot be read, or that contradict their names or the run's metrics, are renamed, with a
        warning. The method also removes old checkpoints that the previous writer had no time to remove.
        """
        assert self._writing is None, "read before anything is written"
        # Newest first, until one can be read
        refused: dict[Path, UnreadableError] = {}
        rows = read_rows(self._run_dir)
        for iteration, path in reversed(list_checkpoints(self._run_dir).items()):
            try:
                data = _read(path)
                content = _unpack(data, "cpu")
                check_entries(content, needed or {})
                check_iteration(content, path)
                check_counters(content, iteration, rows)
            except UnreadableError as error:
                refused[path] = error
                continue
            # Rename unreadable files. Then link and prune, which the previous writer may not have finished
            for unreadable, error in refused.items():
                aside = unreadable.with_name(f"{unreadable.name}.unreadable")
                with explaining(self._run_dir, unreadable):
                    unreadable.rename(aside)
                emit(
                    "warning",
                    text=f"checkpoint {unreadable}: cannot be read ({error}); using {path.name} instead; "
                    f"the unreadable file is now {aside.name}",
                )
            with explaining(self._run_dir, self._directory):
                self._link()
                self._prune(path)
            return path, data
        # None can be read
        if refused:
            path, error = next(iter(refused.items()))
            raise UserError(
                f"--resume {self._run_dir}: none of its {len(refused)} checkpoints can be read ({path.name}: {error}); "
                "restore one from a backup, or start a new run"
            )
        return None

    def read_replay(self, iteration: int) -> bytes | None:
        """Return the replay of a checkpoint; None, with a warning, if it cannot be read; None if there is none."""
        path = self._replay_path(iteration)
        if not path.exists():
            return None
        try:
            data = _read(path)
            _unpack(data, "cpu")
        except UnreadableError as error:
            emit("warning", text=f"replay {path}: cannot be read ({error}); the run fills its replay again")
            return None
        return data

    def _replay_path(self, iteration: int) -> Path:
        return self._directory / f"replay_{iteration}.pt"

    def _write(
        self, iteration: int, content: dict[str, Any], mean_return: float | None, replay: dict[str, torch.Tensor] | None
    ) -> None:
        path = checkpoint_path(self._run_dir, iteration)
        with explaining(self._run_dir, path):
            if replay:
                save(self._replay_path(iteration), replay)
            save(path, content)
            for old in self._directory.iterdir():
                if _REPLAY.fullmatch(old.name) and old != self._replay_path(iteration):
                    old.unlink()
            if mean_return is not None and math.isfinite(mean_return):
                self._returns[iteration] = mean_return
            else:
                self._returns.pop(iteration, None)
            self._link()
            self._prune(path)
        self._written.append((iteration, path))

    def wait(self) -> None:
        """Wait for the checkpoint that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
        self.pass_on()

    def pass_on(self) -> None:
        """Call :attr:`receive` for the checkpoints written since the last call, oldest first."""
        while self._written:
            iteration, path = self._written.popleft()
            self.receive(path, iteration)

    def _best(self, found: Mapping[int, Path]) -> list[Path]:
        """Return the checkpoints to keep for their mean return, best first, and newest first if returns are equal."""
        known = sorted((self._returns[n], n) for n in found if n in self._returns)
        return [found[n] for _, n in reversed(known)][: self._config.keep_best]

    def _link(self) -> None:
        found = list_checkpoints(self._run_dir)
        best = self._best(found)
        latest_link, best_link = self._directory / LATEST_LINK, self._directory / BEST_LINK
        if found:
            _point(latest_link, found[max(found)])
        else:
            latest_link.unlink(missing_ok=True)
        if best:
            _point(best_link, best[0])
        elif not self._config.keep_best or not best_link.exists():
            # The target is gone, or no best checkpoint is kept. If only the returns are unknown, the link stays.
            best_link.unlink(missing_ok=True)

    def _prune(self, needed: Path) -> None:
        if not self._config.keep_last:
            return
        found = list_checkpoints(self._run_dir)
        newest = list(found.values())[-self._config.keep_last :]
        kept = {needed, *newest, *self._best(found), follow_link(self._directory / BEST_LINK)}
        for path in found.values():
            if path not in kept:
                path.unlink()


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint under a temporary name, sync it, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # "x" follows no link that somebody else may have put there
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load(source: Path | bytes, device: str) -> dict[str, Any]:
    """Read a checkpoint."""
    try:
        content = _unpack(source if isinstance(source, bytes) else _read(source), device)
        check_iteration(content, None if isinstance(source, bytes) else source)
        return content
    except UnreadableError as error:
        name = "checkpoint" if isinstance(source, bytes) else f"checkpoint {source}"
        raise UserError(f"{name}: cannot be read ({error}); choose another one") from error


def snapshot(content: Any) -> Any:
    """Copy a checkpoint to the CPU, so that training continues while it is written. Waits for the device once.

    Returns:
        The same content in plain containers; every tensor is a separate copy.

    Raises:
        TypeError: If a value has a type that :func:`load` refuses, such as NumPy's numbers.
    """
    tensors: list[torch.Tensor] = []
    _map_plain(content, tensors.append)
    copies = iter(copy_to_host(tensors))
    return _map_plain(content, lambda _: next(copies))


def copy_to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensors to the CPU, each to its own memory, with only one wait for the device."""
    # Copies from a GPU go to pinned memory, so that they run while the host continues.
    copies = [tensor.detach().to("cpu", non_blocking=True, copy=True) for tensor in tensors]
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return copies


def _map_plain(value: Any, replace: Callable[[torch.Tensor], Any], name: str = "content") -> Any:
    """Return the same plain containers with every tensor replaced. All calls visit the tensors in the same order."""
    if isinstance(value, torch.Tensor):
        return replace(value)
    if isinstance(value, Mapping):
        return {
            _map_plain(key, replace, f"a key of {name}"): _map_plain(item, replace, f"{name}[{key!r}]")
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_map_plain(item, replace, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return tuple(_map_plain(item, replace, f"{name}[{i}]") for i, item in enumerate(value))
    # Exactly these types: torch.save writes subclasses as code to call, which load() refuses. np.float64, for example,
    # is a subclass of float.
    if type(value) in _PLAIN:
        return value
    raise TypeError(
        f"{name} is of {type(value)}: a checkpoint holds tensors, and plain values in dicts, lists and tuples"
    )


def _read(path: Path) -> bytes:
    try:
        return read_part(path, CHECKPOINT) if is_pack(path) else path.read_bytes()
    except (OSError, UserError) as error:
        raise UnreadableError(getattr(error, "strerror", None) or error) from error


def _unpack(data: bytes, device: str) -> dict[str, Any]:
    try:
        _check_sums(data)
        content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except Exception as error:
        # torch.load raises errors of many types on a damaged file: zip errors, pickle errors, RuntimeError, EOFError.
        # If the file is not a zip file, the message of a pickle error may be a single number, so it is not shown.
        if not data.startswith(_ZIP):
            raise UnreadableError("it does not begin like a file of torch.save") from error
        raise UnreadableError(str(error).strip().partition("\n")[0].partition(". ")[0]) from error
    if not isinstance(content, dict):
        raise UnreadableError(f"it holds a {type(content).__name__}, not a dict")
    return content


def _check_sums(data: bytes) -> None:
    """Raise if a zip file is damaged: torch.load does not verify checksums, and loads most damaged files."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return  # torch's older format, or a file that torch cannot read
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        # torch does not compress its files. A compressed file could expand to more data than fits into memory.
        if sum(file.file_size for file in archive.infolist()) > len(data):
            raise zipfile.BadZipFile("its contents are larger than the file")
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")


def _temporary(path: Path) -> Path:
    """Return a path in the same directory for a temporary file, which readers ignore and the next store removes."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _point(link: Path, target: Path) -> None:
    """Point a symbolic link to a file in the same directory. An existing link is replaced atomically."""
    if follow_link(link) == target:
        return
    temporary = _temporary(link)
    try:
        temporary.symlink_to(target.name)
        temporary.replace(link)
    finally:
        temporary.unlink(missing_ok=True)
