"""Other learners improve their return in our envs: soft actor-critic, and the programs in examples/learners."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import BIN, Command
from run_files import only_run

from mjlab_dist.runs.run_dir import read_metrics

LEARNERS = Path(__file__).parents[2] / "examples" / "learners"

RETURN = re.compile(r"(?:mean return|ep_rew_mean\s*\||Mean reward:)\s*([\d.]+)")
"""Matches a mean return in the output of each program."""

MIN_GAIN = 4
"""Minimum ratio of the last return to the first one. At first, the policy is random and the pendulum falls at once."""


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
        pytest.importorskip("torchrl")  # torchrl needs an older tensordict, so it is not a dependency
    if program == "skrl_ppo":
        pytest.importorskip("skrl")
    done = command(
        str(BIN / "python"), str(LEARNERS / f"{program}.py"), "gym-inverted-pendulum", length, timeout_s=1800
    )
    assert done.code == 0, done.err
    first, *_, last = map(float, RETURN.findall(done.out))
    assert last > MIN_GAIN * first, done.out


@pytest.mark.slow
@pytest.mark.long
def test_soft_actor_critic_balances_a_pole(command: Command) -> None:
    of_run = ("--total-timesteps", "60000", "--gpu-ids", "None", "--cpu-ranks", "2")
    evaluates = ("--evaluate-interval", "20", "--evaluate-episodes", "16")
    train = ("train", "gym-inverted-pendulum", "--algorithm", "sac", *of_run, *evaluates)
    done = command(*train, timeout_s=1800)
    assert done.code == 0, done.err
    rows = read_metrics(only_run(command.cwd, "gym-inverted-pendulum"))
    returns = [row["evaluation/return"] for row in rows if "evaluation/return" in row]
    assert max(returns) > 900, returns
