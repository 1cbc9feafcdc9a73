"""Handle buffers of the physics that were too small: warn, end the run, or restart it with larger ones."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import mujoco_warp as mjw
import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.physics import (
    BUFFER_MARGIN,
    CONTACT_OVERFLOWS,
    MAX_BUFFER,
    ROW_OVERFLOWS,
    SHARED_MARGIN,
    larger_size,
)
from mjlab_dist.distributed.group import gather
from mjlab_dist.env import Env
from mjlab_dist.errors import BufferOverflowError, listed
from mjlab_dist.learn.metrics import Row
from mjlab_dist.messages import emit
from mjlab_dist.runs.outputs import write_atomically
from mjlab_dist.runs.provenance import read_provenance
from mjlab_dist.runs.run_dir import CONFIG_FILE, PROVENANCE_FILE, list_checkpoints, to_yaml


class Shortage(NamedTuple):
    """A buffer that was too small on some rank."""

    # Name of the SimConfig field that sets the size of the buffer
    field: str
    # Contents of the buffer, in words
    what: str
    # Size of the buffer, per env
    size: int
    # Size that was needed, per env; a lower bound if rows were dropped
    needed: int
    # Size that should suffice
    larger: int


class OverflowCheck:
    """Checks the buffers once per iteration, with the same result on every rank."""

    def __init__(self, env: Env, config: TrainConfig, *, is_main: bool) -> None:
        """Create the check."""
        self._env, self._config, self._is_main = env, config, is_main
        self._has_warned = False
        self._pending: BufferOverflowError | None = None

    def ignore_restored(self) -> None:
        """Clear the overflows that a checkpoint recorded, because buffers may be larger now.

        With ``--env.sim.on-overflow warn``, nothing is cleared.
        """
        if self._config.env.sim.on_overflow != "warn":
            self._env.sim.overflow.zero_()

    def must_end(self, row: Row) -> bool:
        """Return whether the run must save a checkpoint and end. After saving, :meth:`raise_pending` must be called.

        If an overflow does not end the run, print one warning. Ranks communicate only after an overflow.

        Raises:
            BufferOverflowError: If the run must restart with larger buffers; this iteration is then not saved.
        """
        if not row["overflowed_envs"]:
            return False
        if self._config.env.sim.on_overflow != "warn":
            shortages = self._shortages()
            if shortages:
                error = _as_error(f"iteration {row['iteration']}", shortages, self._config.env.sim.on_overflow)
                if error.larger:
                    raise error
                self._pending = error
                return True
        if self._is_main and not self._has_warned:
            sim = self._config.env.sim
            emit(
                "warning",
                text=f"{row['overflowed_envs']} envs had more contacts or constraints than their buffers can hold, so "
                f"the rest was dropped; raise --env.sim.nconmax (now {sim.nconmax}) and --env.sim.njmax (now "
                f"{sim.njmax}), or use --env.sim.on-overflow grow, which does this; "
                f"mjlab-dist size-buffers {self._config.task} measures the sizes that the task needs",
            )
        self._has_warned = True
        return False

    def raise_pending(self) -> None:
        """Raise the error of a run that must end, if there is one."""
        if self._pending:
            raise self._pending

    def _shortages(self) -> list[Shortage]:
        """Return the buffers that were too small on any rank."""
        sim = self._env.sim
        # Over all ranks: whether contacts overflowed on any, whether rows overflowed on any, maximum number of contacts
        # of all envs of a rank, maximum number of rows of one env
        flags = [sum(int(mjw.OverflowType[name]) for name in names) for names in (CONTACT_OVERFLOWS, ROW_OVERFLOWS)]
        bits = [((sim.overflow & flag) != 0).any() for flag in flags]
        counts = [sim.demand[-1], sim.demand[:-1].max()]
        over_ranks = gather(torch.stack([number.long() for number in (*bits, *counts)])).amax(dim=0)
        has_contacts, has_rows, contacts, rows = over_ranks.tolist()
        # Needed sizes, and sizes with a margin
        njmax, nconmax = sim.buffer_sizes
        per_env = math.ceil(contacts / sim.num_envs)
        found = [
            Shortage(
                "nconmax", "contacts or near pairs", nconmax, per_env, larger_size(nconmax, per_env, SHARED_MARGIN)
            ),
            Shortage("njmax", "constraint rows", njmax, rows, larger_size(njmax, rows, BUFFER_MARGIN)),
        ]
        return [one for one, is_short in zip(found, (has_contacts, has_rows), strict=True) if is_short]


def _as_error(when: str, shortages: list[Shortage], policy: Literal["grow", "stop"]) -> BufferOverflowError:
    problems = [
        f"--env.sim.{one.field} {one.size} is too small for {one.needed} {one.what} per env"
        if one.needed > one.size
        else f"--env.sim.{one.field} {one.size} is too small for the {one.what} of an env"
        for one in shortages
    ]
    problem = f"{when}: {listed(problems)}"
    larger = {one.field: one.larger for one in shortages}
    flags = _flags(larger)
    if policy == "stop":
        return BufferOverflowError(f"{problem}; resume with {flags}, or with --env.sim.on-overflow grow")
    if max(larger.values()) > MAX_BUFFER:
        return BufferOverflowError(
            f"{problem}; a size above {MAX_BUFFER} suggests that the physics is not stable; if the task needs "
            f"this size, resume with {flags}"
        )
    return BufferOverflowError(problem, larger)


def _flags(sizes: Mapping[str, int]) -> str:
    return " ".join(f"--env.sim.{field} {size}" for field, size in sizes.items())


def record_growth(run_dir: Path, config: TrainConfig, overflow: BufferOverflowError) -> None:
    """Write the larger sizes to config.yaml and provenance.json, and print them. Call this on rank 0."""
    done = max(list_checkpoints(run_dir), default=0)
    emit("warning", text=f"{overflow}; restarting from iteration {done} with {_flags(overflow.larger)}")
    provenance = read_provenance(run_dir)
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    growth = {"time": time, "reason": str(overflow), "restarted_from": done, **overflow.larger}
    provenance["grown"] = [*provenance.get("grown", []), growth]
    write_atomically(run_dir / CONFIG_FILE, to_yaml(dataclasses.replace(config, resume=None)))
    write_atomically(run_dir / PROVENANCE_FILE, json.dumps(provenance, indent=2) + "\n")
