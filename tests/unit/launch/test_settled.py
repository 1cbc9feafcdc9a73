"""What a user leaves open, such as devices, engine and number of envs, is settled in the plan, and never read later."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import mjlab_dist

SRC = Path(mjlab_dist.__file__).parent

# Code that runs in ranks, or starts and supervises them
LATER = (
    "worker.py", "learner.py", "learn", "env", "mdp", "distributed", "sim", "simulate/shard.py", "simulate/rank.py",
    "simulate/ranks.py", "simulate/envs.py", "evaluate/batches.py", "verify/evidence.py", "launch/ranks.py",
    "launch/restarts.py", "launch/supervision.py", "launch/preparation.py", "launch/rank_entry.py", "launch/agent.py",
)  # fmt: skip

OPEN_FIELDS = {"gpu_ids", "cpu_ranks", "gpu_num_envs", "oversubscribe"}
"""Fields of the config that only the plan reads."""


def modules() -> Iterator[Path]:
    for name in LATER:
        path = SRC / name
        assert path.exists(), name
        yield from [path] if path.is_file() else path.rglob("*.py")


def test_ranks_read_nothing_that_the_plan_has_settled() -> None:
    found = [
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Constant) and node.value == "auto")
        or (isinstance(node, ast.Attribute) and node.attr in OPEN_FIELDS)
    ]
    # The choice of the engine itself: the plan calls it, and an env that is built without a plan
    assert [place.partition(":")[0] for place in found] == ["sim/choice.py"]
