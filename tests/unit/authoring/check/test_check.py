"""The checks of a task find every mistake and name its term."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import terms_with_mistakes as mistakes
import torch
from configs import changed, value_at
from conftest import Command
from every_task import NAMES, config_of

import mjlab_dist
from mjlab_dist.authoring.check import run_checks, task_checks
from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.authoring.check.run_checks import check, try_out
from mjlab_dist.authoring.check.task_checks import Check
from mjlab_dist.config import TrainConfig, event, observation, reward, term, termination
from mjlab_dist.errors import CheckError, UserError
from mjlab_dist.learn.rank_state import random_state

NAMES_OF_CHECKS = [
    "terms", "physics", "finite", "seeds", "mirror", "resume", "host syncs", "replay", "episodes", "buffers", "speed",
]  # fmt: skip


NUM_STEPS = 75
"""Number of steps in a short rollout, for mistakes that show early. Every env ends an episode within these steps."""


@pytest.fixture(autouse=True)
def _measure_the_speed_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the measurement of the speed. An installed command, which is another process, measures for longer."""
    monkeypatch.setattr(task_checks, "SPEED_S", 0.01)


@pytest.fixture
def short_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checks run fewer steps."""
    monkeypatch.setattr(run_checks, "NUM_STEPS", NUM_STEPS)


def with_term(kind: str, one: Any) -> TrainConfig:
    """Add a term to a task that passes all checks without it. The task has fast steps and short episodes."""
    config = dataclasses.replace(config_of("cartpole-balance"), num_envs=8, total_num_envs=None)
    config = changed(config, "env.episode_length_s", 0.5)
    return changed(config, f"env.{kind}.wrong", one)


def results(config: TrainConfig) -> dict[str, Check]:
    """Check a task, and return a dict from the name of each check to its result."""
    return {result.name: result for result in check(config)}


def failures(config: TrainConfig) -> dict[str, str]:
    """Check a task, and return a dict from the name of each check that failed to the text of its result."""
    return {name: result.text for name, result in results(config).items() if not result.passed}


QUICK = {"arm-reach", "cartpole-balance", "everything", "gym-reacher", "quadruped-velocity-flat"}
"""Tasks that the tests check even without `-m long`. The other tasks are checked only with it."""

WITH_SHORT_ROLLOUTS = {"everything"}
"""Tasks that exist only for tests. All of their terms have an effect within a short rollout, so it is sufficient."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
def test_every_task_passes(task: str, request: pytest.FixtureRequest) -> None:
    if task in WITH_SHORT_ROLLOUTS:
        request.getfixturevalue("short_rollouts")
    found = results(dataclasses.replace(config_of(task), num_envs=8, total_num_envs=None))
    expected = [
        name for name in NAMES_OF_CHECKS if name != "mirror" or value_at(config_of(task), "agent.symmetry").is_used
    ]
    assert list(found) == expected
    assert [result.text for result in found.values() if not result.passed] == []
    assert int(re.search(r", (\d+) resets", found["finite"].text)[1]) >= 8  # pyright: ignore[reportOptionalSubscript]
    assert int(re.search(r"same (\d+) operations", found["replay"].text)[1]) > 20  # pyright: ignore[reportOptionalSubscript]


@pytest.mark.parametrize(
    ("kind", "wrong", "found"),
    [
        ("rewards", reward(1.0, mistakes.column), r"env.rewards.wrong: returned \(8, 1\) of float32; .* \(8,\) of"),
        ("terminations", termination(mistakes.number), r"env.terminations.wrong: returned .* float32; .* of bool"),
        ("observations.actor", observation(mistakes.flat), r"env.observations.actor.wrong: .*\(8,\) of.*\(8, width\)"),
        ("observations.actor", observation(mistakes.double), r"env.observations.actor.wrong: .* float64; .* float32"),
        (
            "rewards",
            reward(1.0, mistakes.misspelled),
            r"rewards.wrong: AttributeError: .*qposs.* \(terms_with_mistakes.py:\d+\)",
        ),
    ],
)
def test_a_term_that_cannot_be_used_ends_the_checks(kind: str, wrong: Any, found: str) -> None:
    result = failures(with_term(kind, wrong))
    assert list(result) == ["terms"]
    assert re.match(found, result["terms"])


LINE = r"wrong \(terms_with_mistakes.py:\d+\): "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "wrong", "found"),
    [
        (
            "rewards",
            reward(1.0, mistakes.waits),
            {"host syncs": rf"rewards.{LINE}aten._local_scalar_dense.* waits", "replay": f".*rewards.{LINE}waits"},
        ),
        (
            "rewards",
            reward(1.0, mistakes.reads_an_array),
            {
                "host syncs": rf"rewards.{LINE}Tensor.numpy waits",
                "replay": rf".*rewards.{LINE}makes a tensor from host data",
            },
        ),
        ("rewards", reward(1.0, mistakes.root), {"finite": r"rewards.wrong: returned NaN .* in step \d+ of 75"}),
        (
            "events",
            event(mistakes.explode).every(0.01, 0.01),
            {"finite": r"events.wrong: qvel became NaN or infinite in step 1 of 75"},
        ),
        (
            "events",
            event(mistakes.unseeded),
            {
                "seeds": r"events.wrong: different values of qvel at the start of .* both rollouts have the seed 1",
                "resume": r"events.wrong: different values of qvel",
                "replay": r".*events.wrong \(terms_with_mistakes.py:\d+\)",
            },
        ),
        (
            "rewards",
            reward(1.0, mistakes.Forgets),
            {"resume": r"rewards.wrong: different values in step 76 after load_state"},
        ),
        (
            "rewards",
            reward(1.0, mistakes.CountsInPython),
            {
                "resume": r"rewards.wrong: different values in step 76 after load_state\(\); .* state\(\)",
                "replay": rf".*rewards.{LINE}argument 1 is \d+, and was \d+ before",
            },
        ),
        (
            "curricula",
            term(mistakes.ForgetsItsLevel),
            {"resume": r"curricula.wrong: different values of weights of rewards in step 76 after load_state"},
        ),
    ],
)
@pytest.mark.usefixtures("short_rollouts")
def test_a_mistake_is_found_and_its_term_named(kind: str, wrong: Any, found: dict[str, str]) -> None:
    result = failures(with_term(kind, wrong))
    assert list(result) == list(found)
    for name, pattern in found.items():
        assert re.match(pattern, result[name]), result[name]


@pytest.mark.slow
@pytest.mark.usefixtures("short_rollouts")
def test_a_term_that_is_not_capturable_is_skipped() -> None:
    found = results(with_term("rewards", reward(1.0, mistakes.waits_and_says_so)))
    assert all(result.passed for result in found.values())
    for name in ("host syncs", "replay"):
        assert found[name].text.endswith("; not checked: rewards.wrong (cannot be captured in a CUDA graph)")


def with_events(events: dict[str, Any]) -> TrainConfig:
    """Return the cartpole task with these events instead of its own."""
    config = dataclasses.replace(config_of("cartpole-balance"), num_envs=8, total_num_envs=None)
    return changed(config, "env.events", events)


@pytest.mark.slow
@pytest.mark.usefixtures("short_rollouts")
def test_a_seed_that_changes_nothing_is_found() -> None:
    result = failures(with_events({"wrong": event(mistakes.always_seed_0)}))
    assert result.pop("seeds").startswith("the seeds 1 and 2 lead to the same rollout; ")
    assert set(result) <= {"replay"}, "only replay may fail too, because the event makes a generator in every step"


@pytest.mark.slow
@pytest.mark.usefixtures("short_rollouts")
def test_a_task_without_randomness_passes() -> None:
    found = results(with_events({}))
    assert all(result.passed for result in found.values())
    assert "draws no random numbers" in found["seeds"].text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"njmax": 3}, "overflow of NEFC with njmax 3 and nconmax 4; .* mjlab-dist size-buffers TASK"),
        ({"nconmax": 1}, "overflow of (BROADPHASE|NARROWPHASE).* with njmax 16 and nconmax 1; "),
        ({"nconmax": 0}, "nconmax 0 turns contacts off, but geoms can collide; "),
    ],
)
@pytest.mark.usefixtures("short_rollouts")
def test_buffers_that_are_too_small_are_found(changes: dict[str, int], found: str) -> None:
    config = dataclasses.replace(config_of("gym-hopper"), num_envs=8)
    result = failures(changed(config, "env.sim", dataclasses.replace(config.env.sim, **changes)))
    assert re.match(found, result.pop("buffers"))
    assert not result, "no term is blamed"


@pytest.mark.slow
@pytest.mark.usefixtures("short_rollouts")
def test_a_new_task_needs_buffers_with_a_margin() -> None:
    config = dataclasses.replace(config_of("gym-hopper"), num_envs=8)
    (usage,) = (result.text for result in try_out(config) if result.name == "buffers")
    (rows,) = re.findall(r"random actions need njmax (\d+)", usage)
    for njmax, passed in ((int(rows), False), (2 * int(rows), True)):
        results = {result.name: result.passed for result in try_out(changed(config, "env.sim.njmax", njmax))}
        assert results["buffers"] is passed
        assert all(passed for name, passed in results.items() if name != "buffers")


@pytest.mark.slow
@pytest.mark.usefixtures("short_rollouts")
@pytest.mark.parametrize("kind", [mistakes.ends_at_once, mistakes.ends_in_a_second])
def test_episodes_that_end_at_once_are_found(kind: Any) -> None:
    found = failures(with_term("terminations", termination(kind)))
    assert set(found) == ({"episodes"} if kind is mistakes.ends_at_once else set())
    assert all(re.match("with zero actions, terminations.wrong .* after 2.0 steps", text) for text in found.values())


# The checks are started from Python, or by a command


@pytest.mark.slow
@pytest.mark.usefixtures("short_rollouts")
def test_check_task_raises_with_a_line_per_failure_and_keeps_random_states() -> None:
    before = random_state("cpu")
    mjlab_dist.check_task("cartpole-balance", seed=3, **{"env.rewards.smooth.weight": 2.0})
    assert all(
        torch.equal(state.nan_to_num(), before[name].nan_to_num()) for name, state in random_state("cpu").items()
    )
    with pytest.raises(CheckError) as caught:
        mjlab_dist.check_task(with_term("rewards", reward(1.0, mistakes.waits)), num_envs=4)
    first, *lines = str(caught.value).splitlines()
    assert first == "cartpole-balance fails 2 checks"
    assert [line.partition(": ")[0] for line in lines] == ["host syncs", "replay"]


def test_recording_operations_does_not_import_the_compiler_of_torch() -> None:
    wrapped = hasattr(HostSyncs.__torch_dispatch__, "__wrapped__")
    assert not wrapped, "torch has put a wrapper around the method, and the wrapper imports torch's compiler"


def test_wrong_fields_are_refused() -> None:
    with pytest.raises(UserError, match=r"^num_env: unknown field"):
        mjlab_dist.check_task("cartpole-balance", num_env=4)
    with pytest.raises(UserError, match=r"^--num-envs auto: "):
        mjlab_dist.check_task("cartpole-balance", num_envs="auto")


@pytest.mark.slow
def test_the_command_prints_a_line_per_check_and_fails_if_one_does(command: Command) -> None:
    done = command("mjlab-dist", "check", "cartpole-balance", "--num-envs", "8")
    assert (done.code, done.err) == (0, "")
    lines = [line for line in done.out.splitlines() if not line.lower().startswith("compil")]
    assert [line[:12].strip() for line in lines] == [name for name in NAMES_OF_CHECKS if name != "mirror"]
    assert all(line[12:].startswith("pass  ") for line in lines)
    wrong = ("--env.rewards.smooth.func", "terms_with_mistakes:column")
    tests = {"PYTHONPATH": str(Path(mistakes.__file__).parent)}
    done = command("mjlab-dist", "check", "cartpole-balance", "--num-envs", "8", *wrong, env=tests)
    assert done.code == 1
    assert re.search(r"^terms       FAIL  env.rewards.smooth: returned \(8, 1\) ", done.out, re.MULTILINE)
    done = command("mjlab-dist", "check", "cartpole-balance", "--env.rewards.smooth", "3")
    assert done.code == 2
    assert "--env.rewards.smooth" in done.err


def test_help_lists_tasks_and_imports_no_torch(command: Command) -> None:
    done = command("mjlab-dist", "check", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.code == 0
    assert "usage: mjlab-dist check TASK" in done.out
    assert "gym-hopper" in done.out
    assert not re.search(r"\| +(torch|warp|mujoco)$", done.err, re.MULTILINE)
    assert re.search(r"\| +mjlab_dist", done.err, re.MULTILINE)
