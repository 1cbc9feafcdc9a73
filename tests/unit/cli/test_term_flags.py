"""Flags of terms: parameters that the config does not name, values that tyro cannot read, and the value None."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from configs import changed, typed, with_flags
from legged import EVERYTHING

from mjlab_dist.config import ObservationConfig, ParamValue, TermConfig, TrainConfig, registry
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.config.serialization import from_plain, to_plain
from mjlab_dist.config.task import without_disturbances
from mjlab_dist.errors import UserError

DEFAULT = registry.task_config("quadruped-velocity-flat")

TERMS = """raise ImportError("help and flags must not import terms")
class Goal:
    def __init__(
        self, env, *, required: float, limit: float | None = None, label: str | None = None,
        box: tuple = ((0.0, 1.0), (2.0, 3.0)), names: tuple[str, ...] = (), table: dict = {"a": 1.0},
        gain: float = 1, is_on: bool | None = True,
    ): pass
"""


def read(*flags: str) -> TrainConfig:
    return typed("quadruped-velocity-flat", *flags)


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    try:
        with pytest.raises(SystemExit) as end:
            read(*flags)
    except UserError as error:
        return str(error)
    assert end.value.code == 2
    return capsys.readouterr().err


def reread(config: TrainConfig) -> TrainConfig:
    """Return a config as it is read from its file."""
    return from_plain(yaml.safe_load(yaml.safe_dump(to_plain(config))))


def test_a_parameter_that_the_config_does_not_name_is_a_flag_and_a_field_in_python() -> None:
    assert "x_m" not in DEFAULT.env.events["root"].params
    config = read("--env.events.root.params.x-m", "-0.5", "0.5")
    assert config.env.events["root"].params["x_m"] == (-0.5, 0.5)
    assert with_values(DEFAULT, {"env.events.root.params.x_m": (-0.5, 0.5)}) == config
    assert read("--env.events.root.params.joint=other").env.events["root"].params["joint"] == "other"
    assert read().env == DEFAULT.env
    with pytest.raises(UserError, match=r"env\.events\.root\.params\.no_such"):
        with_values(DEFAULT, {"env.events.root.params.no_such": 1.0})


def test_a_wrong_parameter_is_refused_with_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    flag = "--env.events.root.params.x-m"
    assert flag in refusal(capsys, flag, "far", "0.5")
    assert flag in refusal(capsys, "--env.events.root.params.x-mm", "1"), "the nearest flag is named"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [("terminations", "tilt"), ("rewards", "action_rate"), ("events", "push"), ("randomizations", "friction")],
)
def test_none_removes_a_term(kind: str, name: str) -> None:
    assert name in getattr(DEFAULT.env, kind)
    config = read(f"--env.{kind}.{name.replace('_', '-')}", "None")
    left = {key: value for key, value in getattr(DEFAULT.env, kind).items() if key != name}
    assert getattr(config.env, kind) == left
    assert config == with_values(DEFAULT, {f"env.{kind}.{name}": None})
    assert reread(config) == config


def test_none_removes_an_observation_or_a_group() -> None:
    name = next(iter(DEFAULT.env.observations["critic"]))
    assert name not in read(f"--env.observations.critic.{name.replace('_', '-')}", "None").env.observations["critic"]
    assert list(read("--env.observations.critic", "None").env.observations) == ["actor"]


@pytest.mark.parametrize("flag", ["--env.terminations.tilted", "--env.rewards.no-such", "--env.observations.actor.no"])
def test_none_of_an_unknown_term_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert flag in refusal(capsys, flag, "None")


@pytest.fixture
def with_goal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """Return a config with a term whose parameters tyro cannot read."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "goal_terms.py").write_text(TERMS)
    box = ((0.0, 1.0), (2.0, 3.0))
    params: dict[str, ParamValue] = {"limit": None, "box": box, "table": {"a": 1.0}, "required": 1.0}
    return changed(DEFAULT, "env.commands", {"goal": TermConfig(func="goal_terms:Goal", params=params)})


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("limit", ["0.5"], 0.5),
        ("limit", ["1e-3"], 1e-3),
        ("limit", ["None"], None),
        ("box", ["[[0, 2], [3, 4]]"], ((0, 2), (3, 4))),
        ("table", ["{a: 2, b: [1, 2]}"], {"a": 2, "b": (1, 2)}),
        ("names", ["left", "right"], ("left", "right")),
        ("names", ["left"], ("left",)),
        ("label", ["7"], "7"),
        ("label", ["None"], None),
        ("required", ["2"], 2.0),
        ("gain", ["0.5"], 0.5),
        ("is_on", [], True),
        ("no-is-on", [], False),
        ("is_on", ["None"], None),
    ],
)
def test_values_without_a_plain_type(
    with_goal: TrainConfig, tmp_path: Path, name: str, values: list[str], expected: ParamValue
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_plain(with_goal)))
    config = typed("--config", str(file), f"--env.commands.goal.params.{name}", *values)
    assert config.env.commands["goal"].params == {
        **with_goal.env.commands["goal"].params,
        name.removeprefix("no-").replace("-", "_"): expected,
    }
    assert reread(config) == config


def test_a_term_may_be_called_params() -> None:
    config = changed(DEFAULT, "env.rewards", {"params": next(iter(DEFAULT.env.rewards.values()))})
    assert with_flags(config, ["--env.rewards.params", "None"]).env.rewards == {}


def test_help_shows_all_parameters_with_their_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help", "env.events.root")
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "params.x-m [FLOAT [FLOAT ...]] Range of the offset added to x. (default: 0.0 0.0)" in shown


def test_without_disturbances_nothing_is_random_but_the_start() -> None:
    calm = without_disturbances(DEFAULT.env)
    terms = [term for group in calm.observations.values() for term in group.values()]
    assert {(one.uniform_noise, one.gaussian_noise, one.delay) for one in terms} == {(0.0, 0.0, (0, 0))}
    assert {action.latency for action in calm.actions.values()} == {(0, 0)}
    assert not calm.randomizations
    assert set(DEFAULT.env.events) - set(calm.events) == {"push"}
    assert calm.rewards == DEFAULT.env.rewards
    late = {"it": ObservationConfig(func="", delay=(0, 2), delay_jitter=0.2)}
    calm = without_disturbances(dataclasses.replace(EVERYTHING, observations={"actor": late}))
    assert not any(action.latency_jitter for action in calm.actions.values())
    assert not calm.observations["actor"]["it"].delay_jitter


def test_a_group_of_motors_can_be_removed_from_python_and_by_a_flag() -> None:
    name = next(iter(DEFAULT.env.sim.actuators))
    config = with_values(DEFAULT, {f"env.sim.actuators.{name}": None})
    assert name not in config.env.sim.actuators
    assert read(f"--env.sim.actuators.{name}", "None") == config


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_flags_replace_the_function_of_a_term_and_set_its_parameters(
    order: int, capsys: pytest.CaptureFixture[str]
) -> None:
    func = "mjlab_dist.mdp.actions:Smoothed"
    flags = [("--env.actions.joints.func", func), ("--env.actions.joints.params.alpha", "0.5")]
    joints = read(*(word for flag in flags[::order] for word in flag)).env.actions["joints"]
    assert joints == dataclasses.replace(DEFAULT.env.actions["joints"], func=func, params={"alpha": 0.5})
    damping = ("--env.actions.joints.params.damping", "{.*_hip: 0.5, .*: 1.0}")
    numbers = ("--env.actions.joints.params.stiffness", "30", "--env.actions.joints.params.delay", "2", "6")
    torque = read("--env.actions.joints.func=mjlab_dist.mdp.motors:DcMotor", *damping, *numbers)
    params = {"stiffness": 30, "damping": {".*_hip": 0.5, ".*": 1.0}, "delay": (2, 6)}
    assert torque.env.actions["joints"].params == params
    beta = "--env.actions.joints.params.beta"
    assert beta in refusal(capsys, flags[0][0], func, beta, "0.5")


def test_flags_give_scales_by_regular_expression() -> None:
    scale = read("--env.actions.joints.scale", ".*_hip", "0.1", ".*", "0.3").env.actions["joints"].scale
    assert scale == {".*_hip": 0.1, ".*": 0.3}
    config = with_values(DEFAULT, {"env.actions.joints.scale": {".*": 0.5}})
    assert config.env.actions["joints"].scale == {".*": 0.5}
    assert reread(config) == config
