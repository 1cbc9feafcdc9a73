"""Trained policies of the package, and mjlab-dist demo, which shows one. tests/cli/test_wheel.py tests its video."""

from __future__ import annotations

import http.client
import re
import signal

import pytest
from conftest import Command

from mjlab_dist.cli.demo import TASK
from mjlab_dist.config import PlayConfig
from mjlab_dist.errors import Exit, UserError
from mjlab_dist.policies import play, resolve


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--seconds", "3"), "--seconds 3: "),
        (("--video", "a.mp4", "--port", "8080"), "--port 8080: "),
        (("--video", "a.mp4", "--host", "0.0.0.0"), "--host 0.0.0.0: "),
        (("--video", "a.txt"), "--video a.txt: "),
    ],
)
def test_bad_flags_are_refused_in_one_line(flags: tuple[str, ...], named: str, command: Command) -> None:
    done = command.here("mjlab-dist", "demo", *flags)
    assert done.code == Exit.USAGE
    assert f"mjlab-dist demo: {named}" in done.err.splitlines()[0]
    assert list(command.cwd.iterdir()) == []


@pytest.mark.slow
def test_the_page_is_served_until_ctrl_c(command: Command) -> None:
    process = command.start("mjlab-dist", "demo")
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert TASK.partition("-")[0] in next(lines)
    port = next(found[1] for line in lines if (found := re.search(r"http://127\.0\.0\.1:(\d+)/", line)))
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
    connection.request("GET", "/")
    assert connection.getresponse().status == http.HTTPStatus.OK
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == Exit.DONE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "outcome", "least"),
    [
        ("quadruped-velocity-flat", "termination/time_limit", 1.0),
        ("humanoid-velocity-flat", "termination/time_limit", 1.0),
        ("arm-lift-cube", "metric/success", 1.0),
        ("gym-half-cheetah", "return", 4000.0),
    ],
)
def test_a_pretrained_policy_does_its_task(task: str, outcome: str, least: float) -> None:
    config = PlayConfig(run="pretrained", num_envs=4, disturbances=False)
    result = play(*resolve(task, config), config)
    assert len(result.returns) == 4
    assert {"return": min(result.returns), **result.outcomes}[outcome] >= least


def test_a_task_without_a_pretrained_policy_names_those_that_have_one() -> None:
    with pytest.raises(UserError, match=rf"^--run pretrained: .* cartpole-balance, .*\b{TASK}$"):
        resolve("cartpole-balance", PlayConfig(run="pretrained"))
