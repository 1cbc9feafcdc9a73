"""Compare what ranks of several machines simulate: the task's source files and data, and the model.

Every machine reads the task from its own disk. Without this comparison, a reward that was edited on only one of two
machines would be used in half of the envs, and nobody would notice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mjlab_dist.config import PpoConfig, TrainConfig
from mjlab_dist.config.serialization import paths, to_plain
from mjlab_dist.config.terms import resolve
from mjlab_dist.config.trust import INSTALLED, is_installed
from mjlab_dist.distributed.exchange import exchange
from mjlab_dist.distributed.rank import in_words
from mjlab_dist.errors import PreflightError, listed

if TYPE_CHECKING:
    from types import ModuleType

    import mujoco
    from numpy.typing import NDArray
    from torch._C._distributed_c10d import Store

    from mjlab_dist.distributed.rank import Rank

# Fields of a model are not compared if their name contains one of these texts.
#
# The principal axes of a symmetric body depend on how a machine rounds, and so does everything that is relative to
# these axes. The paths of a model's files may differ too.
FRAMES = ("quat", "mesh_", "bvh_", "aabb", "oct_", "rbound", "flex", "path")

# Modules that Python imports at startup. They belong to a machine or a user, so they may differ and are left out.
MACHINE = {"sitecustomize", "usercustomize"}

# Maximum relative difference between the sums of two ranks that is considered a rounding error. It can be this small
# because MuJoCo compiles models in double precision.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class TaskSummary:
    """What a rank simulates, in a form that can be compared with other ranks."""

    # Digests of source files by module, and of data files by path
    files: dict[str, str]
    # For each field of the model: number of elements, sum, weighted sum, weighted sum of absolute values. The weight of
    # an element depends on its position.
    model: dict[str, list[float]]

    @classmethod
    def of(cls, config: TrainConfig, model: mujoco.MjModel, modules: Mapping[str, ModuleType]) -> TaskSummary:
        """Summarize a task."""
        data = {name for _, name in paths(to_plain(config.env)) if isinstance(name, str) and os.path.isfile(name)}  # noqa: PTH113 (false for the XML of a model)
        files = {name: Path(name) for name in data} | _own_files(modules)
        return cls(
            files={name: _digest(file.read_bytes()) for name, file in sorted(files.items()) if file.is_file()},
            model={name: _sums(value) for name, value in _fields(model)},
        )

    def digest(self) -> str:
        """Return a digest of ``files`` and ``model``. Two ranks have the same digest only if both fields are equal."""
        return _digest(json.dumps([self.files, self.model]).encode())

    def difference(self, other: TaskSummary) -> str | None:
        """Return what differs from another rank's summary; None if nothing differs by more than rounding.

        Only files that both ranks have read are compared, because a rank may import more files than another.
        """
        files = [name for name, digest in self.files.items() if other.files.get(name, digest) != digest]
        if files:
            return f"{listed(files)} differ" if len(files) > 1 else f"{files[0]} differs"
        if self.model.keys() != other.model.keys():
            return "the model differs"
        fields = [name for name, own in self.model.items() if not _are_close(own, other.model[name])]
        return f"the model differs in {listed(fields[:3])}" if fields else None


def check_same_task(
    store: Store | None,
    rank: Rank,
    hosts: Sequence[str],
    config: TrainConfig,
    model: mujoco.MjModel,
    *,
    variant: int = 0,
) -> None:
    """Wait for all ranks, and raise on every rank if ranks on several machines simulate different tasks."""
    if rank.on_one_machine or store is None:
        return
    # Functions that ranks import only after this comparison. They report errors of their modules later
    functions = [config.sync.synchronizer]
    if isinstance(config.agent, PpoConfig):
        functions.append(config.agent.symmetry.func)
    for reference in filter(None, functions):
        with contextlib.suppress(Exception):
            resolve(reference)
    own = TaskSummary.of(config, model, dict(sys.modules))

    def share(key: str, value: Any) -> list[Any]:
        return exchange(store, rank.rank, rank.world_size, f"task/{variant}/{key}", value)

    # Usually all digests are equal
    if len(set(share("digest", own.digest()))) == 1:
        return
    # If not, each rank compares itself with rank 0
    main, *_ = share("summary", [own.files, own.model] if rank.is_main else None)
    ranks: dict[str, list[int]] = {}
    for number, difference in enumerate(share("difference", own.difference(TaskSummary(*main)))):
        if difference is not None:
            ranks.setdefault(difference, []).append(number)
    if ranks:
        raise PreflightError(
            "; ".join(
                f"{in_words(differing)} ({listed(dict.fromkeys(hosts[number] for number in differing))}), compared "
                f"with rank 0: {difference}"
                for difference, differing in ranks.items()
            )
            + "; copy the files of the task from the first machine to the others"
        )


def _own_files(modules: Mapping[str, ModuleType]) -> dict[str, Path]:
    """Return the source files of modules that belong neither to Python nor to an installed package."""
    files = {name: Path(file) for name, module in modules.items() if (file := getattr(module, "__file__", None))}
    own = {name: file for name, file in files.items() if name not in MACHINE and INSTALLED.isdisjoint(file.parts)}
    folders = {file.parent for file in own.values()}
    installed = {folder for folder in folders if is_installed(str(folder))}
    return {name: file for name, file in own.items() if file.parent not in installed}


def _fields(model: mujoco.MjModel) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the name and the values of each field of a model, except for the fields of :data:`FRAMES`."""
    for owner, prefix in ((model, ""), (model.opt, "opt.")):
        for name in dir(owner):
            if name.startswith("_") or any(part in name for part in FRAMES):
                continue
            value = getattr(owner, name)
            if isinstance(value, bytes):
                value = np.frombuffer(value, np.uint8)
            if isinstance(value, int | float | np.ndarray):
                yield prefix + name, np.asarray(value)


def _sums(values: NDArray[Any]) -> list[float]:
    numbers = np.nan_to_num(values.astype(np.float64).ravel(), nan=1.0, posinf=2.0, neginf=-2.0)  # sums must be finite
    weights = 1.0 + np.arange(len(numbers)) % 997
    return [len(numbers), float(numbers.sum()), float(numbers @ weights), float(np.abs(numbers) @ weights)]


def _are_close(own: list[float], other: list[float]) -> bool:
    scale = max(own[-1], other[-1])
    return own[0] == other[0] and all(abs(a - b) <= TOLERANCE * scale for a, b in zip(own, other, strict=True))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
