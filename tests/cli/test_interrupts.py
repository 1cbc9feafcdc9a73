"""A command prints no traceback if Ctrl-C interrupts its imports."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Command

INTERRUPT = """
import importlib.abc, os, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == os.environ["INTERRUPTED_IMPORT"]:
            print("interrupted", flush=True)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""

TRAIN = ("train", "cartpole-balance", "--gpu-ids", "None", "--max-iterations", "1", "--num-envs", "8")


@pytest.mark.parametrize(
    ("argv", "imported"),
    [
        (TRAIN, "mjlab_dist.cli.main"),
        (TRAIN, "mjlab_dist.config"),
        (TRAIN, "mjlab_dist.cli.train"),
        (TRAIN, "mjlab_dist_tasks.cartpole"),
        (TRAIN, "mjlab_dist.launch.train"),
        (TRAIN, "torch"),
        (("play", "cartpole-balance", "--num-envs", "1"), "tyro"),
        (("list-tasks",), "mjlab_dist.config.registry"),
        (("mjlab-dist", "doctor"), "mjlab_dist.machine.doctor"),
        (("mjlab-dist", "check", "cartpole-balance"), "mujoco"),
        (("mjlab-dist", "compare", "."), "mjlab_dist.runs.compare"),
        (("mjlab-dist", "new-task", "two", "--robot", "go2"), "mjlab_dist.authoring.new_task"),
    ],
)
def test_ctrl_c_twice_while_a_command_starts_prints_no_traceback(
    argv: tuple[str, ...], imported: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    done = command(*argv, env={"PYTHONPATH": str(tmp_path), "INTERRUPTED_IMPORT": imported})
    assert "interrupted" in done.out.splitlines()
    assert done.code == 130
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 1
