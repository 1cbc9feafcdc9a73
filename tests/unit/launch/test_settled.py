"""What a user leaves open, such as devices, engine and number of envs, is settled in the plan, and never read later."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import mjlab_dist

SRC = Path(mjlab_dist.__file__).parent

SETTLES = {
    "launch/budget.py",
    "policies/evaluate.py",
    "launch/plan.py",
    "launch/train.py",
    "launch/hosts/device_answer.py",
    "machine/devices.py",
    "machine/memory.py",
    "sim/engine_choice.py",
    "launch/verify/verification.py",
}
"""Modules that settle it. An env that is built without a plan chooses its engine through sim/engine_choice.py, too."""

OTHERS = {"policies/pack.py", "policies/choice.py", "policies/view/watch.py"}
"""Modules that show it as it was asked for, or read fields of other configs."""

CONFIGS = {"config", "_config", "cfg"}

OPEN_FIELDS = {"gpu_ids", "cpu_ranks", "oversubscribe", "gpu_num_envs", "total_num_envs"}


def readings(path: Path) -> Iterator[int]:
    """Yield the lines of a module that read an open field of the run's config, or the word auto."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            holder = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", None)
            if node.attr in OPEN_FIELDS or (node.attr == "num_envs" and holder in CONFIGS):
                yield node.lineno
        elif isinstance(node, ast.Compare) and "auto" in [getattr(part, "value", None) for part in node.comparators]:
            yield node.lineno


def test_only_the_plan_reads_what_a_user_leaves_open() -> None:
    found = {
        str(path.relative_to(SRC)): [*readings(path)] for path in SRC.rglob("*.py") if path.parent.name != "config"
    }
    assert {name for name, lines in found.items() if lines} == SETTLES | OTHERS, found
