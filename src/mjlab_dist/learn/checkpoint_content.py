"""Check the content of a checkpoint, which may be damaged or come from someone else, before anything is believed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjlab_dist.runs.pack_file import MANIFEST, is_pack, read_manifest
from mjlab_dist.runs.run_dir import METRICS_FILE, follow_link, named_iteration
from mjlab_dist.runs.run_files import has_file, parse_row, read_file
from mjlab_dist.wording import printable

# Counters of a run, with their types. They are also columns of metrics.jsonl.
COUNTERS: Mapping[str, tuple[type, ...]] = {"total_steps": (int,), "elapsed_s": (int, float)}


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
