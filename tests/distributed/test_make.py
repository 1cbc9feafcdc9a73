"""Envs on two ranks: the same results as on one, errors, and what is left afterwards."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from conftest import Command
from simulation_policies import fails_on_few_envs, interrupts, kills_its_rank, policy, stops_its_rank

import mjlab_dist
from mjlab_dist.errors import RankError, UserError
from mjlab_dist.simulate.envs import Envs

TASK = "cartpole-balance"

NUM_ENVS = 33

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def private_tmp(path: Path) -> Iterator[None]:
    """Put temporary files of launches into a directory, and check that none is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(path))
        patch.setattr("tempfile.tempdir", None)
        yield
    assert not [each for each in path.iterdir() if not each.name.startswith("torchinductor_")]  # of torch's import


def make(num_ranks: int, **fields: Any) -> Envs:
    return mjlab_dist.make(
        TASK, cpu_ranks=num_ranks, total_num_envs=NUM_ENVS, seed=3, quiet=True, final_observations=True, **fields
    )


def ranks() -> list[psutil.Process]:
    """Return the processes of launches of this process."""
    return [child for child in psutil.Process().children(recursive=True) if "mjlab_dist" in command_line(child)]


def command_line(process: psutil.Process) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def actions(step: int) -> torch.Tensor:
    return torch.randn(NUM_ENVS, 1, generator=torch.Generator().manual_seed(step))


def session(envs: Envs) -> Iterator[Any]:
    """Use every method that returns results, and refuse some input in between."""
    yield envs.reset()
    for step in range(3):
        yield envs.step(actions(step))
    state = envs.state()
    yield state
    yield envs.rollout(policy, 5)
    yield envs.set_state(state)
    with pytest.raises(UserError, match=r"give \(33, 1\)"):
        envs.step(actions(0)[:5])
    with pytest.raises(UserError, match="policy"):
        envs.rollout(lambda _: torch.zeros(1, 1), 3)
    envs.step_async(actions(7))
    yield envs.step_wait()
    yield envs.reset(seed=5)
    yield envs.step(actions(8))
    yield envs.render(32, width=32, height=24)


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for name in sorted(value) for tensor in flat(value[name])]
    if isinstance(value, tuple):
        return [tensor for part in value for tensor in flat(part)]
    return [torch.from_numpy(value)]


def test_two_ranks_give_the_results_of_one_and_ctrl_c_ends_them(tmp_path: Path) -> None:
    with make(1) as envs:
        expected = list(session(envs))
        one = envs.state()
    with private_tmp(tmp_path), make(2) as envs:
        for i, (got, wanted) in enumerate(zip(session(envs), expected, strict=True)):
            pairs = list(zip(flat(got), flat(wanted), strict=True))
            assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs), i
        # The state of one rank continues on two ranks; calls that fail change nothing
        lock = threading.Lock()
        envs.set_state(one)
        with pytest.raises(UserError, match="few envs"):
            envs.rollout(fails_on_few_envs, 3)
        with pytest.raises(UserError, match="pickled"):
            envs.rollout(lambda _: lock, 3)
        assert all(torch.equal(a, b) for a, b in zip(flat(envs.state()), flat(one), strict=True))
        with pytest.raises(UserError, match="already has ranks"):
            make(2)
        # Ctrl-C during a call
        with pytest.raises(KeyboardInterrupt):
            envs.rollout(functools.partial(interrupts, os.getpid()), 10**5)
        with pytest.raises(UserError, match="closed"):
            envs.reset()
    assert not ranks()


@pytest.mark.parametrize(("policy", "message"), [(kills_its_rank, "rank"), (stops_its_rank, "rank 0 hangs")])
def test_a_rank_that_dies_or_hangs_ends_the_call_and_leaves_nothing(
    policy: Callable[..., torch.Tensor], message: str, tmp_path: Path
) -> None:
    with private_tmp(tmp_path):
        envs = make(2, hang_timeout=2.0)
        with pytest.raises(RankError, match=message):
            envs.rollout(policy, 3)
        with pytest.raises(UserError, match="closed"):
            envs.reset()
        assert not ranks()
        envs.close()


SCRIPT = """
import os, sys, gc
import mjlab_dist

def make():
    envs = mjlab_dist.make("cartpole-balance", cpu_ranks=2, total_num_envs=5, quiet=True)
    envs.reset()
    return envs

envs = make()
envs.cycle = envs
del envs
gc.collect()
envs = make()  # refused if the garbage collector had not ended the first ranks
print("made", flush=True)
if sys.argv[1] == "killed":
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["ends", "killed"])
def test_ranks_end_with_the_program(
    command: Command, tmp_path: Path, how: str, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "tmp").mkdir()
    program = command.start("python", "script.py", how, env={"TMPDIR": str(tmp_path / "tmp")}, stdin=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == "made\n", command.finish(program).err
    if how == "killed":
        program.kill()
    done = command.finish(program)
    assert done.code == (-signal.SIGKILL if how == "killed" else 0)
    assert not done.err
    wait_for(lambda: not command.leftovers())
    left = list((tmp_path / "tmp").iterdir())
    assert not left or how == "killed"  # the next launch removes them
