"""Envs on ranks of two hosts: the same results as in one process, and nothing left after a rank has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host_lab import Lab, running_lab

PROGRAM = Path(__file__).parent / "simulate_on_hosts.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with running_lab() as made:
        yield made


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("kills_rank_2", "rank 2 ended without a report"),
        pytest.param("stops_rank_2", "rank 2 hangs: no step in 5 s", marks=pytest.mark.long),
    ],
)
def test_two_hosts_give_the_results_of_one_process(
    lab: Lab, tmp_path: Path, policy: str, message: str, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    with (tmp_path / "output").open("w") as output:
        program = ("python", str(PROGRAM), str(lab.ssh_config), policy)
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(lab.work / "cache")}  # torch's import makes it in /tmp otherwise
        code = lab.wait(lab.start("a", *program, output=output, env=cache))
    printed = (tmp_path / "output").read_text()
    assert code == 0, printed
    differ, error = printed.splitlines()
    assert differ == "differ: []"
    assert message in error
    lab.wait_until_clear(wait_for)
