"""Envs on ranks of two hosts: the same results as in one process, and no processes left after a fault."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host_lab import Lab, running_lab
from processes import with_argument

EQUALITY, STEPS = (Path(__file__).parent / f"{name}_on_hosts.py" for name in ("simulate", "steps"))
"""Programs that hosts run."""

pytestmark = pytest.mark.slow


WaitFor = Callable[[Callable[[], bool]], None]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Lab]:
    with running_lab() as made:
        yield made


@pytest.fixture
def lab(hosts: Lab) -> Iterator[Lab]:
    """The hosts, reset after the test."""
    yield hosts
    hosts.clear()


def start(lab: Lab, program: Path, *args: str, path: Path) -> int:
    """Start a program on host a, with the SSH config file as its first argument."""
    command = ("python", str(program), str(lab.ssh_config), *args)
    # Without a directory for the cache, importing torch creates one in /tmp
    env = {"TORCHINDUCTOR_CACHE_DIR": str(lab.work / "cache"), "PYTHONPATH": "."}
    with path.open("w") as output:
        return lab.start("a", *command, output=output, env=env)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("kills_rank_2", "rank 2 ended without a report"),
        pytest.param("stops_rank_2", "rank 2 hangs: no step in 5 s", marks=pytest.mark.long),
    ],
)
def test_two_hosts_give_the_results_of_one_process(
    lab: Lab, tmp_path: Path, policy: str, message: str, wait_for: WaitFor
) -> None:
    code = lab.wait(start(lab, EQUALITY, policy, path=tmp_path / "output"))
    printed = (tmp_path / "output").read_text()
    assert code == 0, printed
    differ, error = printed.splitlines()
    assert differ == "differ: []"
    assert message in error
    lab.wait_until_clear(wait_for)


@pytest.mark.long
def test_a_host_with_another_task_is_refused(lab: Lab, tmp_path: Path, wait_for: WaitFor) -> None:
    lab.write_reward("a", 1.0)
    lab.write_reward("b", 1.5)
    output = tmp_path / "output"
    assert lab.wait(start(lab, STEPS, "60", "env.rewards.smooth.func=own_rewards:bonus", path=output)) == 0
    printed = output.read_text()
    assert printed.startswith("PreflightError: "), printed
    assert "rank 1 (b)" in printed
    assert "own_rewards" in printed
    lab.wait_until_clear(wait_for)


def interrupt(lab: Lab) -> None:
    """Send SIGINT, as Ctrl-C does, to the program, which is the oldest process with this name."""
    with_argument(lab.processes("a"), str(STEPS))[0].send_signal(signal.SIGINT)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "hang_timeout", "ended"),
    [
        (interrupt, "60", "KeyboardInterrupt: "),
        (lambda lab: lab("link", "b", "silent"), "10", "RankError: "),
        (lambda lab: lab("link", "b", "down"), "10", "RankError: "),
        (lambda lab: lab("kill", "b"), "10", "RankError: "),
    ],
    ids=["Ctrl-C", "silent link", "unplugged cable", "power failure"],
)
def test_a_fault_ends_the_next_call_and_leaves_nothing_on_any_host(
    lab: Lab, tmp_path: Path, wait_for: WaitFor, fault: Callable[[Lab], object], hang_timeout: str, ended: str
) -> None:
    output = tmp_path / "output"
    program = start(lab, STEPS, hang_timeout, path=output)
    wait_for(lambda: output.read_text().count("step\n") > 3 or not lab.is_running(program))
    assert lab.is_running(program), output.read_text()
    fault(lab)
    assert lab.wait(program) == 0, output.read_text()
    assert output.read_text().splitlines()[-1].startswith(ended)
    lab.wait_until_clear(wait_for)
