"""Every term that looks up a name refuses a wrong name, in one line with the term and the existing names."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from configs import changed
from conftest import Command
from every_task import NAMES, config_of

from mjlab_dist.config import DistanceConfig, EnvConfig, TrainConfig, event, observation, term, termination
from mjlab_dist.config.signatures import parameters
from mjlab_dist.env import Env
from mjlab_dist.env.term import Term
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import curricula, events, observations, terminations

WRONG = "nonexistent"
KINDS = ("observations", "rewards", "terminations", "metrics", "events", "commands", "sensors", "curricula")
NOT_NAMES = {"file", "parameter"}
"""Parameters of terms that are strings but not names in the model or the task: files and paths."""


def terms(env: EnvConfig) -> Iterator[tuple[str, Any]]:
    """Yield the path and the config of every term."""
    for kind in KINDS:
        for name, one in getattr(env, kind).items():
            if kind == "observations":
                yield from ((f"observations.{name}.{inner}", each) for inner, each in one.items())
            else:
                yield f"{kind}.{name}", one


def named(func: str) -> list[str]:
    """Return the parameters of a term whose values are names in the model or the task."""
    return [name for name, one in parameters(func).items() if "str" in one.annotation and name not in NOT_NAMES]


def config_with_more(task: str) -> TrainConfig:
    """Return a task's config. Add terms that no task uses to the config of the task `everything`."""
    config = config_of(task)
    own = {
        "range": term(curricula.CommandRange, command="velocity", widest=(-9.0, 9.0), step=0.1, reward="linear"),
        "weight": term(curricula.RewardWeight, reward="tilt", weight=-1.0, low=0.1, high=0.9),
    }
    if task != "everything":
        return config
    config = changed(config, "env.curricula", own)
    for name in ("Positions", "Orientations", "LinearVelocities", "AngularVelocities", "Distances"):
        frames = observation(getattr(observations, f"Frame{name}"), names=("trunk",), reference="trunk")
        config = changed(config, f"env.observations.critic.{name}", frames)
    config = changed(
        config, "env.events.wrench", event(events.Wrench, bodies=("trunk",), force_n=(0.0, 1.0)).every(1, 2)
    )
    angles = observation(observations.JointAngles, joints=("FL_hip",))
    config = changed(config, "env.observations.critic.angles", angles)
    out_of_range = termination(terminations.joint_out_of_range, joint="FL_hip", high=9.0)
    config = changed(config, "env.terminations.out_of_range", out_of_range)
    gap = DistanceConfig(names=("trunk",), other_names=("floor",), max_m=1.0)
    config = changed(config, "env.sim.distances", {"gap": gap})
    surface = observation(observations.SurfaceDistances, distances="gap")
    return changed(config, "env.observations.critic.surface", surface)


def cases() -> dict[tuple[str, str], tuple[str, str]]:
    """For each function and parameter whose values are names, return a task and the path of a term that uses both."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for task in NAMES:
        for path, one in terms(config_with_more(task).env):
            for parameter in named(one.func):
                found.setdefault((one.func, parameter), (task, path))
    return found


CASES = cases()


def broken(config: TrainConfig, path: str, parameter: str) -> EnvConfig:
    """Return a config in which the value of one parameter is a name that does not exist."""
    one = dict(terms(config.env))[path]
    known = {name: one.default for name, one in parameters(one.func).items()} | one.params
    value = tuple(WRONG for _ in known[parameter]) or (WRONG,) if isinstance(known[parameter], tuple) else WRONG
    others = {name: given for name, given in one.params.items() if {name, parameter} != {"sensors", "contacts"}}
    return changed(config.env, path, dataclasses.replace(one, params={**others, parameter: value}))


def make_and_step(config: EnvConfig) -> None:
    # Without capture, physics is faster to build. Terms look up their names in the same way with and without it
    env = Env(dataclasses.replace(config, sim=dataclasses.replace(config.sim, capture="off")), 2, "cpu")
    env.step(torch.zeros(2, env.num_actions))


@pytest.mark.slow
@pytest.mark.parametrize("func", CASES, ids=lambda func: f"{func[0].partition(':')[2]}-{func[1]}")
def test_a_name_that_does_not_exist_is_refused_and_the_error_lists_existing_names(func: tuple[str, str]) -> None:
    task, path = CASES[func]
    config = broken(config_with_more(task), path, func[1])
    with pytest.raises(UserError) as caught:
        make_and_step(config)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"env.{path}: ")
    there = re.search(rf"\b{WRONG}\b.*\b(?:has|are|none of the model's) (.+)", message)
    assert there, message


@pytest.mark.parametrize("kind", [*sorted({*KINDS} - {"metrics"}), "height_scan", "motion"])
def test_every_term_of_the_package_is_tried(kind: str) -> None:
    module = importlib.import_module(f"mjlab_dist.mdp.{kind}")
    tried = set(CASES)
    for name, one in vars(module).items():
        is_own = getattr(one, "__module__", "") == module.__name__ and not name.startswith("_")
        if is_own and (inspect.isfunction(one) or (inspect.isclass(one) and issubclass(one, Term))):
            func = f"{module.__name__}:{name}"
            assert {(func, parameter) for parameter in named(func)} <= tried


@pytest.mark.slow
def test_a_wrong_name_ends_a_command_in_one_line(command: Command) -> None:
    velocities = ("--env.rewards.foot-slip.params.velocities", WRONG, "right_foot_velocity")
    flags = ("--num-envs", "4", "--max-iterations", "1", "--gpu-ids", "None")
    done = command("train", "humanoid-velocity-flat", *flags, *velocities)
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith(f"train: env.rewards.foot_slip: {WRONG}: ")
    assert "Traceback" not in done.err
