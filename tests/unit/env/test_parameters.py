"""Parameters that curricula change. After a change, steps equal those of an env whose config has the new value."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from legged import CONFIG, DT_S, EVERYTHING, event, make, observe, refused, reward, term, termination

from mjlab_dist.authoring.check.host_syncs import HostReads, HostSyncs
from mjlab_dist.config import EnvConfig, ParamValue, RandomizationConfig, TermConfig, registry
from mjlab_dist.config.dotted_names import replaced
from mjlab_dist.config.task import without_disturbances
from mjlab_dist.distributed import Rank
from mjlab_dist.env import Env, EpisodeTotals
from mjlab_dist.env.term import Curriculum, Term
from mjlab_dist.learn.runner import Runner
from mjlab_dist.runs.run_dir import read_metrics

NUM_ENVS = 16
NUM_STEPS = 12

TASK = dataclasses.replace(
    EVERYTHING,
    terminations={
        **EVERYTHING.terminations,
        "fallen": termination("terminations:illegal_contact", sensor="feet", min_n=1.0),
    },
    events={
        **EVERYTHING.events,
        "shake": event("draw_velocities", "interval", (0.03, 0.06), std=0.1),
        "wrench": event("Wrench", "interval", (0.03, 0.06), bodies=("trunk",), force_n=(-9.0, 9.0)),
    },
    randomizations={
        **EVERYTHING.randomizations,
        "load": RandomizationConfig(
            field="body_gravcomp", distribution="normal", mean=0.1, std=0.1, operation="set", when="reset"
        ),
    },
    observations={
        **EVERYTHING.observations,
        "actor": {**EVERYTHING.observations["actor"], "biased": observe("JointPositions", {"bias": (-0.1, 0.1)})},
    },
)


def schedule(parameter: str, *values: tuple[float, ...], by: str = "iteration") -> TermConfig:
    """Return a curriculum that sets a parameter to `values[i]` in iteration i, or in step i if `by` is "step"."""
    points = tuple((when, *value) for when, value in enumerate(values))
    return term("curricula:Schedule", parameter=parameter, points=points, by=by)


def scheduled(config: EnvConfig = CONFIG, **curricula: TermConfig) -> EnvConfig:
    return dataclasses.replace(config, curricula=curricula)


def build(config: EnvConfig, seed: int = 0) -> Env:
    return make(NUM_ENVS, seed, config)


def end_iteration(env: Env) -> None:
    nothing = torch.tensor(0.0)
    env.end_iteration(EpisodeTotals(*[nothing] * 6))


def seen(env: Env) -> dict[str, torch.Tensor]:
    """Reset the envs, and return the results of some steps. The first episode of each env ends in these steps."""
    torch.manual_seed(3)
    env.reset()
    env.episode_length_buf.copy_(env.max_episode_length - 1 - torch.arange(env.num_envs) % NUM_STEPS)
    steps = []
    for _ in range(NUM_STEPS):
        obs, rewards, dones, _ = env.step(torch.randn(env.num_envs, env.num_actions))
        groups = {name: obs[name] for name in env.cfg.observations}
        steps.append(
            {**groups, "rewards": rewards, "dones": dones.float(), "qpos": env.sim.qpos.clone(), **metrics(env)}
        )
    return {name: torch.stack([step[name] for step in steps]) for name in steps[0]}


def metrics(env: Env) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in env.episode_outcomes().items()}


def differences(mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of values that differ by more than rounding errors.

    The tolerance is large, because contacts amplify rounding errors.
    """
    return [name for name, value in mine.items() if not torch.allclose(value, theirs[name], rtol=2e-3, atol=2e-3)]


CASES: dict[str, tuple[Any, Any]] = {
    "rewards.linear.params.std_m_s": (0.5, 0.1),  # the config does not name this parameter, whose default is 0.5
    "rewards.height.params.target_m": (0.27, 0.6),
    "rewards.air.params.min_s": (0.05, 0.9),
    "rewards.still.params.moving_m_s": (0.1, 0.9),
    "terminations.tilted.params.max_rad": (0.6, 0.1),
    "terminations.low.params.min_m": (0.15, 0.4),
    "terminations.fallen.params.min_n": (1e9, 1.0),
    "metrics.tilted.params.max_rad": (0.3, 0.1),
    "events.push.params.linear_m_s": ((-0.5, 0.5), (-2.0, 1.0)),
    "events.push.params.angular_rad_s": ((-0.5, 0.5), (2.0, 3.0)),
    "events.root.params.z_m": ((0.0, 0.0), (0.2, 0.4)),
    "events.root.params.angular_rad_s": ((0.0, 0.0), (-2.0, 1.0)),
    "events.joints.params.position": ((-0.3, 0.3), (0.1, 0.2)),
    "events.joints.params.velocity": ((-1.0, 1.0), (1.0, 2.0)),
    "events.wrench.params.force_n": ((-9.0, 9.0), (90.0, 100.0)),
    "events.wrench.params.duration_s": ((0.1, 0.1), (0.02, 0.04)),
    "events.tail.params.low": (-3.0, -9.0),
    "events.shake.params.std": (0.1, 2.0),
    "observations.actor.biased.params.bias": ((0.0, 0.0), (0.2, 0.3)),
    "observations.actor.joints.uniform_noise": (0.01, 0.5),
    "observations.actor.gravity.uniform_noise": (0.0, 0.5),
    "observations.critic.linear.gaussian_noise": (0.0, 0.5),  # at first, no term of the group has noise
    "observations.actor.velocities.gaussian_noise": (0.1, 0.5),
    "observations.actor.angular.uniform_noise": ((0.1, 0.1, 0.1), (0.5, 0.0, 0.2)),  # one number for each column
    "observations.critic.height.scale": (1.0, 0.5),
    "randomizations.friction.high": (1.2, 3.0),
    "randomizations.damping.low": (0.5, 1.5),
    "randomizations.load.mean": (0.1, 0.9),
    "randomizations.load.std": (0.1, 0.7),
    "commands.velocity.params.standing_share": (0.2, 0.8),
    "commands.velocity.params.heading_share": (0.5, 0.0),
    "commands.velocity.params.heading_gain": (0.5, 3.0),
}
"""Value of each parameter before and after the end of an iteration."""


@pytest.mark.slow
@pytest.mark.parametrize("parameter", CASES)
def test_after_a_change_steps_equal_those_with_the_new_value_in_the_config(parameter: str) -> None:
    before, after = CASES[parameter]
    path = parameter.split(".")
    task = replaced(TASK, path, before)
    changing = build(scheduled(task, it=schedule(parameter, numbers(before), numbers(after))))
    start = changing.state()
    first = seen(changing)
    changing.load_state(start)
    end_iteration(changing)
    second = seen(changing)
    assert differences(second, first)
    assert not differences(second, seen(build(replaced(task, path, after))))


def numbers(value: Any) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_ranges_and_their_elements_are_changed_together() -> None:
    push = {"push": event("Push", "interval", (DT_S, DT_S), linear_m_s=(-9.0, 9.0))}
    path = "events.push.params.linear_m_s"
    terms = {"low": schedule(f"{path}.0", (0.5,), (1.5,)), "high": schedule(f"{path}.1", (0.5,), (1.5,))}
    env = build(dataclasses.replace(scheduled(CONFIG, **terms), events=push))
    for speed in (0.5, 1.5):
        env.reset()
        env.sim.qvel.zero_()
        env.sim.qpos[:, 2] = 2.0
        env.step(torch.zeros(NUM_ENVS, 4))
        assert torch.allclose(env.sim.qvel[:, :2], torch.full((NUM_ENVS, 2), speed), atol=0.05)
        assert env.curriculum_metrics() == {"low/value": speed, "high/value": speed}
        end_iteration(env)


@pytest.mark.usefixtures("engine_of_gpus")
def test_parameters_never_make_the_host_wait() -> None:
    terms = {f"it{i}": schedule(name, numbers(a), numbers(b)) for i, (name, (a, b)) in enumerate(CASES.items())}
    task = TASK
    for parameter, (before, _) in CASES.items():
        task = replaced(task, parameter.split("."), before)
    env = build(scheduled(task, **terms))
    env.stagger()
    with HostSyncs() as syncs, HostReads() as reads:
        for _ in range(NUM_STEPS):
            env.step(torch.zeros(NUM_ENVS, env.num_actions))
        end_iteration(env)
        env.step(torch.zeros(NUM_ENVS, env.num_actions))
    assert syncs.found == reads.found == []


def branches(env: Env, min_m: float) -> torch.Tensor:
    height = env.sim.qpos[:, 2]
    return height if min_m > 0.0 else -height


def test_a_function_that_branches_on_a_parameter_follows_it_and_is_reported() -> None:
    own = dataclasses.replace(reward("alive"), func=f"{__name__}:branches", params={"min_m": 1.0})
    config = dataclasses.replace(CONFIG, rewards={"own": own})
    env = build(scheduled(config, it=schedule("rewards.own.params.min_m", (1.0,), (-1.0,))))
    with HostSyncs() as syncs:
        assert (env.step(torch.zeros(NUM_ENVS, 4))[1] > 0).all()
    assert syncs.found
    end_iteration(env)
    assert (env.step(torch.zeros(NUM_ENVS, 4))[1] < 0).all()


# Checkpoints


def test_a_run_resumes_with_its_current_value(tmp_path: Path) -> None:
    task = registry.task_config("cartpole-balance")
    path = "events.pole.params.high"
    it = term("curricula:Schedule", parameter=path, points=((0, 0.1), (10, 1.1)))
    env = dataclasses.replace(task.env, curricula={"it": it})
    agent = dataclasses.replace(task.agent, num_steps_per_env=4)
    for iterations in (2, 4):
        run = dataclasses.replace(
            task, env=env, agent=agent, num_envs=8, total_num_envs=None, max_iterations=iterations
        )
        Runner(Env(run.env, 8, "cpu"), run, Rank(), tmp_path).train()
    assert [row["curriculum/it/value"] for row in read_metrics(tmp_path)] == pytest.approx([0.1, 0.2, 0.3, 0.4])


# User-defined curricula and terms


class Halve(Curriculum):
    def __init__(self, env: Env, term: str) -> None:
        self._number = env.find_parameter(f"rewards.{term}.params.target_m")

    @classmethod
    def changes(cls, params: Mapping[str, ParamValue]) -> list[str]:
        return [f"rewards.{params['term']}.params.target_m"]

    def iteration_ends(self, env: Env, totals: EpisodeTotals) -> None:  # noqa: ARG002 (every curriculum takes them)
        self._number.mul_(0.5)

    def state(self) -> dict[str, torch.Tensor]:
        return {"number": self._number}


class Forgets(Halve):
    @classmethod
    def changes(cls, params: Mapping[str, ParamValue]) -> list[str]:  # noqa: ARG003 (every curriculum takes them)
        return []


class Height(Term):
    """Observation that reads a parameter in every call, and lists it in `schedulable`."""

    schedulable = ("target_m",)

    def __init__(self, env: Env, target_m: float, scale: float = 1.0) -> None:
        self._target_m, self._scale = target_m, scale
        self._height = env.sim.qpos[:, 2]

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every reward takes the env)
        return (self._height - self._target_m) * self._scale


def with_own(**curricula: TermConfig) -> EnvConfig:
    own = dataclasses.replace(reward("alive"), func=f"{__name__}:Height", params={"target_m": 4.0})
    return dataclasses.replace(CONFIG, rewards={"own": own}, curricula=curricula)


def test_user_defined_curricula_change_parameters_of_user_defined_classes() -> None:
    env = build(with_own(it=TermConfig(func=f"{__name__}:Halve", params={"term": "own"})))
    for target_m in (4.0, 2.0, 1.0):
        rewards = env.step(torch.zeros(NUM_ENVS, 4))[1]
        assert torch.allclose(rewards, env.sim.qpos[:, 2] - target_m)
        end_iteration(env)


# Play without disturbances


def test_play_without_disturbances_drops_the_schedules_of_what_it_removes() -> None:
    terms = {
        "push": schedule("events.push.params.linear_m_s", (0.0, 0.0), (1.0, 1.0)),
        "noise": schedule("observations.actor.joints.uniform_noise", (0.0,), (1.0,)),
        "load": schedule("randomizations.load.mean", (0.0,), (1.0,)),
        "target": schedule("rewards.height.params.target_m", (0.0,), (1.0,)),
    }
    calm = without_disturbances(scheduled(TASK, **terms))
    assert list(calm.curricula) == ["target"]
    observations = {
        group: {
            name: dataclasses.replace(one, func="mjlab_dist.mdp.observations:last_action", params={})
            if one.func.endswith("model_field")
            else one
            for name, one in found.items()
        }
        for group, found in calm.observations.items()
    }
    build(dataclasses.replace(calm, observations=observations))


# Wrong curricula are refused


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("rewards.hight.params.target_m", r"there is no such term; did you mean height\?"),
        ("reward.height.params.target_m", r"there is no such term; did you mean rewards\?"),
        ("events.xyz123.params.low", r"there is no such term; the task has root, .* and wrench"),
        ("rewards.height.params.targt_m", r"there is no such parameter; did you mean params\.target_m\?"),
        ("rewards.alive.params.x", r"there is no such parameter; rewards\.alive has none"),
        ("rewards.linear.params.command", r"is 'velocity', not a number or tuple of numbers"),
        ("events.root.params.z_m.2", r"there is no index 2; events\.root\.params\.z_m has indices 0 to 1"),
        ("rewards.height.params.target_m.0", r".* has one number, without an index; name rewards\.height\.params\."),
        ("randomizations.mass.low", r"is read once, at startup; set --env\.randomizations\.mass\.when to reset or "),
        ("rewards.limits.params.share", r"the class mjlab_dist\.mdp\.rewards:JointLimits does not list share in "),
        ("commands.velocity.params.forward_m_s", r".* name standing_share, .*; commands\.velocity\.0 names the range"),
    ],
)
def test_parameters_that_cannot_change_are_refused(parameter: str, message: str) -> None:
    config = scheduled(TASK, it=schedule(parameter, (0.0,), (1.0,)))
    assert re.match(rf"env\.curricula\.it: parameter {parameter}: {message}", refused(config=config))


def test_the_points_must_have_as_many_values_as_the_parameter() -> None:
    config = scheduled(TASK, it=schedule("events.push.params.linear_m_s", (0.0,), (1.0,)))
    assert re.match(r"env\.curricula\.it: schedule: points .*\(when, low, high\)", refused(config=config))


def test_a_class_must_list_the_parameters_that_it_reads() -> None:
    config = with_own(it=schedule("rewards.own.params.scale", (0.0,), (1.0,)))
    assert re.search(r"not list .* in schedulable; .*; otherwise, name target_m$", refused(config=config))


def test_a_curriculum_must_name_what_it_changes() -> None:
    config = with_own(it=TermConfig(func=f"{__name__}:Forgets", params={"term": "own"}))
    assert re.search(r"rewards\.own\.params\.target_m: is unknown to the env; .*changes\(", refused(config=config))
