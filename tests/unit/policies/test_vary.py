"""Values of the flag --vary."""

from __future__ import annotations

import pytest
from configs import value_at

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.errors import UserError
from mjlab_dist.policies.evaluate import Axis, changes_of, make_points, parse_axis


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    return registry.task_config("quadruped-velocity-flat")


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("push=0:2:5", "push", (0.0, 0.5, 1.0, 1.5, 2.0)),
        ("push=2:0:3", "push", (2.0, 1.0, 0.0)),
        ("push=3:9:1", "push", (3.0,)),
        ("friction=0.3,0.6,1", "friction", (0.3, 0.6, 1.0)),
        ("env.x=-1e-3", "env.x", (-1e-3,)),
    ],
)
def test_axes_are_parsed(text: str, name: str, values: tuple[float, ...]):
    assert parse_axis(text) == Axis(name, values)


@pytest.mark.parametrize("name", ["friction", "env.randomizations.friction"])
def test_a_randomization_always_samples_the_value(config: TrainConfig, name: str):
    friction = with_values(config, changes_of(config, name, 0.7)).env.randomizations["friction"]
    assert (friction.low, friction.high, friction.distribution) == (0.7, 0.7, "uniform")
    assert friction.field == config.env.randomizations["friction"].field


@pytest.mark.parametrize("name", ["push", "env.events.push", "env.events.push.params.linear_m_s"])
def test_a_range_of_an_event_is_symmetric(config: TrainConfig, name: str):
    push = with_values(config, changes_of(config, name, 1.5)).env.events["push"]
    assert push.params["linear_m_s"] == (-1.5, 1.5)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("env.commands.velocity.params.forward_m_s", 0.5, (0.5, 0.5)),
        ("env.commands.velocity.params.forward-m-s", 0.5, (0.5, 0.5)),
        ("env.commands.velocity.params.heading_gain", 2.0, 2.0),  # a parameter that the config does not name
        ("env.episode_length_s", 3.0, 3.0),
        ("env.sim.decimation", 2.0, 2),
        ("env.sim.options.timestep_s", 0.001, 0.001),  # the config's value is None
        ("env.actions.joints.scale", 0.5, 0.5),
    ],
)
def test_numbers_and_ranges_change(config: TrainConfig, name: str, value: float, expected: object):
    changed = value_at(with_values(config, changes_of(config, name, value)), name.replace("-", "_"))
    assert changed == expected
    assert type(changed) is type(expected)


def test_all_combinations_are_made_and_the_last_varies_fastest(config: TrainConfig):
    points = make_points(config, ["push=0,1", "friction=0.5:1.0:3"])
    assert [tuple(point.values.values()) for point in points] == [
        (0.0, 0.5), (0.0, 0.75), (0.0, 1.0), (1.0, 0.5), (1.0, 0.75), (1.0, 1.0),
    ]  # fmt: skip
    for point in points:
        env = point.config.env
        assert env.randomizations["friction"].low == point.values["friction"]
        assert env.events["push"].params["linear_m_s"] == (-point.values["push"], point.values["push"])
    (alone,) = make_points(config, [])
    assert alone.config == config
    assert not alone.values


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (["push"], "push"),
        (["push="], "push="),
        (["=1"], "=1"),
        (["push=1:2"], "push=1:2"),
        (["push=1:2:0"], "push=1:2:0"),
        (["push=1:2:x"], "push=1:2:x"),
        (["push=nan"], "push=nan"),
        (["push=inf,1"], "push=inf,1"),
        (["puhs=1"], "push"),
        (["env.rewards.nothing.weight=1"], "env.rewards.nothing.weight"),
        (["env.sim.model=1"], "env.sim.model"),
        (["env.rewards=1"], "env.rewards"),
        (["env.reward_scale=1"], "env.reward_scale"),
        (["env.sim.decimation=1.5"], "env.sim.decimation"),
        (["env.episode_length_s=-1"], "env.episode_length_s"),
        (["env.commands.velocity.params.standing_share=a"], "standing_share=a"),
        (["push=1", "push=2"], "push"),
        (["push=0:1:100", "friction=0:1:100"], "10000"),
    ],
)
def test_mistakes_are_refused_by_name(config: TrainConfig, texts: list[str], named: str):
    with pytest.raises(UserError) as error:
        make_points(config, texts)
    assert named in str(error.value)
    assert str(error.value).startswith("--vary ")
    assert "\n" not in str(error.value)
