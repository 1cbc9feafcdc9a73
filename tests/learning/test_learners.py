"""Other learners than ours improve their return on our envs: the programs of examples/learners."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import BIN, Command

LEARNERS = Path(__file__).parents[2] / "examples" / "learners"

RETURN = re.compile(r"(?:mean return|ep_rew_mean\s*\||Mean reward:)\s*([\d.]+)")
"""A mean return, as each of the programs prints it."""

MIN_GAIN = 4
"""Factor between the last return and the first one, which is that of a random policy: the pendulum falls at once."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "length"),
    [
        ("sb3_ppo", "150000"),
        ("torchrl_ppo", "150000"),
        ("skrl_ppo", "150000"),
        ("cleanrl_ppo", "60"),
        ("rsl_rl_ppo", "60"),
    ],
)
def test_a_learner_improves_its_return(command: Command, program: str, length: str) -> None:
    if program == "torchrl_ppo":
        pytest.importorskip("torchrl")  # needs an older version of tensordict, so it is no dependency
    if program == "skrl_ppo":
        pytest.importorskip("skrl")
    done = command(
        str(BIN / "python"), str(LEARNERS / f"{program}.py"), "gym-inverted-pendulum", length, timeout_s=1800
    )
    assert done.code == 0, done.err
    first, *_, last = map(float, RETURN.findall(done.out))
    assert last > MIN_GAIN * first, done.out
