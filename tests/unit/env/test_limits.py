"""A saved state is refused if an integer in it would index memory of something else. The envs then keep their state."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Callable

import manipulator
import pytest
import torch
from every_task import NAMES
from legged import EVERYTHING, event, make, observe, term

from mjlab_dist import mdp
from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.env import Env
from mjlab_dist.env.observation_group import FinalObservations
from mjlab_dist.env.term import Term
from mjlab_dist.errors import UserError

ENDED = "env_terms_for_test:Ended"
BIASED = observe("JointPositions", {"bias": (-0.1, 0.1)}, delay=(0, 2), delay_jitter=0.5)
POINTS = ((0.0, 1.0), (9.0, 0.5))
LEGS = dataclasses.replace(
    EVERYTHING,
    observations={"actor": {"joints": BIASED}},
    events={"pull": event("Wrench", "interval", bodies=("trunk",))},
    curricula={
        "range": term(
            "curricula:CommandRange", command="velocity", widest=(-2.0, 2.0), step=0.1, reward="alive", number=0
        ),
        "weight": term("curricula:RewardWeight", reward="tilt", weight=-1.0, low=0.1, high=0.5),
        "schedule": term("curricula:Schedule", parameter="rewards.rate", points=POINTS),
    },
)


def without_limits(env: Env) -> list[str]:
    """Return the names of the integers of the state that have no limits."""
    state, limits = env.state(), env.limits()
    return [
        name
        for name, tensor in state.items()
        if not (tensor.is_floating_point() or tensor.dtype == torch.bool or name in limits)
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "everything" else pytest.mark.long) for name in NAMES]
)
def test_every_integer_of_every_task_has_limits(name: str, build_env: Callable[[str], Env]) -> None:
    assert not without_limits(build_env(name))


@pytest.mark.slow
def test_every_integer_of_every_term_has_limits(build_env: Callable[[str], Env]) -> None:
    blocks = [{name: manipulator.BLOCKS[name] for name in ("smoothed", other)} for other in ("dc", "learned")]
    envs = [*(manipulator.make(2, actions=actions) for actions in blocks), make(2, config=LEGS)]
    envs += [build_env(task) for task in ("everything", "quadruped-tracking", "quadruped-velocity-rough")]
    assert not [name for env in envs for name in without_limits(env)]
    # The envs have every class of the package that keeps a state.
    modules = [
        importlib.import_module(f"{mdp.__name__}.{module.name}") for module in pkgutil.iter_modules(mdp.__path__)
    ]
    found = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    remembering = {one for one in found if issubclass(one, Term) and one.__module__.startswith(mdp.__name__)}
    used = {type(one) for env in envs for one in env.terms.values()}
    assert {one.__name__ for one in remembering if "state" in vars(one)} <= {one.__name__ for one in used}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "index"),
    [
        ("everything", "actions.next_lag"),
        ("everything", "observations.actor.velocities.lag"),
        ("quadruped-tracking", "commands.motion.frame"),
        ("quadruped-velocity-rough", "curricula.terrain.level"),
    ],
)
def test_an_index_outside_of_its_limits_is_refused_and_changes_nothing(
    task: str, index: str, build_env: Callable[[str], Env]
) -> None:
    env = build_env(task)
    state, limits = env.state(), env.limits()[index]
    for limit, beyond in zip(limits, (-1, 1), strict=True):
        env.load_state({**state, index: torch.full_like(state[index], int(limit))})
        env.load_state(state)
        changed = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        changed[index][-1] = wrong = int(limit) + beyond
        assert f" {index} contains {wrong}, but must be between 0 and {limits[1]}; " in refusal(env, changed)
        assert all(torch.equal(tensor, state[name]) for name, tensor in env.state().items())


def refusal(env: Env, state: dict[str, torch.Tensor]) -> str:
    with pytest.raises(UserError) as caught:
        env.load_state(state)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_number_that_only_becomes_an_index_by_a_conversion_is_refused() -> None:
    env = make(2, config=LEGS)
    state = env.state()
    lag = state["actions.lag"]
    for wrong in (lag.float().fill_(math.nan), lag.double().fill_(1e30), lag.int()):
        assert " actions.lag is of type " in refusal(env, {**state, "actions.lag": wrong})


def test_a_term_without_limits_still_loads() -> None:
    env = make(2, curricula={"ended": dataclasses.replace(LEGS.curricula["range"], func=ENDED, params={})})
    state = env.state()
    env.load_state({**state, "curricula.ended.length": state["curricula.ended.length"] - 5})
    assert (env.state()["curricula.ended.length"] == -5).all()


@pytest.mark.usefixtures("engine_of_gpus")
def test_observations_before_resets_do_not_wait_for_the_device() -> None:
    env = make(2, config=LEGS)
    _ = FinalObservations(env)
    actions = torch.zeros(2, env.num_actions)
    env.step(actions)  # the first step checks the results of terms
    with HostSyncs() as syncs:
        env.step(actions)
    assert not syncs.found


def test_a_curriculum_on_other_ranks_refuses_an_integer_outside_of_its_limits() -> None:
    saved, env = make(3, config=LEGS).state(), make(2, config=LEGS)
    env.resume_curricula([saved])
    name = "curricula.schedule.count"
    with pytest.raises(UserError, match=r" count contains -1, but must be between 0 and inf; "):
        env.resume_curricula([{**saved, name: torch.tensor([-1])}])
