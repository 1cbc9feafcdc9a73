"""Envs on two ranks: they give the same results as on one rank, report errors, and leave no processes or files."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from conftest import Command
from processes import command_line
from simulation_policies import fails_on_few_envs, kills_rank_1, policy, stops_its_rank
from simulation_sessions import TASK, differing, flat, make, session

import mjlab_dist
from mjlab_dist.errors import RankError, UserError

pytestmark = pytest.mark.slow


WIDE = {"env.observations.actor.pole_velocity.history": 2}
"""Fields of a variant with more observations."""


@pytest.fixture
def private_tmp(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put temporary files of launches into a directory, and check that no file is left after the test."""
    monkeypatch.setenv("TMPDIR", str(short_tmp))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield
    assert not [each for each in short_tmp.iterdir() if not each.name.startswith("torchinductor_")]  # torch's files


def ranks() -> list[psutil.Process]:
    """Return the processes that launches of this process have started."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if any("mjlab_dist" in word for word in command_line(child))]


@pytest.mark.parametrize("engine", ["warp", "mujoco"])
@pytest.mark.usefixtures("private_tmp")
def test_two_ranks_give_the_results_of_one(engine: str) -> None:
    fields = {"env.sim.engine": engine}
    with make(1, **fields) as envs:
        expected = list(session(envs))
        one = envs.state()
    with make(2, **fields) as envs:
        assert not differing(envs, expected)
        # The state from one rank can be set on two ranks. Calls that fail do not change the state
        lock = threading.Lock()
        envs.set_state(one)
        with pytest.raises(UserError, match="few envs"):
            envs.rollout(fails_on_few_envs, 3)
        with pytest.raises(UserError, match="pickled"):
            envs.rollout(lambda _: lock, 3)
        assert all(torch.equal(a, b) for a, b in zip(flat(envs.state()), flat(one), strict=True))
        # Another launch of this process
        with make(2, **fields) as others:
            assert not differing(others, expected)
    assert not ranks()


@pytest.mark.usefixtures("private_tmp")
@pytest.mark.parametrize(("fault", "message"), [(kills_rank_1, "rank 1 ended"), (stops_its_rank, "rank 0 hangs")])
def test_a_rank_that_dies_or_hangs_ends_the_call_and_leaves_nothing(
    fault: Callable[..., torch.Tensor], message: str, short_tmp: Path
) -> None:
    envs = make(2, hang_timeout=2.0)
    with pytest.raises(RankError, match=message) as caught:
        envs.rollout(fault, 3)
    assert str(short_tmp) not in str(caught.value), "the error must not name a file that is removed"
    with pytest.raises(UserError, match="closed"):
        envs.reset()
    assert not ranks()
    envs.close()


@pytest.mark.usefixtures("private_tmp")
def test_a_message_to_stopped_ranks_that_no_buffer_can_hold_does_not_block() -> None:
    noise = torch.zeros(20_000_000)
    with make(2, hang_timeout=2.0) as envs:
        for rank in ranks():
            rank.suspend()
        with pytest.raises(RankError, match="rank 0 hangs"):
            envs._simulator.begin("rollout", lambda observations: policy(observations) + noise[0], 3)
    assert not ranks()


@pytest.mark.usefixtures("private_tmp")
def test_an_error_in_the_start_of_a_rank_ends_make_and_leaves_nothing() -> None:
    with pytest.raises(UserError, match="no_motor"):
        make(2, **{"env.actions.force.actuators": ("no_motor",)})
    assert not ranks()


@pytest.mark.usefixtures("private_tmp")
def test_variants_of_other_sizes_on_another_rank_are_refused_and_leave_nothing() -> None:
    with pytest.raises(UserError, match="variants"):
        mjlab_dist.make(TASK, variants=[{}, WIDE], cpu_ranks=2, total_num_envs=4, quiet=True)
    assert not ranks()


SCRIPT = """
import os, sys, gc
import mjlab_dist, psutil

def make():
    envs = mjlab_dist.make("cartpole-balance", cpu_ranks=2, total_num_envs=5, quiet=True)
    envs.reset()
    return envs

envs = make()
envs.cycle = envs
del envs
gc.collect()
assert not psutil.Process().children(recursive=True), "the garbage collector has not ended the ranks"
envs = make()
print("made", flush=True)
if sys.argv[1] == "killed":
    sys.stdin.read()
"""


INTERRUPTED = """
import os, signal, sys
import mjlab_dist, torch
from mjlab_dist.errors import UserError

envs = mjlab_dist.make("cartpole-balance", cpu_ranks=2, total_num_envs=5, quiet=True)
envs.reset()

# A child process that ends does not end the ranks
if os.fork() == 0:
    sys.exit()
os.wait()
waiting = [os.getpid()]

def policy(observations):
    # Rank 0, which has fewer envs, sends one signal to the process that waits for the rollout
    if len(observations["actor"]) == 2 and waiting:
        os.kill(waiting.pop(), signal.SIGINT)
    return torch.zeros(len(observations["actor"]), 1)

try:
    envs.rollout(policy, 10**5)
except KeyboardInterrupt:
    print("interrupted")
try:
    envs.reset()
except UserError as error:
    print(error)
"""


def test_ctrl_c_during_a_call_ends_the_ranks(command: Command, short_tmp: Path) -> None:
    done = command(command.script(INTERRUPTED), env={"TMPDIR": str(short_tmp)})
    assert done.code == 0, done.err
    assert re.fullmatch(r"interrupted\n.*closed.*\n", done.out)
    assert not list(short_tmp.iterdir())


@pytest.mark.parametrize("how", ["ends", pytest.param("killed", marks=pytest.mark.long)])
def test_ranks_end_with_the_program(
    command: Command, short_tmp: Path, how: str, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    program = command.start(command.script(SCRIPT), how, env={"TMPDIR": str(short_tmp)}, stdin=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == "made\n", command.finish(program).err
    if how == "killed":
        program.kill()
    done = command.finish(program)
    assert done.code == (-signal.SIGKILL if how == "killed" else 0)
    assert not done.err
    wait_for(lambda: not command.leftovers())
    left = list(short_tmp.iterdir())
    assert not left or how == "killed"  # the next launch removes files of a killed program
