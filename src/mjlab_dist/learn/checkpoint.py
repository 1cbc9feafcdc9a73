"""Checkpoints: written beside training so that no reader ever sees half of one, kept by age and return, read without running code."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from mjlab_dist import runs
from mjlab_dist.config import CheckpointConfig
from mjlab_dist.errors import UserError
from mjlab_dist.learn.host_copy import copy_to_host
from mjlab_dist.messages import emit

_PLAIN = (bool, int, float, str, bytes, type(None))

_TEMPORARY = re.compile(r"\.(model_\d+|latest|best)\.pt\.\d+\.tmp")

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class CheckpointStore:
    """The checkpoints of a run, for its one writer (rank 0): writes in a thread, keeps the newest and the best, links to both.

    Whenever its process is killed, the newest checkpoint of the directory is whole; what a kill leaves behind goes when the
    next store is made.
    """

    def __init__(self, run_dir: Path, config: CheckpointConfig) -> None:
        """Tidy up what a killed writer left: temporary files, and links that are stale.

        Args:
            run_dir: The run directory; its metrics say how good the checkpoints in it are.
            config: How many to keep.

        Raises:
            OSError: If the directory cannot be written. The message is one line with the mend.
        """
        self._run_dir = run_dir
        self._config = config
        self._directory = run_dir / runs.CHECKPOINTS
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._returns = _mean_returns(run_dir)
        with explaining(self._run_dir, self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            for path in self._directory.iterdir():
                if _TEMPORARY.fullmatch(path.name):
                    path.unlink()
            self._link()

    def save(self, iteration: int, content: Mapping[str, Any], mean_return: float | None) -> None:
        """Copy a checkpoint's content and have it written; waits for the copy, and for the checkpoint before to be written.

        Args:
            iteration: Iterations done.
            content: Tensors on any device, and plain values, in dicts, lists and tuples; may change once this returns.
            mean_return: How good the policy is, if that is known.

        Raises:
            OSError: If the checkpoint before could not be written; this one is not, then.
            TypeError: If a value could not be read back.
        """
        self._wait()
        self._writing = self._pool.submit(self._write, iteration, snapshot(content), mean_return)

    def check(self) -> None:
        """Raise what the thread raised, once; waits for nothing.

        Raises:
            OSError: If a checkpoint could not be written. The message is one line with the mend; those before it are intact.
        """
        if self._writing is not None and self._writing.done():
            self._wait()

    def close(self) -> None:
        """Wait until all is on disk; then the process may end in any way.

        Raises:
            OSError: As :meth:`check`.
        """
        try:
            self._wait()
        finally:
            self._pool.shutdown()

    def read_newest(self) -> tuple[Path, bytes] | None:
        """The newest checkpoint that loads, for every rank to go on from.

        Newer ones that do not load get a warning and another name, so that they neither count as the newest nor get lost.
        Then what the last writer had no time to remove goes: not before one is known to load.

        Returns:
            Where it lies, and the file's bytes; None if the run has no checkpoint yet.

        Raises:
            UserError: If there are checkpoints, and none loads.
            OSError: If a file cannot be renamed or removed. The message is one line with the mend.
        """
        assert self._writing is None, "read before anything is written"
        refused: dict[Path, _UnreadableError] = {}
        for path in reversed(runs.checkpoints(self._run_dir).values()):
            try:
                data = _read(path)
                _unpack(data, "cpu")
            except _UnreadableError as error:
                refused[path] = error
                continue
            self._set_aside(refused, path)
            with explaining(self._run_dir, self._directory):
                self._link()
                self._prune(path)
            return path, data
        if refused:
            path, error = next(iter(refused.items()))
            raise UserError(
                f"--resume {self._run_dir}: none of its {len(refused)} checkpoints can be read ({path.name}: {error}); "
                "put a good copy of one there, or start a new run"
            )
        return None

    def _set_aside(self, refused: Mapping[Path, _UnreadableError], taken: Path) -> None:
        for path, error in refused.items():
            aside = path.with_name(f"{path.name}.unreadable")
            with explaining(self._run_dir, path):
                path.rename(aside)
            emit(
                "warning",
                text=f"checkpoint {path}: cannot be read ({error}); {taken.name} is taken in its place, and it is now {aside.name}",
            )

    def _write(self, iteration: int, content: dict[str, Any], mean_return: float | None) -> None:
        path = runs.checkpoint_path(self._run_dir, iteration)
        with explaining(self._run_dir, path):
            save(path, content)
            if mean_return is not None and math.isfinite(mean_return):
                self._returns[iteration] = mean_return
            else:
                self._returns.pop(iteration, None)
            self._link()
            self._prune(path)

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _best(self, found: Mapping[int, Path]) -> list[Path]:
        """Those to keep for their return, best first; of equal ones the newest."""
        known = sorted((self._returns[n], n) for n in found if n in self._returns)
        return [found[n] for _, n in reversed(known)][: self._config.keep_best]

    def _link(self) -> None:
        found = runs.checkpoints(self._run_dir)
        best = self._best(found)
        latest_link, best_link = self._directory / runs.LATEST, self._directory / runs.BEST
        if found:
            _point(latest_link, found[max(found)])
        else:
            latest_link.unlink(missing_ok=True)
        if best:
            _point(best_link, best[0])
        elif not self._config.keep_best or not best_link.exists():
            # Without metrics nothing is known of any return: a link that leads somewhere is then the best guess.
            best_link.unlink(missing_ok=True)

    def _prune(self, needed: Path) -> None:
        if not self._config.keep_last:
            return
        found = runs.checkpoints(self._run_dir)
        newest = list(found.values())[-self._config.keep_last :]
        kept = {needed, *newest, *self._best(found), runs.follow(self._directory / runs.BEST)}
        for path in found.values():
            if path not in kept:
                path.unlink()


@contextlib.contextmanager
def explaining(run_dir: Path, path: Path) -> Iterator[None]:
    """Say of an OSError what it means for the run, in one line.

    Args:
        run_dir: The run directory.
        path: What is being written in it.
    """
    try:
        yield
    except Exception as error:
        cause = _os_error(error)
        if cause is None:
            raise
        if cause.errno in _DISK_FULL:
            text = (
                f"--log-root {run_dir.parent.parent}: no space left for {path}; make room there, keep fewer "
                "(--checkpoint.keep-last), or choose another disk; earlier checkpoints are intact"
            )
        else:
            text = f"{path}: cannot be written ({cause.strerror or cause}); earlier checkpoints are intact"
        raise OSError(text) from cause


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint under a temporary name, sync it, then rename it.

    Args:
        path: Where it goes; the directory is made.
        content: Tensors, containers and plain values.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
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
    """Read a checkpoint.

    Args:
        source: The file, or its bytes.
        device: Where its tensors go, whatever device wrote them.

    Raises:
        UserError: If it is damaged or holds more than tensors and plain values.
    """
    try:
        return _unpack(source if isinstance(source, bytes) else _read(source), device)
    except _UnreadableError as error:
        name = "checkpoint" if isinstance(source, bytes) else f"checkpoint {source}"
        raise UserError(f"{name}: cannot be read ({error}); choose another one") from error


def snapshot(content: Any) -> Any:
    """Copy a checkpoint's content to the CPU, so that training may continue while it is written. Waits for the device once.

    Args:
        content: Tensors on any device, and plain values, in dicts, lists and tuples.

    Returns:
        The same in plain containers; every tensor is a copy of its own, whatever it was a view of.

    Raises:
        TypeError: If a value is of a type that could not be read back, such as one of NumPy's numbers.
    """
    tensors: list[torch.Tensor] = []
    _map_plain(content, tensors.append)
    copies = iter(copy_to_host(tensors))
    return _map_plain(content, lambda _: next(copies))


def _map_plain(value: Any, replace: Callable[[torch.Tensor], Any], name: str = "content") -> Any:
    """Return the same plain containers with every tensor replaced, in a fixed order."""
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
    # Of exactly these types: subclasses (np.float64 is a float) are written as code to call, which no reader of ours runs.
    if type(value) in _PLAIN:
        return value
    raise TypeError(
        f"{name} is of {type(value)}: a checkpoint holds tensors, and plain values in dicts, lists and tuples"
    )


class _UnreadableError(ValueError):
    """What is wrong with a file, in a few words."""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _UnreadableError(error.strerror or error) from error


def _unpack(data: bytes, device: str) -> dict[str, Any]:
    try:
        _check_sums(data)
        content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except Exception as error:
        # torch.load raises nearly anything on a damaged file: zip errors, pickle errors, RuntimeError, EOFError.
        raise _UnreadableError(str(error).strip().partition("\n")[0].partition(". ")[0]) from error
    if not isinstance(content, dict):
        raise _UnreadableError(f"it holds a {type(content).__name__}, not a dict")
    return content


def _check_sums(data: bytes) -> None:
    """Refuse a damaged zip: torch.load itself does not look at the checksums, and takes most flipped bits as they are."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return  # torch's format before zip files, or nothing that it reads
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")


def _temporary(path: Path) -> Path:
    """A name beside it that no reader matches, and that the next store sweeps."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _point(link: Path, target: Path) -> None:
    """Have a link lead to a file beside it; at no moment is there none."""
    if runs.follow(link) == target:
        return
    temporary = _temporary(link)
    try:
        temporary.symlink_to(target.name)
        temporary.replace(link)
    finally:
        temporary.unlink(missing_ok=True)


def _mean_returns(run_dir: Path) -> dict[int, float]:
    """Mean return by iteration, as far as metrics.jsonl has it; a kill may have torn its last line."""
    returns: dict[int, float] = {}
    with contextlib.suppress(FileNotFoundError), (run_dir / runs.METRICS).open(errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                returns[int(row["iteration"])] = float(row["mean_return"])
    return {iteration: value for iteration, value in returns.items() if math.isfinite(value)}


def _os_error(error: BaseException | None) -> OSError | None:
    """The OSError that an error came from: torch.save raises a RuntimeError over the one of the file it writes to."""
    while error is not None and not (isinstance(error, OSError) and error.errno):
        error = error.__cause__ or error.__context__
    return error
